# SPDX-License-Identifier: Apache-2.0
"""Pictures of what happened: charts over time, bars, maps, and what all of them share."""

# SPDX-License-Identifier: Apache-2.0
"""What happened in a simulation: events, metrics, tables and pictures."""

# SPDX-License-Identifier: Apache-2.0
"""Every KIND of measured rows: its columns, its prediction, and how far off it is."""

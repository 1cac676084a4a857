# SPDX-License-Identifier: Apache-2.0
"""Runs beside each other, and beside what was measured on a board, in RTL or in GVSoC."""

# SPDX-License-Identifier: Apache-2.0
"""The mathematics of primitives in other words than their formulas."""

# SPDX-License-Identifier: Apache-2.0
"""Timing defects put into the product on purpose, and the figures of validation that have to notice them."""

# SPDX-License-Identifier: Apache-2.0
"""Layers that move data and compute nothing."""

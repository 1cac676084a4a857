# SPDX-License-Identifier: Apache-2.0
"""Activations, sums and scales: element i from elements i."""

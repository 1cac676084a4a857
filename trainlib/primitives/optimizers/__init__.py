# SPDX-License-Identifier: Apache-2.0
"""Optimizers, and what is done to gradients before them."""

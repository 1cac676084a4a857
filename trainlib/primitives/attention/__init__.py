# SPDX-License-Identifier: Apache-2.0
"""Attention, softmax and tokens."""

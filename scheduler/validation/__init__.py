# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured cycles: measured cases in, predictions and their errors out."""

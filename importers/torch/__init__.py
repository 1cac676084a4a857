# SPDX-License-Identifier: Apache-2.0
"""PyTorch: the names of ATen ops and their arguments, as what `importers.place` is told."""

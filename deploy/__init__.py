# SPDX-License-Identifier: Apache-2.0
"""Export of a schedule as a C project: the same tiles, kernels, buffers and DMA commands."""

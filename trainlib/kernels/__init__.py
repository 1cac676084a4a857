# SPDX-License-Identifier: Apache-2.0
"""Kernels as loop nests: data from configs/kernels turned into instruction streams."""

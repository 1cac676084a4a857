# SPDX-License-Identifier: Apache-2.0
"""What is computed: the training graph, its primitives in NumPy, and kernels as loop nests."""

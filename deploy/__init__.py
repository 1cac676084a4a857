# SPDX-License-Identifier: Apache-2.0
"""A scheduled program as a C project: kernels in C, calls of them, platforms."""

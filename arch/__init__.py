# SPDX-License-Identifier: Apache-2.0
"""The machine: SimPy modules of a PULP SoC, their timing, and the price of kernels."""

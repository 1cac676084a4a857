# SPDX-License-Identifier: Apache-2.0
"""The blocks of the SoC: cluster, cores, DMA, event unit, memories behind it, and the whole."""

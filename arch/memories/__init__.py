# SPDX-License-Identifier: Apache-2.0
"""The bytes of a run: memories, what DMA and kernels do to them, races, replay."""

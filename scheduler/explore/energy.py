# SPDX-License-Identifier: Apache-2.0
"""Energy of an iteration from figures the user gives; there is no default, because every chip has its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EnergyCosts:
    """What things cost: picojoules each, and milliwatts that flow all the time. `source` says who measured.

    An instruction and a stalled cycle are those of one core. A DMA byte is one moved to or from L1.
    """

    source: str
    instruction_pj: float = 0.0
    stall_cycle_pj: float = 0.0
    dma_byte_pj: float = 0.0
    static_mw: float = 0.0

    def energy_nj(self, instructions: int, stall_cycles: int, dma_bytes: int, seconds: float) -> float:
        """Energy in nanojoules; `stall_cycles` are core-cycles in which nothing was issued."""
        dynamic_pj = (
            instructions * self.instruction_pj
            + stall_cycles * self.stall_cycle_pj
            + dma_bytes * self.dma_byte_pj
        )
        # 1 mW for 1 s is 1e6 nJ.
        return dynamic_pj / 1000 + self.static_mw * seconds * 1e6

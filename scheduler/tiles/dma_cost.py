# SPDX-License-Identifier: Apache-2.0
"""What moving boxes costs the DMA engines and the master core, by the DMA's own model, to rank tilings."""

from __future__ import annotations

from arch.blocks.bursts import IDLE, BurstRules, bursts_of, run_command
from arch.blocks.l2 import shared_l2_links
from arch.spec.program import Command
from arch.spec.timing import SocTiming
from arch.systemc.clock import Clock

FEW_LINES, MANY_LINES = 4, 12
"""Lines of the two commands whose difference is the pace of further lines."""


class DmaCost:
    """Cycles of transfers between L2 and L1 on an idle DMA, remembered by line length."""

    def __init__(self, timing: SocTiming) -> None:
        self.timing = timing
        self._rules = BurstRules.of(timing.dma, timing.l1.word_bytes)
        soc = Clock("soc", timing.clock.soc_hz)
        cluster = Clock("cluster", timing.clock.cluster_hz)
        read, write = shared_l2_links(timing.l2, soc, cluster, timing.dma.burst_bytes)
        self._links = {True: read, False: write}
        self._first: dict[tuple[int, bool], int] = {}
        self._further: dict[tuple[int, bool], float] = {}

    def engine_cycles(self, line_bytes: int, lines: int, *, to_l1: bool) -> float:
        """One command from its first request to its last byte."""
        if line_bytes <= 0 or lines <= 0:
            return 0.0
        key = line_bytes, to_l1
        if key not in self._first:
            self._first[key] = self._run(line_bytes, 1, to_l1)
        if lines == 1:
            return float(self._first[key])
        return self._first[key] + (lines - 1) * self.line_cycles(line_bytes, to_l1=to_l1)

    def line_cycles(self, line_bytes: int, *, to_l1: bool) -> float:
        """What each further line of a command adds."""
        key = line_bytes, to_l1
        if key not in self._further:
            few, many = (self._run(line_bytes, lines, to_l1) for lines in (FEW_LINES, MANY_LINES))
            self._further[key] = (many - few) / (MANY_LINES - FEW_LINES)
        return self._further[key]

    def _run(self, line_bytes: int, lines: int, to_l1: bool) -> int:
        command = Command(to_l1, 0, "l2", 0, line_bytes, lines, max(line_bytes, self._rules.burst_bytes))
        bursts = bursts_of(command, self._rules)
        return run_command(bursts, IDLE, self._rules, self._links[to_l1], to_l1=to_l1)[0]

    def master_cycles(self, *, boxed: bool) -> int:
        """Address arithmetic of a box, programming and a wait that finds the transfer over."""
        dma = self.timing.dma
        code, first = (
            (dma.transfer_code_2d_cycles, dma.program_2d_cycles)
            if boxed
            else (dma.transfer_code_1d_cycles, dma.program_1d_cycles)
        )
        return code + first + dma.wait_done_cycles

# SPDX-License-Identifier: Apache-2.0
"""What moving boxes costs DMA, uDMA and the master core, by the engines' own models, to rank tilings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arch.blocks.bursts import IDLE, BurstRules, bursts_of, run_command
from arch.blocks.l2 import hyper_bus_cycles, shared_l2_links
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


class UdmaCost:
    """Cluster cycles of transfers between L3 and L2; each line of a box is a transfer of its own."""

    def __init__(self, timing: SocTiming) -> None:
        self.timing = timing
        self._peripheral = Clock("peripheral", timing.clock.peripheral_hz)
        self._cluster = Clock("cluster", timing.clock.cluster_hz)
        self._known: dict[int, int] = {}

    @property
    def set_up_cycles(self) -> int:
        """The master core, for one transfer: to program it and to notice its end."""
        return self.timing.l3.program_cycles + self.timing.l3.wake_cycles

    def bus_cycles(self, size_bytes: int) -> int:
        """The bus, for one transfer."""
        if size_bytes not in self._known:
            self._known[size_bytes] = hyper_bus_cycles(
                size_bytes, self.timing.l3, self._peripheral, self._cluster
            )
        return self._known[size_bytes]

    def lines_cycles(self, sizes_bytes: Sequence[int]) -> int:
        """One box of lines of these sizes, or a tensor as a whole: programmed, moved and noticed."""
        l3 = self.timing.l3
        return sum(l3.program_cycles + self.bus_cycles(size) for size in sizes_bytes) + l3.wake_cycles

    def box_cycles(self, line_bytes: NDArray[np.int64], lines: NDArray[np.int64]) -> NDArray[np.float64]:
        """The same for arrays of boxes of so many lines of one size."""
        lengths, inverse = np.unique(line_bytes, return_inverse=True)
        bus = np.array([self.bus_cycles(int(length)) for length in lengths], np.float64)
        l3 = self.timing.l3
        return np.asarray(lines * (bus[inverse.reshape(-1)] + l3.program_cycles) + l3.wake_cycles)

    def blocked_cycles(self, bus_cycles: float, lines: int) -> float:
        """Of a box's time on the bus, what the master spends in pushing its lines into the queue."""
        waiting = self.timing.l3.queued_transfers + 1
        return bus_cycles * max(0, lines - waiting) / max(1, lines)

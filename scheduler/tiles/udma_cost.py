# SPDX-License-Identifier: Apache-2.0
"""What streaming boxes from and to L3 costs the uDMA's bus and the master core, by the uDMA's own model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from arch.blocks.l2 import hyper_bus_cycles
from arch.spec.timing import SocTiming
from arch.systemc.clock import Clock


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

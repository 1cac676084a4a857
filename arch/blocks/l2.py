# SPDX-License-Identifier: Apache-2.0
"""The memories behind the cluster: shared L2 on the AXI link, and HyperRAM behind the uDMA."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from arch.blocks.bursts import Link
from arch.memories.memory import Storage
from arch.spec.timing import L2Timing, L3Timing
from arch.systemc.clock import Clock
from arch.systemc.module import Module


class ExternalMemory(Module):
    """A memory the DMA reaches over a link; bytes in `storage`, when the link is free in its state.

    With `full_duplex` reads and writes have a channel each, else they share one.
    """

    def __init__(
        self, parent: Module, name: str, storage: Storage, read: Link, write: Link, *, full_duplex: bool
    ) -> None:
        super().__init__(parent, name)
        self.storage = storage
        self._links = {True: read, False: write}
        self._full_duplex = full_duplex
        self._free = {True: 0, False: 0}

    def reset(self) -> None:
        """The links are free at cycle 0."""
        self._free = {True: 0, False: 0}

    def link(self, *, to_l1: bool) -> Link:
        """Latency and occupancy of the link in one direction."""
        return self._links[to_l1]

    def link_free(self, *, to_l1: bool) -> int:
        """First cycle in which the link takes a new burst."""
        return self._free[to_l1]

    def occupy(self, until_cycles: int, *, to_l1: bool) -> None:
        """The link is taken until `until_cycles`."""
        self._free[to_l1] = until_cycles
        if not self._full_duplex:
            self._free[not to_l1] = until_cycles


def shared_l2_links(timing: L2Timing, soc: Clock, cluster: Clock, burst_bytes: int) -> tuple[Link, Link]:
    """Read and write channel of L2, `link_bytes_per_cycle` wide each, in cycles of the SoC clock.

    A width of 0 puts no limit: then the L1 ports set the pace.
    """

    def link(latency_cycles: int) -> Link:
        width = timing.link_bytes_per_cycle
        beats = [-(-size // width) if width else 0 for size in range(burst_bytes + 1)]
        return Link(
            soc.cycles_in(latency_cycles, cluster), tuple(soc.cycles_in(count, cluster) for count in beats)
        )

    return link(timing.dma_read_latency_cycles), link(timing.dma_write_latency_cycles)


def shared_l2(
    parent: Module, timing: L2Timing, soc: Clock, cluster: Clock, burst_bytes: int
) -> ExternalMemory:
    """L2 with the channels of `shared_l2_links`."""
    read, write = shared_l2_links(timing, soc, cluster, burst_bytes)
    return ExternalMemory(parent, "l2", Storage("l2", timing.size_bytes), read, write, full_duplex=True)


def hyper_bus_cycles(size_bytes: int, timing: L3Timing, peripheral: Clock, cluster: Clock) -> int:
    """Cluster cycles the HyperBus is busy with a transfer of `size_bytes` in bursts of `burst_bytes`."""
    rate = _bus_rate(timing)
    whole, rest = divmod(size_bytes, timing.burst_bytes)
    cycles = whole * (timing.burst_setup_peripheral_cycles + ceil(timing.burst_bytes / rate))
    if rest:
        cycles += timing.burst_setup_peripheral_cycles + ceil(rest / rate)
    return peripheral.cycles_in(cycles, cluster)


def _bus_rate(timing: L3Timing) -> Fraction:
    return Fraction(timing.bytes_per_peripheral_cycle).limit_denominator(1 << 20)


def hyper_ram(
    parent: Module, timing: L3Timing, peripheral: Clock, cluster: Clock, burst_bytes: int
) -> ExternalMemory:
    """HyperRAM: every burst pays its set-up and moves at a fixed rate over one half-duplex link."""
    rate = _bus_rate(timing)
    setup = timing.burst_setup_peripheral_cycles
    busy = tuple(
        peripheral.cycles_in(setup + ceil(size / rate), cluster) if size else 0
        for size in range(burst_bytes + 1)
    )
    link = Link(0, busy)
    return ExternalMemory(parent, "l3", Storage("l3", timing.size_bytes), link, link, full_duplex=False)

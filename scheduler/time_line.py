# SPDX-License-Identifier: Apache-2.0
"""Whose cycles an iteration takes: each belongs to the kernel the team runs, or to a part of the machine.

The time line is that of the master core, which does or waits for something in every cycle of a program. A
cycle in which it computes, stalls included, belongs to the kernel. So does a cycle in which it waits at the
join of a kernel for slower cores, but for the wake-up at the end of each wait. All others belong to the
machine: to the part whose parameters say how long they take (`PARTS`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from arch.spec.program import Compute, Program, UdmaStart
from arch.spec.timing import SocTiming
from traces.events import COMPUTE
from traces.metrics import MasterTime
from traces.totals import summed

DMA, L3, TEAM, OFFLOAD = "DMA", "DMA and L3", "fork and join", "offload"

_DMA_PARAMETERS = (
    "dma",
    "l2.dma_read_latency_cycles",
    "l2.dma_write_latency_cycles",
    "l2.link_bytes_per_cycle",
)

PARTS: Mapping[str, tuple[str, ...]] = {
    DMA: _DMA_PARAMETERS,
    L3: (*_DMA_PARAMETERS, "l3"),
    TEAM: ("event_unit",),
    OFFLOAD: ("fc",),
}
"""The parts of the machine, and the parameters (or groups of them) their cycles come from.

A program that moves anything to or from L3 has `L3` in place of `DMA`: its waits are not told apart.
"""

_WORDS = {"dma_wait": DMA, "dma_program": DMA, "offload": OFFLOAD}
"""Stall word of the master -> part of the machine; all others are `TEAM`."""

TimeLine = tuple[tuple[bool, str, int], ...]
"""Entries (whether it is a kernel, name of the kernel or part, cycles), in that order, each name once."""


def kernels_of(program: Program) -> tuple[str, ...]:
    """Names of the kernels of a program, sorted."""
    return tuple(sorted({action.team.kernel for action in program.actions if isinstance(action, Compute)}))


def time_line(master: Iterable[MasterTime], cycles: int, program: Program, timing: SocTiming) -> TimeLine:
    """The time line of one run of a program that took `cycles`; its entries sum to them."""
    kernels = kernels_of(program)
    off_chip = any(isinstance(action, UdmaStart) for action in program.actions)
    cycles_of: dict[tuple[bool, str], int] = {}
    left_cycles = cycles

    def give(is_kernel: bool, name: str, given_cycles: int) -> None:
        nonlocal left_cycles
        left_cycles -= given_cycles
        cycles_of[is_kernel, name] = cycles_of.get((is_kernel, name), 0) + given_cycles

    for item in master:
        if item.kind == COMPUTE:
            give(True, item.what, item.cycles)
        elif item.kind == "barrier" and item.what in kernels:
            wake_cycles = min(item.slices * timing.event_unit.barrier_wake_cycles, item.cycles)
            give(True, item.what, item.cycles - wake_cycles)
            give(False, TEAM, wake_cycles)
        else:
            part = _WORDS.get(item.kind, TEAM)
            give(False, L3 if part == DMA and off_chip else part, item.cycles)
    give(False, OFFLOAD, left_cycles)
    return _in_order(cycles_of)


def calls_of(master: Iterable[MasterTime]) -> Mapping[str, int]:
    """How often the master ran each kernel, and as `DMA` how often it waited for transfers."""
    calls = {item.what: item.slices for item in master if item.kind == COMPUTE}
    return {**calls, DMA: sum(item.slices for item in master if item.kind == "dma_wait")}


def whole_line(lines: Iterable[tuple[TimeLine, int]]) -> TimeLine:
    """The time line of several programs, each run so many times."""
    return _in_order(
        summed(
            ((is_kernel, name), times * cycles) for line, times in lines for is_kernel, name, cycles in line
        )
    )


def whole_calls(calls: Iterable[tuple[Mapping[str, int], int]]) -> Mapping[str, int]:
    """The calls of several programs, each run so many times."""
    return summed((name, times * count) for one, times in calls for name, count in one.items())


def _in_order(cycles_of: Mapping[tuple[bool, str], int]) -> TimeLine:
    return tuple((*key, cycles) for key, cycles in sorted(cycles_of.items()) if cycles)

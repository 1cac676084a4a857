# SPDX-License-Identifier: Apache-2.0
"""A small SoC with round numbers for tests of the machine, a fake cost model and a recording tracer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from arch.blocks.soc import Soc
from arch.pricing.cost_model import CoreCost, TeamCost, Traffic
from arch.spec.isa import CoreWork, TeamWork
from arch.spec.program import (
    Action,
    Command,
    Compute,
    DmaStart,
    DmaWait,
    Effect,
    Place,
    Program,
    Release,
    TeamTransfer,
)
from arch.spec.timing import (
    ClockTiming,
    CoreTiming,
    DmaTiming,
    EventUnitTiming,
    FcTiming,
    FpuTiming,
    IcacheTiming,
    L1Timing,
    L2Timing,
    L3Timing,
    SocTiming,
)
from configs.values import replace
from traces.events import COMPUTE, Slice, TeamKernel, Work

OFFLOAD, COMPLETION = 100, 30
PROGRAM, PROGRAM_2D, PROGRAM_NEXT = 16, 18, 8
CHECK, DONE, SLEEP_MIN, WAKE = 9, 18, 29, 14
PUSH, MASTER, WORKER, JOIN, BARRIER = 7, 11, 13, 14, 6
COMMAND, BEAT = 2, 1
SETUP, L3_BURST, UDMA_PROGRAM, UDMA_WAKE = 19, 512, 60, 7
"""Constants of `soc_timing`, named as the terms of closed forms in the tests."""

DMA = DmaTiming(
    core_queue_commands=2,
    global_queue_commands=8,
    queued_until_cut=False,
    transfer_ids=16,
    burst_bytes=256,
    bursts_aligned=False,
    outstanding_bursts=8,
    l1_bytes_per_cycle=8,
    command_latency_cycles=COMMAND,
    first_beat_cycles=BEAT,
    read_burst_gap_cycles=0,
    write_burst_gap_cycles=1,
    read_short_burst_beats=0,
    write_short_burst_beats=0,
    short_burst_saved_cycles=0,
    max_command_1d_bytes=65532,
    max_command_2d_bytes=131068,
    program_1d_cycles=PROGRAM,
    program_2d_cycles=PROGRAM_2D,
    program_next_cycles=PROGRAM_NEXT,
    transfer_code_1d_cycles=20,
    transfer_code_2d_cycles=80,
    wait_check_cycles=CHECK,
    wait_done_cycles=DONE,
    wait_sleep_min_cycles=SLEEP_MIN,
    wait_wake_cycles=WAKE,
)

EVENT_UNIT = EventUnitTiming(
    barrier_wake_cycles=BARRIER,
    event_load_cycles=3,
    event_store_cycles=1,
    event_wake_cycles=4,
    fork_master_cycles=MASTER,
    fork_worker_cycles=WORKER,
    fork_push_cycles=PUSH,
    join_cycles=JOIN,
)


def soc_timing(cores: int = 8, dma: DmaTiming = DMA, **blocks: Any) -> SocTiming:
    """A SoC timed like GVSoC's pulp-open; `blocks` replaces whole blocks."""
    timing = SocTiming(
        name="fixture",
        profile="gvsoc",
        cores=cores,
        core=CoreTiming(1, 1, 2, 1, 5, 35, 2, 1, 1, 1, 4),
        fpu=FpuTiming(4, "static", "in_order", 1, 1, 1, 1, 14, 14, 14),
        icache=IcacheTiming(16, 512, 4, 2, 4096, 4, 18, 0, 0, 0, 6, 22, 4, 20, 2),
        l1=L1Timing(64 * 1024, 16, 4, False, "in_order", 2048, 1024, 0),
        l2=L2Timing(512 * 1024, 15, 0, 0, 0, 0, 12, 26, True),
        l3=L3Timing(64 * 1024, 1.0, SETUP, L3_BURST, 2, UDMA_PROGRAM, UDMA_WAKE),
        dma=dma,
        event_unit=EVENT_UNIT,
        fc=FcTiming(OFFLOAD, COMPLETION),
        clock=ClockTiming(50_000_000, 50_000_000, 50_000_000),
    )
    return replace(timing, **blocks)


def team(kernel: str, cores: int) -> TeamWork:
    """A team whose work is empty: the fake cost model goes by the name of the kernel."""
    return TeamWork(kernel, (CoreWork(()),) * cores)


@dataclass
class FixedCostModel:
    """Costs by kernel name: cycles of the slowest core; core i is `skew` x i cycles faster.

    One cycle in four is a load-use stall. DMA traffic multiplies cycles by `slowdown` (integer), the extra
    ones being bank conflicts.
    """

    cycles: dict[str, int]
    skew: int = 0
    slowdown: int = 1
    asked: list[tuple[str, Traffic]] = field(default_factory=list)

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        self.asked.append((work.kernel, traffic))
        factor = 1 if traffic is Traffic.NONE else self.slowdown
        costs = []
        for core, share in enumerate(work.cores):
            base = 0 if share is None else max(0, self.cycles[work.kernel] - self.skew * core)
            load_use = base // 4
            stalls = (("load_use", load_use), ("bank_conflict", base * (factor - 1)))
            costs.append(CoreCost(base * factor, base - load_use, stalls))
        return TeamCost(tuple(costs))


@dataclass
class Recorder:
    """A tracer that keeps slices and counters in order."""

    slices: list[Slice] = field(default_factory=list)
    counters: list[tuple[str, str, int, int]] = field(default_factory=list)

    def slice(self, event: Slice) -> None:
        self.slices.append(event)

    def team(self, kernel: TeamKernel) -> None:
        self.slices.extend(kernel.slices())

    def counter(self, track: str, name: str, time_cycles: int, value: int) -> None:
        self.counters.append((track, name, time_cycles, value))

    def track(self, path: str) -> list[tuple[int, int, str]]:
        """(start, end, kind) of one track, in time order."""
        found = [(s.start_cycles, s.end_cycles, s.kind) for s in self.slices if s.track == path]
        return sorted(found)

    def compute(self, path: str) -> list[Slice]:
        """Compute slices of one track."""
        return [s for s in self.slices if s.track == path and s.kind == COMPUTE]


class Script:
    """Writes a program action by action; every method returns the id of the action."""

    def __init__(self) -> None:
        self.actions: list[Action] = []

    def start(self, *commands: Command, deps: tuple[int, ...] = (), tile: int = -1) -> int:
        work = Work("op", "FW", tile, "buffer")
        return self._add(DmaStart(len(self.actions), deps, work, commands))

    def wait(self, transfer: int, deps: tuple[int, ...] = ()) -> int:
        return self._add(DmaWait(len(self.actions), deps, Work("op", "FW"), transfer))

    def compute(
        self,
        work: TeamWork,
        *,
        fork: bool = True,
        effect: Effect | None = None,
        deps: tuple[int, ...] = (),
        tile: int = -1,
    ) -> int:
        label = Work("op", "FW", tile, work.kernel)
        return self._add(Compute(len(self.actions), deps, label, work, fork, effect))

    def team_transfer(self, *commands: tuple[Command, ...]) -> int:
        return self._add(TeamTransfer(len(self.actions), (), Work("op", "FW"), commands))

    def release(self, *places: Place, deps: tuple[int, ...] = ()) -> int:
        return self._add(Release(len(self.actions), deps, Work("op", "FW"), places))

    def program(self) -> Program:
        return Program("test", tuple(self.actions))

    def _add(self, action: Action) -> int:
        self.actions.append(action)
        return action.id


def read(l1: int, l2: int, size_bytes: int, lines: int = 1, stride_bytes: int = 0) -> Command:
    """L2 to L1."""
    return Command(True, l1, "l2", l2, size_bytes, lines, stride_bytes)


def write(l1: int, l2: int, size_bytes: int, lines: int = 1, stride_bytes: int = 0) -> Command:
    """L1 to L2."""
    return Command(False, l1, "l2", l2, size_bytes, lines, stride_bytes)


def elementwise(source: Place, destination: Place, function: Callable[[np.ndarray], np.ndarray]) -> Effect:
    """An effect with one array in and one out."""

    def apply(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return [function(arrays[0])]

    return Effect((source,), (destination,), apply)


def transfer_cycles(command: Command, timing: SocTiming | None = None) -> int:
    """From the first command word to the end of the wait, on the master alone."""
    script = Script()
    script.wait(script.start(command))
    _, tracer, _ = run(script.program(), timing=timing)
    return max(end for _, end, kind in tracer.track("soc.cluster.core0") if kind == "dma_wait") - OFFLOAD


def run(
    program: Program,
    cost_model: FixedCostModel | None = None,
    timing: SocTiming | None = None,
    *,
    detect_races: bool = True,
) -> tuple[int, Recorder, Soc]:
    """(cycles, what was traced, the SoC) of a program."""
    tracer = Recorder()
    soc = Soc(timing or soc_timing(), cost_model or FixedCostModel({}), tracer, detect_races=detect_races)
    return soc.run(program).cycles, tracer, soc

# SPDX-License-Identifier: Apache-2.0
"""What is counted while a program runs is what `measure` says of its slices, and what each cycle says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traces.recorder
from arch.blocks.soc import Soc, core_paths
from arch.spec.isa import CoreWork, TeamWork
from arch.spec.program import (
    Action,
    Compute,
    DmaStart,
    DmaWait,
    Program,
    TeamTransfer,
    UdmaCommand,
    UdmaStart,
    UdmaWait,
)
from scheduler.counted_run import CountedRun
from shared.soc_fixture import FixedCostModel, read, soc_timing, write
from traces.causes import DMA_OUT, L3
from traces.events import COMPUTE, TRANSFER, Slice, Work
from traces.metrics import Metrics, check_tracks, measure
from traces.tracks import op_label

CORES = 4
KERNELS = {"short": 9, "long": 170, "none": 0}
TIMING = soc_timing(CORES)


def random_program(seed: int) -> Program:
    """Transfers both ways and from L3, waited for late or never, kernels of any team; few names for all."""
    random = Random(seed)
    actions: list[Action] = []
    begun: list[DmaStart | UdmaStart] = []

    def work() -> Work:
        op = random.choice(("conv", "conv.FW", "fc", ""))
        return Work(op, "FW" if op else "", random.randrange(-1, 3), random.choice("xy"))

    def command():
        move = random.choice((read, write))
        return move(64 * random.randrange(8), 64 * random.randrange(8), random.choice((4, 60, 900)))

    for number in range(random.randrange(1, 40)):
        kind = random.randrange(7)
        if kind == 0 and len(begun) < 6:
            begun.append(DmaStart(number, (), work(), tuple(command() for _ in range(random.randrange(4)))))
            actions.append(begun[-1])
        elif kind == 1 and len(begun) < 6:
            move = UdmaCommand(random.random() < 0.5, 0, 0, random.choice((8, 300)))
            begun.append(UdmaStart(number, (), work(), (move,)))
            actions.append(begun[-1])
        elif kind in (2, 3) and begun:
            start = begun.pop(random.randrange(len(begun)))
            label = start.work if random.random() < 0.8 else work()
            wait = DmaWait if isinstance(start, DmaStart) else UdmaWait
            actions.append(wait(number, (), label, start.id))
        elif kind == 4:
            of_cores = tuple(tuple(command() for _ in range(random.randrange(3))) for _ in range(CORES))
            actions.append(TeamTransfer(number, (), work(), of_cores))
        else:
            members = random.choice(({0}, {0, 1, 2, 3}, {0, 1, 2, 3}, {1, 2}, {0, 3}, {3}))
            shares = tuple(CoreWork(()) if core in members else None for core in range(CORES))
            fork = members != {0} or random.random() < 0.5
            team = TeamWork(random.choice(list(KERNELS)), shares)
            actions.append(Compute(number, (), work(), team, fork))
    return Program("random", tuple(actions))


class Told:
    """Hands a SoC's tracer calls to the recorder of a run."""

    def __init__(self, program: Program, *, traced: bool) -> None:
        soc = Soc(TIMING, FixedCostModel(KERNELS, skew=3, slowdown=2), self, detect_races=False)
        self.run = CountedRun(program, core_paths(TIMING), traced=traced)
        self.slice, self.team = self.run.recorder.slice, self.run.recorder.team
        self.counter = self.run.recorder.counter
        self.result = soc.run(program, effects=False, logged=False)

    def metrics(self) -> Metrics:
        return self.run.metrics(self.result.cycles)


@pytest.mark.parametrize("at_a_time", [1, 2, 7, 4096])
@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.integers(0, 2**32))
def test_a_run_counted_as_it_goes_on_is_its_slices_measured(at_a_time: int, seed: int) -> None:
    program = random_program(seed)
    traced = Told(program, traced=True)
    slices, cycles = traced.run.recorder.slices, traced.result.cycles
    check_tracks(slices, cycles)
    measured = measure(slices, cycles)
    before, traces.recorder._AT_A_TIME = traces.recorder._AT_A_TIME, at_a_time
    counted = Told(program, traced=False)
    traces.recorder._AT_A_TIME = before
    assert counted.result.cycles == cycles
    assert counted.metrics() == measured == traced.metrics()
    assert not counted.run.recorder.records
    assert not counted.result.effect_log.entries
    assert_as_told_by_cycles(measured, slices, cycles)


def assert_as_told_by_cycles(metrics: Metrics, slices: Sequence[Slice], cycles: int) -> None:
    """Look at every cycle of every core alone."""
    masters = [event for event in slices if event.track.endswith("core0")]
    owners = owner_by_cycle(masters, cycles)
    meanwhile = cause_by_cycle(masters, slices)
    stalls: dict[str, Counter[str]] = defaultdict(Counter)
    waits: dict[str, Counter[str]] = defaultdict(Counter)
    for event in slices:
        if "core" in event.track.rsplit(".", 1)[-1] and event.kind != COMPUTE:
            wait = cause_of_wait(event, slices) if event.kind == "dma_wait" else None
            for cycle in range(event.start_cycles, event.end_cycles):
                stalls[owners[cycle]][event.kind] += 1
                if event.kind in ("dma_wait", "idle"):
                    waits[owners[cycle]][wait or meanwhile[cycle]] += 1
    inner = {"load_use", "bank_conflict"}
    for op in metrics.ops:
        assert op.cycles == owners.count(op.name)
        assert {word: count for word, count in op.stalls if word not in inner} == stalls[op.name]
        assert op.busy_cycles + sum(dict(op.stalls).values()) == CORES * op.cycles
        for cause in ("dma_in", "dma_out", "l3", "serial", "no_rows"):
            assert op.causes[cause] == waits[op.name][cause]
        of_op = [event for event in slices if op_label(event.work.op, event.work.step) == op.name]
        assert op.instructions == sum(event.instructions for event in of_op)
        assert op.bytes_in + op.bytes_out == sum(event.bytes for event in of_op if ".dma." in event.track)
    moving = {
        cycle
        for event in slices
        if event.kind == TRANSFER and ".dma." in event.track
        for cycle in range(event.start_cycles, min(event.end_cycles, cycles))
    }
    assert metrics.utilisation["dma"] == len(moving) / cycles


def owner_by_cycle(masters: Sequence[Slice], cycles: int) -> list[str]:
    """By cycle the op it belongs to, by the rule `traces.metrics` states."""
    named = [event for event in masters if event.work.op]
    owners = [""] * cycles
    op = op_label(named[0].work.op, named[0].work.step) if named else ""
    for event in masters:
        if not named or not named[0].start_cycles <= event.start_cycles <= named[-1].start_cycles:
            continue
        if event.kind != "offload":
            op = op_label(event.work.op, event.work.step) if event.work.op else op
            owners[event.start_cycles : event.end_cycles] = [op] * event.duration_cycles
    return owners


def cause_by_cycle(masters: Sequence[Slice], slices: Sequence[Slice]) -> Mapping[int, str]:
    """By cycle what a core without work waits for."""
    causes: dict[int, str] = {}
    for number, event in enumerate(masters):
        cause = {"barrier": "no_rows", "idle": "offload"}.get(event.kind, event.kind)
        if event.kind == "dma_wait":
            cause = cause_of_wait(event, slices)
        elif event.kind == COMPUTE:
            before, after = masters[number - 1], masters[number + 1]
            joined = before.kind == "fork" and after.kind in ("barrier", "fork")
            same = before.work == event.work == after.work
            cause = "no_rows" if joined and same else "serial"
        causes |= dict.fromkeys(range(event.start_cycles, event.end_cycles), cause)
    return causes


def cause_of_wait(wait: Slice, slices: Sequence[Slice]) -> str:
    """L3 if the uDMA was still at it and the DMA had not begun, else the way of what moved first."""
    moved = [event for event in slices if event.kind == TRANSFER and event.work == wait.work]
    first = min(
        (event for event in moved if ".dma." in event.track),
        key=lambda event: (event.start_cycles, event.track.endswith("out")),
        default=None,
    )
    if first is None:
        return L3
    over = max((event.end_cycles for event in moved if event.track.endswith("udma")), default=0)
    if over > wait.start_cycles and first.start_cycles >= wait.end_cycles:
        return L3
    return DMA_OUT if first.track.endswith("out") else "dma_in"


def test_the_tracks_of_the_cores_are_known_before_there_is_a_soc() -> None:
    for cores in (1, 4):
        timing = soc_timing(cores)
        soc = Soc(timing, FixedCostModel({}))
        assert core_paths(timing) == tuple(core.path for core in soc.cluster.cores)

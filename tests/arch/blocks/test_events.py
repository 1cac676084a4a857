# SPDX-License-Identifier: Apache-2.0
"""What is worked out at once takes as long, and is seen as, what is simulated event by event."""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.blocks.dma import Dma, Transfer
from arch.blocks.soc import Soc
from arch.pricing.cost_model import CoreCost, DmaService, TeamCost, Traffic
from arch.spec.isa import CoreWork, TeamWork
from arch.spec.program import Action, Command, Compute, DmaStart, DmaWait, Program, Release, Work
from arch.spec.timing import SocTiming
from configs.errors import DeadlockError
from configs.values import replace
from shared.soc_fixture import DMA, Script, read, soc_timing, write
from shared.tiers import examples
from traces.recorder import Recorder

QUEUES = [
    replace(
        DMA,
        core_queue_commands=of_core,
        global_queue_commands=of_all,
        queued_until_cut=until_cut,
        read_burst_gap_cycles=2,
    )
    for of_core, of_all, until_cut in [(1, 1, True), (2, 1, True), (1, 2, True), (1, 1, False), (2, 8, False)]
]
"""Queues as RTL has them, as GVSoC has them, and between."""


class SlowBesideDma:
    """A kernel takes half as long again beside the DMA, and holds it up."""

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        cycles = 1500 if traffic else 1000
        pace = DmaService(
            (100, 90) if traffic & Traffic.IN else None, (100, 130) if traffic & Traffic.OUT else None
        )
        return TeamCost((CoreCost(cycles, cycles),) * len(work.cores), pace)

    def least_cycles(self, work: TeamWork) -> int:
        return 0


COMMAND = st.builds(
    lambda inward, level, size, lines: replace(
        (read if inward else write)(0, 0, size, lines, 1024 if lines > 1 else 0), external_level=level
    ),
    st.booleans(),
    st.sampled_from(["l2", "l2", "l2", "l3"]),
    st.sampled_from([4, 8, 100, 256, 1000]),
    st.sampled_from([1, 1, 3]),
)
STEP = st.tuples(st.lists(COMMAND, max_size=6), st.sampled_from(["go on", "compute", "wait", "wait for all"]))


def program_of(steps: list[tuple[list[Command], str]]) -> Program:
    """Transfers, and after each a kernel or a wait for the oldest, for all, or nothing."""
    script = Script()
    begun: list[int] = []
    team = TeamWork("k", (CoreWork(()),) * 4)
    for commands, after in steps:
        begun.append(script.start(*commands))
        if after == "compute":
            script.compute(team)
        while begun and after in ("wait", "wait for all"):
            script.wait(begun.pop(0))
            if after == "wait":
                break
    for transfer in begun:
        script.wait(transfer)
    return script.program()


def seen(program: Program, timing: SocTiming) -> tuple[int, int, object, object]:
    """Events, cycles, slices and counters of a run."""
    tracer = Recorder()
    result = Soc(timing, SlowBesideDma(), tracer, detect_races=False).run(program, effects=False)
    return result.events, result.cycles, tracer.slices, tracer.counters


@examples(300, derandomize=True, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=8), st.sampled_from(QUEUES))
def test_commands_taken_ahead_are_taken_when_they_would_be_one_by_one(steps, queues):
    program, timing = program_of(steps), soc_timing(4, queues)
    events, *ahead = seen(program, timing)

    def none_ahead(self, master, commands, transfer, begin_cycles, cycles):
        return 0, begin_cycles + sum(cycles[:1])

    with (
        patch.object(Dma, "push_ahead", none_ahead),
        patch.object(Transfer, "certain_end_cycles", lambda self, now: None),
    ):
        more_events, *one_by_one = seen(program, timing)
    assert ahead == one_by_one
    assert events <= more_events


@examples(300, derandomize=True, deadline=None)
@given(
    st.lists(STEP, min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=4, max_size=16),
    st.sampled_from(QUEUES),
    st.sampled_from([2, 16]),
)
def test_what_has_been_run_from_rest_to_rest_takes_as_long_when_it_is_passed_over(
    kinds, order, queues, transfer_ids
):
    """Some steps come again and again; a machine that has seen them, or others, says what a new one says."""
    timing = soc_timing(4, replace(queues, transfer_ids=transfer_ids))
    steps = [kinds[kind % len(kinds)] for kind in order]
    machine = Soc(timing, SlowBesideDma(), detect_races=False)
    for some in (steps, steps[1:], steps):
        program = program_of(some)
        try:
            whole = Soc(timing, SlowBesideDma(), detect_races=False).run(program, effects=False)
        except DeadlockError as error:
            with pytest.raises(DeadlockError, match=re.escape(str(error))):
                machine.run(program, effects=False, logged=False)
            continue
        again = machine.run(program, effects=False, logged=False)
        assert again.cycles == whole.cycles
        assert again.events <= whole.events


def test_what_an_action_waits_for_decides_whether_it_is_like_one_before() -> None:
    """The same actions but for what they depend on, and one action in two programs."""
    timing = soc_timing(4, QUEUES[0])

    def program_with(actions: list[Action]) -> Program:
        return Program("test", tuple(actions))

    def cycles(machine: Soc, actions: list[Action]) -> int:
        return machine.run(program_with(actions), effects=False, logged=False).cycles

    work = Work("op", "FW")
    long, short = (read(0, 0, 4096),), (read(0, 0, 64),)
    waits = [DmaWait(3, (), work, 0), DmaWait(4, (), work, 2)]
    released = [
        [DmaStart(0, (), work, long), Release(1, deps, work), DmaStart(2, (), work, short), *waits]
        for deps in ((), (0,))
    ]
    shared = DmaStart(1, (0,), work, short)
    kernel = Compute(0, (), work, TeamWork("k", (CoreWork(()),) * 4), True, None)
    behind = [DmaWait(2, (), work, 1)]
    begun = [
        [kernel, shared, *behind],
        [DmaStart(0, (), work, long), shared, *behind, DmaWait(3, (), work, 0)],
        [DmaStart(0, (), work, long), DmaStart(1, (), work, short), *behind, DmaWait(3, (), work, 0)],
    ]
    for programs in (released, released[::-1], begun, begun[::-1]):
        machine = Soc(timing, SlowBesideDma(), detect_races=False)
        together = [cycles(machine, actions) for actions in programs]
        alone = [cycles(Soc(timing, SlowBesideDma(), detect_races=False), actions) for actions in programs]
        assert together == alone
        assert together[-1] != together[-2]


def test_tiles_like_one_before_are_no_events() -> None:
    """Loaded beside the kernel of the tile before: from the end of a kernel on all is as it was."""

    def events(tiles: int) -> int:
        program = program_of([([read(0, 0, 256)], "compute"), ([], "wait for all")] * tiles)
        return (
            Soc(soc_timing(4, QUEUES[0]), SlowBesideDma(), detect_races=False)
            .run(program, effects=False, logged=False)
            .events
        )

    assert events(1) < events(2) <= events(3) == events(10)


def test_what_nobody_sees_is_no_event() -> None:
    """Of a kernel alone the master goes on; beside a transfer its first core begins, its last ends, and the
    transfer has another end each time. Of a transfer: its commands are pushed, the master goes on."""

    def events(*commands: Command, kernels: int = 0, beside: int = 0) -> int:
        script = Script()
        if beside:
            transfer = script.start(*[read(0, 0, 32_768) for _ in range(4)])
            for _ in range(beside):
                script.compute(TeamWork("k", (CoreWork(()),) * 4))
            script.wait(transfer)
        for _ in range(kernels):
            script.compute(TeamWork("k", (CoreWork(()),) * 4))
        if commands:
            script.wait(script.start(*commands))
        return seen(script.program(), soc_timing(4, QUEUES[0]))[0]

    assert events(kernels=2) - events(kernels=1) == 1
    assert events(beside=2) - events(beside=1) == 5
    assert events(read(0, 0, 64)) - events() == 2
    assert events(read(0, 0, 64), read(64, 64, 64)) - events() == 2

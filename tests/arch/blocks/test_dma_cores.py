# SPDX-License-Identifier: Apache-2.0
"""DMA programmed by every core, cut into bursts, and never slower for better hardware."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.blocks.bursts import BurstRules, EngineState, Link, bursts_of, run_command
from arch.blocks.soc import Soc
from arch.spec.program import Command, Place, Program, TeamTransfer
from arch.spec.timing import L2Timing
from configs.values import replace
from shared.soc_fixture import (
    DMA,
    EVENT_UNIT,
    OFFLOAD,
    PROGRAM,
    PUSH,
    WAKE,
    WORKER,
    FixedCostModel,
    read,
    run,
    soc_timing,
    transfer_cycles,
    write,
)
from shared.tiers import examples

# Rows of dma.csv, test multi_core_1_each, no bank conflicts: every core programs a transfer and waits for it.
# (to L1?, bytes, cores, cycles)
MEASURED_MULTI_CORE = [
    (True, 128, 2, 64),
    (True, 2048, 2, 544),
    (True, 128, 4, 96),
    (True, 256, 4, 160),
    (True, 4096, 4, 2080),
    (True, 128, 8, 160),
    (True, 512, 8, 544),
    (False, 128, 2, 65),
    (False, 256, 4, 163),
    (False, 256, 8, 295),
]


@pytest.mark.parametrize(("to_l1", "size", "cores", "cycles"), MEASURED_MULTI_CORE)
def test_cores_that_program_one_transfer_each_take_the_measured_cycles(
    to_l1: bool, size: int, cores: int, cycles: int
) -> None:
    commands = tuple((Command(to_l1, size * core, "l2", size * core, size),) for core in range(cores))
    program = Program("test", (TeamTransfer(0, commands=commands),))
    # All cores begin in the same cycle, as behind the barrier of the measured program.
    together = replace(EVENT_UNIT, fork_master_cycles=PUSH + WORKER)
    timing = soc_timing(event_unit=together)
    _, tracer, _ = run(program, timing=timing)
    begun = OFFLOAD + PUSH + WORKER
    ends = []
    for core in range(cores):
        track = tracer.track(f"soc.cluster.core{core}")
        assert (begun, begun + PROGRAM, "dma_program") in track
        ends += [end for _, end, kind in track if kind == "dma_wait"]
    assert len(ends) == cores
    assert max(ends) - begun == pytest.approx(cycles, abs=1)


def test_every_core_has_a_queue_of_its_own() -> None:
    # One command each fits everywhere, so nobody waits although one core could not have queued them all.
    small = replace(DMA, core_queue_commands=1, global_queue_commands=1)
    commands = tuple((read(256 * core, 256 * core, 256),) for core in range(8))
    _, tracer, _ = run(Program("test", (TeamTransfer(0, commands=commands),)), timing=soc_timing(dma=small))
    for core in range(8):
        durations = [
            end - start
            for start, end, kind in tracer.track(f"soc.cluster.core{core}")
            if kind == "dma_program"
        ]
        assert durations == [PROGRAM]


def test_cores_wait_for_a_free_id_and_all_get_one() -> None:
    few = replace(DMA, transfer_ids=2)
    commands = tuple((read(512 * core, 512 * core, 256), read(512 * core + 256, 0, 256)) for core in range(8))
    _, tracer, _ = run(Program("test", (TeamTransfer(0, commands=commands),)), timing=soc_timing(dma=few))
    assert len(tracer.track("soc.cluster.dma.in")) == 16


def test_a_team_transfer_moves_bytes_and_joins() -> None:
    soc = Soc(soc_timing(), FixedCostModel({}))
    values = np.arange(8 * 16, dtype=np.float32)
    soc.load(Place("l2", 0, values.shape), values)
    inward = tuple((read(64 * core, 64 * core, 64),) for core in range(8))
    outward = tuple((write(64 * core, 4096 + 64 * (7 - core), 64),) for core in range(8))
    actions = (TeamTransfer(0, commands=inward), TeamTransfer(1, commands=outward))
    soc.run(Program("test", actions))
    assert np.array_equal(soc.fetch(Place("l2", 4096, (8, 16))), values.reshape(8, 16)[::-1])


@pytest.mark.parametrize(
    ("external", "line", "stride", "bursts"),
    [
        (0, 600, 0, [256, 256, 88]),
        (200, 600, 0, [56, 256, 256, 32]),
        (255, 2, 0, [1, 1]),
        (200, 100, 300, [56, 44, 12, 88, 100]),
    ],
)
def test_aligned_bursts_end_at_multiples_of_their_largest_size(
    external: int, line: int, stride: int, bursts: list[int]
) -> None:
    # The lines of the last case begin at 200, 500 and 800; 256, 512 and 1024 are multiples of the burst.
    command = Command(True, 0, "l2", external, line, 3 if stride else 1, stride)
    aligned = BurstRules.of(replace(DMA, bursts_aligned=True), 4)
    cut = BurstRules.of(DMA, 4)
    assert [size for size, _ in bursts_of(command, aligned)] == bursts
    assert bursts_of(command, cut)[0][0] == min(256, line)


LINES = st.sampled_from([4, 12, 64, 100, 256, 700])


@examples(200)
@given(st.booleans(), LINES, st.integers(1, 12), st.integers(0, 300), st.booleans())
def test_less_latency_or_more_bandwidth_is_never_slower(
    to_l1: bool, line: int, lines: int, offset: int, aligned: bool
) -> None:
    """Of one isolated transfer: every parameter that is a latency or a width, changed one by one."""
    command = Command(to_l1, 4096 + offset, "l2", offset, line, lines, line + 24)
    dma = replace(DMA, bursts_aligned=aligned, command_latency_cycles=3, first_beat_cycles=2)
    l2 = L2Timing(1 << 20, 15, 0, 20, 20, 4, 12, 26, True)

    def cycles(dma=dma, l2=l2) -> int:  # type: ignore[no-untyped-def]
        return transfer_cycles(command, soc_timing(dma=dma, l2=l2))

    here = cycles()
    faster = {
        "command_latency_cycles": 2,
        "first_beat_cycles": 1,
        "write_burst_gap_cycles": 0,
        "outstanding_bursts": 16,
        "l1_bytes_per_cycle": 16,
        "program_1d_cycles": PROGRAM - 1,
        "program_2d_cycles": PROGRAM - 1,
        "wait_wake_cycles": WAKE - 1,
    }
    for name, value in faster.items():
        assert cycles(dma=replace(dma, **{name: value})) <= here, name
    for name, value in {"dma_read_latency_cycles": 19, "dma_write_latency_cycles": 7}.items():
        assert cycles(l2=replace(l2, **{name: value})) <= here, name
    for wider in (8, 0):
        assert cycles(l2=replace(l2, link_bytes_per_cycle=wider)) <= here


@given(st.integers(1, 40), st.integers(1, 40), st.booleans(), LINES, st.integers(1, 12))
def test_a_slower_l1_is_never_faster_and_full_pace_is_no_pace(
    words: int, cycles: int, to_l1: bool, line: int, lines: int
) -> None:
    rules, link = BurstRules.of(DMA, 4), Link(10, (0,) * 257)
    bursts = bursts_of(Command(to_l1, 0, "l2", 0, line, lines, 1024), rules)

    def end(pace: tuple[int, int] | None) -> int:
        return run_command(bursts, EngineState(), rules, link, to_l1=to_l1, pace=pace)[0]

    assert end((2, 1)) == end(None)
    if words <= 2 * cycles:
        assert end((words, cycles)) >= end(None)
    assert end((words, cycles + 1)) >= end((words, cycles))


@pytest.mark.parametrize("to_l1", [True, False])
def test_a_pace_adds_up_over_bursts_and_is_not_rounded_in_each(to_l1: bool) -> None:
    """32 bursts of 64 words: one cycle in 64 more is half a cycle a burst, 16 in all."""
    dma = replace(DMA, read_burst_gap_cycles=2, write_burst_gap_cycles=3)
    rules, link = BurstRules.of(dma, 4), Link(10, (0,) * 257)
    bursts = bursts_of(Command(to_l1, 0, "l2", 0, 8192), rules)

    def end(pace: tuple[int, int] | None) -> int:
        return run_command(bursts, EngineState(), rules, link, to_l1=to_l1, pace=pace)[0]

    assert len(bursts) == 32
    assert end((128, 65)) - end(None) == 16
    # A burst of 3 words still takes two whole beats.
    odd = bursts_of(Command(to_l1, 0, "l2", 0, 12, 8, 1024), rules)
    ends = [
        run_command(odd, EngineState(), rules, link, to_l1=to_l1, pace=pace)[0] for pace in (None, (4, 2))
    ]
    assert ends[0] == ends[1]

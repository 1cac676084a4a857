# SPDX-License-Identifier: Apache-2.0
"""The cluster DMA: cycles measured on the reference simulator, queues, IDs, and bytes that really move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.blocks.bursts import BurstRules, EngineState, Link, bursts_of, run_command
from arch.blocks.soc import Soc
from arch.spec.program import Command, Place
from arch.spec.timing import L2Timing
from configs.errors import DeadlockError, InputError
from configs.values import replace
from shared.soc_fixture import (
    BEAT,
    COMMAND,
    DMA,
    OFFLOAD,
    PROGRAM,
    PROGRAM_NEXT,
    WAKE,
    FixedCostModel,
    Recorder,
    Script,
    read,
    run,
    soc_timing,
    transfer_cycles,
    write,
)
from traces.events import TRANSFER

# Rows of dma.csv, tests 1d and 1d_misaligned: GVSoC (gvsoc 209c147, core f3784bc, pulp 748a706), pulp-open,
# no bank conflicts; cycles from the first command word to the end of the wait on one core.
# (to L1?, bytes, L1 offset, cycles)
MEASURED_1D = [
    (True, 8, 0, 34),
    (True, 12, 0, 34),
    (True, 32, 0, 34),
    (True, 48, 0, 34),
    (True, 96, 0, 45),
    (True, 128, 0, 48),
    (True, 192, 0, 56),
    (True, 256, 0, 64),
    (True, 512, 0, 96),
    (True, 1000, 0, 157),
    (True, 1024, 0, 160),
    (True, 3072, 0, 416),
    (True, 12288, 0, 1568),
    (True, 16384, 0, 2080),
    (True, 64, 1, 45),
    (True, 256, 1, 65),
    (True, 1024, 1, 162),
    (True, 1024, 4, 160),
    (False, 8, 0, 34),
    (False, 12, 0, 34),
    (False, 32, 0, 34),
    (False, 48, 0, 34),
    (False, 96, 0, 45),
    (False, 128, 0, 48),
    (False, 192, 0, 56),
    (False, 256, 0, 64),
    (False, 512, 0, 97),
    (False, 1000, 0, 160),
    (False, 1024, 0, 163),
    (False, 3072, 0, 427),
    (False, 12288, 0, 1615),
    (False, 16384, 0, 2143),
    (False, 1024, 2, 167),
]

# Rows of dma.csv, test 2d_stride1024, same source: a shorter instruction sequence, 7 cycles to program.
# (to L1?, bytes, line bytes, cycles)
MEASURED_2D = [
    (True, 256, 16, 53),
    (True, 1024, 4, 276),
    (True, 1024, 16, 149),
    (True, 4096, 8, 533),
    (True, 196, 28, 46),
    (True, 324, 36, 62),
    (True, 2916, 108, 386),
    (False, 256, 16, 68),
    (False, 1024, 4, 532),
    (False, 1024, 512, 152),
    (False, 4096, 8, 1044),
    (False, 196, 28, 55),
    (False, 324, 36, 74),
    (False, 2916, 108, 425),
]


@pytest.mark.smoke
@pytest.mark.parametrize(("to_l1", "size", "offset", "cycles"), MEASURED_1D)
def test_one_1d_transfer_takes_the_measured_cycles(to_l1: bool, size: int, offset: int, cycles: int) -> None:
    assert transfer_cycles(Command(to_l1, 4096 + offset, "l2", 0, size)) == pytest.approx(cycles, rel=0.01)


@pytest.mark.parametrize(("to_l1", "size", "line", "cycles"), MEASURED_2D)
def test_one_2d_transfer_takes_the_measured_cycles(to_l1: bool, size: int, line: int, cycles: int) -> None:
    short = replace(
        DMA, program_2d_cycles=7, wait_check_cycles=0, wait_wake_cycles=12, wait_sleep_min_cycles=0
    )
    command = Command(to_l1, 0, "l2", 0, line, size // line, 1024)
    assert transfer_cycles(command, soc_timing(dma=short)) == pytest.approx(cycles, abs=1)


def test_last_write_of_an_isolated_read_comes_two_cycles_and_half_the_words_after_the_command() -> None:
    script = Script()
    script.wait(script.start(read(0, 0, 1024)))
    _, tracer, _ = run(script.program())
    pushed = OFFLOAD + PROGRAM
    assert tracer.track("soc.cluster.dma.in") == [(pushed + COMMAND, pushed + 2 + 128, TRANSFER)]


def test_reads_queue_without_a_gap_and_writes_run_beside_them() -> None:
    script = Script()
    transfers = [
        script.start(read(0, 0, 4096)),
        script.start(read(4096, 4096, 1000)),
        script.start(write(8192, 8192, 256)),
    ]
    for transfer in transfers:
        script.wait(transfer)
    _, tracer, _ = run(script.program())
    first = OFFLOAD + PROGRAM + 2
    assert tracer.track("soc.cluster.dma.in") == [
        (first, first + 512, TRANSFER),
        (first + 512, first + 512 + 125, TRANSFER),
    ]
    third = OFFLOAD + 3 * PROGRAM + 2
    assert tracer.track("soc.cluster.dma.out") == [(third, third + 32, TRANSFER)]


def test_several_commands_under_one_id_are_one_transfer() -> None:
    script = Script()
    script.wait(script.start(read(0, 0, 1024), read(1024, 4096, 1024)))
    _, tracer, _ = run(script.program())
    end = OFFLOAD + PROGRAM + 2 + 128 + 128
    assert tracer.track("soc.cluster.core0")[1:3] == [
        (OFFLOAD, OFFLOAD + PROGRAM + PROGRAM_NEXT, "dma_program"),
        (OFFLOAD + PROGRAM + PROGRAM_NEXT, end + WAKE, "dma_wait"),
    ]


def test_a_full_queue_stalls_the_programming_core() -> None:
    # One command runs, two wait in the global queue, one in the core's queue: the fifth has to wait until
    # the first has ended, its successor has begun, and everybody behind has moved up.
    small = replace(DMA, core_queue_commands=1, global_queue_commands=2)
    script = Script()
    starts = [script.start(read(4096 * i, 4096 * i, 4096)) for i in range(5)]
    for start in starts:
        script.wait(start)
    _, tracer, _ = run(script.program(), timing=soc_timing(dma=small))
    first_end = OFFLOAD + PROGRAM + 2 + 512
    programming = [entry for entry in tracer.track("soc.cluster.core0") if entry[2] == "dma_program"]
    assert programming == [
        (OFFLOAD, OFFLOAD + PROGRAM, "dma_program"),
        (OFFLOAD + PROGRAM, OFFLOAD + 2 * PROGRAM, "dma_program"),
        (OFFLOAD + 2 * PROGRAM, OFFLOAD + 3 * PROGRAM, "dma_program"),
        (OFFLOAD + 3 * PROGRAM, OFFLOAD + 4 * PROGRAM, "dma_program"),
        (OFFLOAD + 4 * PROGRAM, OFFLOAD + 5 * PROGRAM, "dma_program"),
    ]
    assert (OFFLOAD + 5 * PROGRAM, first_end, "dma_wait") in tracer.track("soc.cluster.core0")
    ends = [end for _, end, _ in tracer.track("soc.cluster.dma.in")]
    assert ends == [first_end + 512 * i for i in range(5)]


def test_without_a_free_id_the_master_can_never_go_on() -> None:
    script = Script()
    for i in range(17):
        script.start(read(64 * i, 64 * i, 64))
    with pytest.raises(DeadlockError) as caught:
        run(script.program())
    waiting = dict(caught.value.waiting)
    assert waiting["soc.cluster.core0"] == "a free DMA transfer ID (all 16 are taken)"
    assert waiting["soc.fc"] == "the end of program test"
    assert waiting["soc.cluster.core7"] == "a task from the dispatch FIFO"


def test_waiting_frees_the_id() -> None:
    script = Script()
    for i in range(40):
        script.wait(script.start(read(64 * i, 64 * i, 64)))
    assert run(script.program())[0] > 0


def test_latency_hides_behind_outstanding_bursts_but_not_for_short_lines() -> None:
    # Eight bursts of 256 B cover 256 cycles of latency, eight lines of 4 B cover eight.
    def cycles(latency: int, line: int) -> int:
        timing = soc_timing(l2=L2Timing(1 << 20, 15, 0, latency, 0, 8, 12, 26, True))
        return transfer_cycles(Command(True, 0, "l2", 0, line, 4096 // line, 1024), timing)

    assert cycles(40, 256) == cycles(0, 256) + 40
    assert cycles(40, 4) > 4 * cycles(0, 4)


def test_hyperram_is_slow_and_shared_by_both_directions() -> None:
    def timeline(*commands: Command) -> dict[str, list[tuple[int, int, str]]]:
        script = Script()
        starts = [script.start(command) for command in commands]
        for start in starts:
            script.wait(start)
        _, tracer, _ = run(script.program())
        return {name: tracer.track(f"soc.cluster.dma.{name}") for name in ("in", "out")}

    inward = Command(True, 0, "l3", 0, 512)
    outward = Command(False, 4096, "l3", 4096, 512)
    busy = 2 * (19 + 256)
    alone = timeline(inward)["in"][0]
    assert alone[1] - alone[0] == busy
    # The last byte of a read needs one more cycle from the link into L1 than that of a write.
    assert timeline(inward, outward)["out"][0][1] == alone[1] - BEAT + busy


def test_2d_gathers_lines_from_external_memory() -> None:
    soc = Soc(soc_timing(), FixedCostModel({}))
    matrix = np.arange(16 * 32, dtype=np.float32).reshape(16, 32)
    soc.load(Place("l2", 0, (16, 32)), matrix)
    script = Script()
    script.wait(script.start(read(512, 4 * (3 * 32 + 5), 4 * 7, 10, 4 * 32)))
    script.wait(script.start(write(512, 64 * 1024, 4 * 7, 10, 4 * 9)))
    soc.run(script.program())
    box = matrix[3:13, 5:12]
    assert np.array_equal(soc.fetch(Place("l1", 512, (10, 7))), box)
    target = soc.fetch(Place("l2", 64 * 1024, (10, 9)))
    assert np.array_equal(target[:, :7], box)
    assert np.isnan(target[:9, 7:]).all()  # the bytes between the lines were never written


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (read(64 * 1024 - 4, 0, 8), "but the memory has 65536 B"),
        (read(0, 512 * 1024 - 1024, 4, 3, 1024), "but the memory has 524288 B"),
        (read(0, 0, 65536), "a 1D DMA command moves 65536 B, but its length field"),
        (read(0, 0, 65536, 2, 65536), "a 2D DMA command moves 131072 B, but its length field"),
        (read(0, 0, 0), "use lines and bytes of 1"),
        (Command(True, 0, "l4", 0, 64), "does not reach memory level 'l4'"),
    ],
)
def test_impossible_commands_are_refused(command: Command, message: str) -> None:
    script = Script()
    script.start(command)
    with pytest.raises(InputError, match=message):
        run(script.program())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lines=st.integers(1, 40),
    line_bytes=st.integers(1, 700),
    offset=st.integers(0, 7),
    to_l1=st.booleans(),
    latency=st.integers(0, 60),
    state=st.tuples(st.integers(0, 50), st.integers(0, 100), st.integers(0, 50)),
)
def test_more_latency_or_a_busier_engine_is_never_faster(
    lines: int, line_bytes: int, offset: int, to_l1: bool, latency: int, state: tuple[int, int, int]
) -> None:
    rules = BurstRules.of(DMA, 4)
    bursts = bursts_of(Command(to_l1, offset, "l2", 0, line_bytes, lines, 1024), rules)
    assert sum(size for size, _ in bursts) == lines * line_bytes
    wide, narrow = (tuple(-(-size // width) for size in range(257)) for width in (256, 4))
    idle = EngineState()

    def end(link: Link, before: EngineState) -> int:
        return run_command(bursts, before, rules, link, to_l1=to_l1)[0]

    fastest = end(Link(0, wide), idle)
    assert fastest >= -(-sum(words for _, words in bursts) // 2)
    assert end(Link(latency, wide), idle) >= fastest
    assert end(Link(0, narrow), idle) >= fastest
    assert end(Link(0, wide), EngineState(*state)) >= fastest


def test_queue_lengths_are_reported() -> None:
    script = Script()
    starts = [script.start(read(4096 * i, 4096 * i, 4096)) for i in range(3)]
    for start in starts:
        script.wait(start)
    tracer: Recorder = run(script.program())[1]
    lengths = [value for track, _, _, value in tracer.counters if track == "soc.cluster.dma.in"]
    assert lengths == [1, 0, 1, 2, 1, 0]

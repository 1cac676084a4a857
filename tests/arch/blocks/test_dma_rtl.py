# SPDX-License-Identifier: Apache-2.0
"""The cluster DMA beside rows measured on RTL: bursts and their gaps, and when a core may push the next."""

from __future__ import annotations

import pytest

from arch.blocks.bursts import IDLE, BurstRules, Link, bursts_of, run_command
from arch.blocks.soc import Soc
from arch.spec.program import Action, Command, DmaStart, DmaWait, Program
from arch.spec.soc_config import load_soc
from arch.spec.timing import SocTiming
from scheduler.validation.rows.machines import cost_model_of, with_part
from scheduler.validation.rows.measured_code import BARE_PUSH_CYCLES, BARE_PUSH_NEXT_CYCLES, registers_only
from traces.events import Work
from traces.recorder import Recorder

RTL = registers_only(load_soc("pulp-cluster-rtl", "rtl"))
RULES = BurstRules.of(RTL.dma, RTL.l1.word_bytes)
AT_ONCE = Link(0, tuple(-(-size_bytes // 8) for size_bytes in range(257)))
"""A memory that answers at once, 8 B a cycle."""


def engine_cycles(size_bytes: int, lines: int = 1, l2_address: int = 0, *, to_l1: bool) -> int:
    command = Command(to_l1, 0, "l2", l2_address, size_bytes, lines, 1024 if lines > 1 else 0)
    return run_command(bursts_of(command, RULES), IDLE, RULES, AT_ONCE, to_l1=to_l1)[0]


@pytest.mark.smoke
@pytest.mark.parametrize(("beats", "cycles"), [(1, 2), (2, 4), (4, 6), (8, 10), (32, 34)])
def test_a_burst_to_l1_takes_two_cycles_more_than_its_beats_a_lone_beat_one(beats: int, cycles: int) -> None:
    """Every further line of a 2D transfer is a burst: rows 2d_stride1024 of rtl-dma.csv."""
    several, one = (engine_cycles(8 * beats, lines, to_l1=True) for lines in (5, 1))
    assert several - one == 4 * cycles


@pytest.mark.parametrize(("beats", "cycles"), [(1, 3), (2, 4), (4, 7), (8, 11), (32, 35)])
def test_a_burst_to_l2_takes_three_cycles_more_than_its_beats_a_short_one_two(
    beats: int, cycles: int
) -> None:
    several, one = (engine_cycles(8 * beats, lines, to_l1=False) for lines in (5, 1))
    assert several - one == 4 * cycles


def test_256_bytes_across_a_border_of_256_bytes_are_two_bursts() -> None:
    """First and gap of the second burst: 78 cycles where aligned ones take 76, row 1d_misaligned."""
    assert engine_cycles(256, l2_address=128, to_l1=True) - engine_cycles(256, to_l1=True) == 2


def pushed_and_ended(timing: SocTiming, commands: list[Command]) -> tuple[int, int]:
    """Cycles from the first push to the end of the last one, and to the end of the last transfer."""
    actions: list[Action] = [
        DmaStart(n, commands=(command,), work=Work("push")) for n, command in enumerate(commands)
    ]
    actions += [DmaWait(len(commands) + n, transfer=n) for n in range(len(commands))]
    recorder = Recorder()
    Soc(timing, cost_model_of(timing), recorder, detect_races=False).run(
        Program("pushes", tuple(actions)), effects=False
    )
    cores = [item for item in recorder.slices if item.track == "soc.cluster.core0"]
    pushes = [item for item in cores if item.work.op == "push"]
    ends = [item.end_cycles for item in recorder.slices if item.track.startswith("soc.cluster.dma")]
    begin = min(item.start_cycles for item in pushes)
    return max(item.end_cycles for item in pushes) - begin, max(ends) - begin


# Rows 1d_queued and bidirectional of rtl-dma.csv: (direction of the first, of the second, bytes, transfers,
# cycles_program). A lone push takes 4 cycles, further ones 8.
PUSHES = [
    (True, True, 64, 8, 60),
    (True, True, 256, 8, 61),
    (True, True, 2048, 2, 12),
    (True, True, 2048, 4, 267),
    (False, False, 64, 8, 62),
    (False, False, 256, 4, 28),
    (False, False, 256, 8, 158),
    (False, False, 2048, 4, 508),
    (True, False, 2048, 4, 29),
]


@pytest.mark.parametrize(("first", "second", "size", "count", "cycles"), PUSHES)
def test_a_push_waits_while_one_command_is_cut_and_another_waits(
    first: bool, second: bool, size: int, count: int, cycles: int
) -> None:
    commands = [Command((first, second)[n % 2], n * size, "l2", n * size, size) for n in range(count)]
    in_a_loop = with_part(RTL, "dma", program_1d_cycles=BARE_PUSH_NEXT_CYCLES)
    pushed, _ = pushed_and_ended(in_a_loop, commands)
    saved = BARE_PUSH_NEXT_CYCLES - BARE_PUSH_CYCLES
    assert pushed - saved == pytest.approx(cycles, abs=8)


def test_queued_commands_follow_each_other_as_the_bursts_of_one() -> None:
    """Four commands of 2 KiB end when one of 8 KiB does, whoever waited to push them."""
    parts = [Command(True, n * 2048, "l2", n * 2048, 2048) for n in range(4)]
    assert pushed_and_ended(RTL, parts)[1] == pushed_and_ended(RTL, [Command(True, 0, "l2", 0, 8192)])[1]

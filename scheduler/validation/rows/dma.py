# SPDX-License-Identifier: Apache-2.0
"""KIND dma: transfers between L2 and L1, from the first command to the end of the wait."""

from __future__ import annotations

import numpy as np

from arch.blocks.master import programming_cycles
from arch.blocks.soc import Soc
from arch.spec.isa import CoreWork, Instruction, Op, TeamWork
from arch.spec.program import Action, Command, DmaStart, DmaWait, Place, Program, TeamTransfer
from arch.spec.timing import SocTiming
from scheduler.validation.rows.cases import CORES, CYCLES, MACHINE_COLUMNS, MOST_REPEATED, Case, Column
from scheduler.validation.rows.machines import cost_model_of, machine_of, program_cycles, with_part
from scheduler.validation.rows.measured_code import (
    BARE_LEAVE_CYCLES,
    bare_calls,
    code_at_hand,
    lone_call,
    master_code,
    measured_on_rtl,
    registers_only,
)
from scheduler.validation.rows.prediction import Prediction

STRIDE_BYTES = 1024
"""Distance of two lines in L2 of the 2D rows."""

CHECK = "check_1d_1000_misaligned"
"""Times nothing: its `cycles` are 1 where the bytes that arrived were those sent, else 0."""

BIDIRECTIONAL = ("bidir_simultaneous", "bidirectional")
"""Tests whose transfers alternate: the first goes to L1, the next to L2."""

L2_ACCESSES: dict[str, tuple[Op, ...]] = {
    "core_load_l2": (Op.LOAD_L2,),
    "core_store_l2": (Op.STORE_L2,),
    "core_store_load_l2": (Op.STORE_L2, Op.LOAD_L2),
    "core_lw_l2_dma_none": (Op.LOAD_L2,),
    "core_sw_l2_dma_none": (Op.STORE_L2,),
}
"""Tests without a transfer: every core does `queued` such accesses, in turn, from a barrier on."""

NOT_MODELLED = {
    f"core_{access}_l2_dma_{direction}": "in the model, core accesses to L2 overtake bursts of the DMA"
    for access in ("lw", "sw")
    for direction in ("l2_to_l1", "l1_to_l2")
}
"""Test -> why it has no model."""

TESTS = (
    "1d",
    "1d_misaligned",
    "1d_poll",
    "1d_queued",
    "2d_stride1024",
    "bidir_simultaneous",
    "multi_core_1_each",
    "sdk_pi_cl_dma_cmd",
    CHECK,
    "bidirectional",
    *L2_ACCESSES,
    *NOT_MODELLED,
)

MAX_QUEUED = 1 << 10
"""Transfers of a row; measured ones have 8."""

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("test", choices=TESTS),
    Column("direction", choices=("l2_to_l1", "l1_to_l2", "both")),
    Column("bytes", 1),
    Column("queued", 1, most=MOST_REPEATED),
    Column("line_bytes", 0),
    CORES,
    Column("l1_offset", 0),
    Column("l2_offset", 0),
    CYCLES,
)


def predict(case: Case) -> Prediction:
    """The commands and waits of the row, issued by the master core, or by every core of a team.

    In a series of 1D commands every transfer has its own ID and its own wait; what a lone push and a lone
    wait cost more is paid once. `bidir_simultaneous` pushes inwards, then outwards, and times the inward wait
    only: 16 KiB take 2072 cycles, where an outward transfer alone takes 2143, and 2072 and 56 are the inward
    transfer alone (2080 and 64) less what a bare push saves. `sdk_pi_cl_dma_cmd` is such a bare push as well.
    """
    test = case.text("test")
    if test in NOT_MODELLED:
        raise case.not_modelled(NOT_MODELLED[test])
    if test in L2_ACCESSES:
        return Prediction(_accesses(case, L2_ACCESSES[test]))
    return Prediction(_transfers(case, test))


def _transfers(case: Case, test: str) -> int:  # noqa: PLR0911 - one return a kind of program
    commands = _commands(case, test)
    l1_bytes = 1 + max(command.l1_address + command.size_bytes for command in commands)
    l2_bytes = 1 + max(
        command.external_address + command.lines * max(command.line_bytes, command.stride_bytes)
        for command in commands
    )
    timing = machine_of(case, l1_bytes=l1_bytes, l2_bytes=l2_bytes)
    if test == CHECK:
        return int(_arrives(timing, case.id, commands))
    if test == "multi_core_1_each":
        return _by_the_team(timing, case.id, commands)
    if test == "1d_poll":
        bare = measured_on_rtl(case)
        return _polled(registers_only(timing) if bare else timing, case.id, commands, bare=bare)
    if measured_on_rtl(case):
        return _bare(case, timing, commands)
    if test in ("bidir_simultaneous", "sdk_pi_cl_dma_cmd"):
        timing = with_part(timing, "dma", program_1d_cycles=timing.dma.program_next_cycles)
        return program_cycles(timing, case.id, _series([], commands, waits=1))
    if case.number("line_bytes"):
        # A 2D command of one line is still pushed as a 2D command.
        timing = with_part(timing, "dma", program_1d_cycles=timing.dma.program_2d_cycles)
    if len(commands) == 1:
        return program_cycles(timing, case.id, _series([], commands))
    push_cycles, wait_cycles = lone_call(timing)
    actions = _series(master_code(0, push_cycles), commands)
    actions += master_code(len(actions), wait_cycles)
    return program_cycles(bare_calls(timing), case.id, actions)


def _bare(case: Case, timing: SocTiming, commands: list[Command]) -> int:
    """The first push of the programs measured on RTL is a lone one, the others are those of a loop."""
    timing = registers_only(timing)
    around_cycles = BARE_LEAVE_CYCLES
    if case.number("line_bytes"):
        timing = with_part(timing, "dma", program_1d_cycles=timing.dma.program_2d_cycles)
    elif len(commands) > 1:
        around_cycles -= timing.dma.program_next_cycles - timing.dma.program_1d_cycles
        timing = with_part(timing, "dma", program_1d_cycles=timing.dma.program_next_cycles)
    return program_cycles(timing, case.id, _series([], commands)) + around_cycles


def _accesses(case: Case, operations: tuple[Op, ...]) -> int:
    """Cycles of the longest core."""
    count = case.number("queued")
    if count > MAX_QUEUED:
        raise case.error(f"the row has too many accesses of a core: {count}", f"use at most {MAX_QUEUED}")
    body = tuple(Instruction(operations[index % len(operations)], 1) for index in range(count))
    team = TeamWork("accesses to L2", (CoreWork(body),) * case.number("cores"))
    return max(core.cycles for core in cost_model_of(code_at_hand(machine_of(case))).price(team).cores)


def _by_the_team(timing: SocTiming, name: str, commands: list[Command]) -> int:
    """Every core pushes one of the commands and waits for it; the slowest counts.

    The cores of the measured program begin together behind a barrier, without a fork.
    """
    together = with_part(
        timing,
        "event_unit",
        fork_push_cycles=0,
        fork_master_cycles=0,
        fork_worker_cycles=0,
        barrier_wake_cycles=0,
        join_cycles=0,
    )
    return program_cycles(together, name, [TeamTransfer(0, commands=tuple((item,) for item in commands))])


def _arrives(timing: SocTiming, name: str, commands: list[Command]) -> bool:
    """Whether the modelled DMA moves the bytes it was told to."""
    soc = Soc(timing, cost_model_of(timing))
    moved = []
    for command in commands:
        # 251 is prime, so that bytes at another offset are other bytes.
        data = np.arange(command.size_bytes, dtype=np.int64).astype(np.uint8) % 251
        inner = Place("l1", command.l1_address, data.shape, "uint8")
        outer = Place(command.external_level, command.external_address, data.shape, "uint8")
        source, target = (outer, inner) if command.to_l1 else (inner, outer)
        soc.load(source, data)
        moved.append((target, data))
    soc.run(Program(name, tuple(_series([], commands))))
    return all(np.array_equal(soc.fetch(target), data) for target, data in moved)


POLL_FIRST_CYCLES = 14
"""From the push to the end of a polling wait whose first look finds the transfer over.

A property of the measured program, not of the machine. Fitted on 1d_poll of dma.csv, whose rows are therefore
no test of it.
"""

POLL_PERIOD_CYCLES = 6
"""One turn of the polling loop: load the status, test it, branch back; also the way out after the end.

A property of the measured program, not of the machine. Fitted on 1d_poll of dma.csv, whose rows are therefore
no test of it. The loop measured on RTL is the same; its rows of 1d_poll are a test of both.
"""

BARE_POLL_EXIT_CYCLES = 4
"""The way out of the loop measured on RTL, which is shorter: what is left of 1d_poll of rtl-dma.csv, whose
transfers end when those of 1d do. Those rows are no test of it.
"""


def _polled(timing: SocTiming, name: str, commands: list[Command], *, bare: bool) -> int:
    """The end of the transfer as a core notices that looks at the status again and again."""
    at_once = with_part(
        timing, "dma", wait_check_cycles=0, wait_done_cycles=0, wait_sleep_min_cycles=0, wait_wake_cycles=0
    )
    exit_cycles = BARE_POLL_EXIT_CYCLES if bare else POLL_PERIOD_CYCLES
    over_cycles = program_cycles(at_once, name, _series([], commands))
    first_cycles = sum(programming_cycles(command, 0, timing.dma) for command in commands) + POLL_FIRST_CYCLES
    late_cycles = max(0, over_cycles + exit_cycles - first_cycles)
    return first_cycles + -(-late_cycles // POLL_PERIOD_CYCLES) * POLL_PERIOD_CYCLES


def _commands(case: Case, test: str) -> list[Command]:
    size_bytes, line_bytes = case.number("bytes"), case.number("line_bytes")
    to_l1 = case.text("direction") != "l1_to_l2"
    queued = case.number("queued")
    if queued > MAX_QUEUED:
        raise case.error(
            f"{queued} transfers start before the first wait, which is too many", f"use at most {MAX_QUEUED}"
        )
    count = queued * (case.number("cores") if test == "multi_core_1_each" else 1)
    if line_bytes and size_bytes % line_bytes:
        message = f"{size_bytes} B cannot be split into whole lines of {line_bytes} B"
        raise case.error(message, f"use a multiple of {line_bytes} B")
    lines = size_bytes // line_bytes if line_bytes else 1
    # Transfers measured on RTL lie one behind the other, or their bursts would not take what one takes.
    between_bytes = 0 if measured_on_rtl(case) else 4
    apart = lines * max(STRIDE_BYTES, line_bytes) if line_bytes else size_bytes + between_bytes
    commands = []
    for index in range(count):
        commands.append(
            Command(
                to_l1 ^ bool(index % 2) if test in BIDIRECTIONAL else to_l1,
                case.number("l1_offset") + index * -(-size_bytes // 4) * 4,
                "l2",
                case.number("l2_offset") + index * (-(-apart // 4) * 4),
                line_bytes or size_bytes,
                lines,
                max(STRIDE_BYTES, line_bytes) if line_bytes else 0,
            )
        )
    return commands


def _series(before: list[Action], commands: list[Command], waits: int | None = None) -> list[Action]:
    """Push every command as a transfer, then wait for them (the first `waits`, if given) in order."""
    actions = list(before)
    starts = []
    for command in commands:
        starts.append(len(actions))
        actions.append(DmaStart(len(actions), commands=(command,)))
    for start in starts[:waits]:
        actions.append(DmaWait(len(actions), transfer=start))
    return actions

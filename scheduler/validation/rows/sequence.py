# SPDX-License-Identifier: Apache-2.0
"""KIND sequence: twenty ops of unrolled tiles, each with code and a kernel of its own, on a lean platform.

A program of the row is simulated; its functions lie one after the other. The kernel takes what it took warm,
as the row says, so that what is tested is the code between and in the kernels, the DMA, and both together.
"""

from __future__ import annotations

from collections.abc import Iterator

from arch.blocks.soc import Soc
from arch.pricing.code_caches import COLD
from arch.spec.isa import CoreWork, TeamWork
from arch.spec.program import Action, CodePiece, Command, Compute, DmaStart, DmaWait, Program, ProgramCode
from arch.spec.timing import SocTiming
from scheduler.programs.program_code import statements_of
from scheduler.validation.rows.cases import Case, Column
from scheduler.validation.rows.machines import with_part
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.rows.refill import FixedCosts
from scheduler.validation.rows.steps import rtl_of_the_bench

MOST_CODE_BYTES = 1 << 20
"""Of a program: more were not measured."""

COLUMNS = (
    Column("buffering", choices=("single", "double")),
    Column("tiles", 1, most=64),
    Column("kernel_loop_cycles", 1),
    Column("transfer_bytes", 8, most=1 << 16),
    Column("dma_line", 1, optional=True),
    Column("ops", 1, most=256),
    Column("forks", 1),
    Column("kernel_cycles_warm", 1),
    Column("op_bytes", 1, most=MOST_CODE_BYTES),
    Column("kernel_bytes", 1, most=MOST_CODE_BYTES),
    Column("kernel_straight_lines"),
    Column("total_cycles", 1),
    Column("warm_total_cycles", 1),
)

CORES = 8

INSTRUCTION_BYTES = 3.4
"""A mean instruction of the platform: 85 B of an order are 25."""

STATEMENT_BYTES = {"transfer_1d": 33, "transfer_2d": 54, "wait": 22, "fork": 53}
"""By which the bytes of an op are shared out among its actions."""

PLATFORM_BYTES = {"transfer_1d": 52, "transfer_2d": 64, "wait": 62, "fork": 90}
"""Functions of the platform (`measured/rtl-steps-symbols.csv.gz`)."""

KERNEL_INSTRUCTION_BYTES = 3.2
"""Lines of five instructions."""


def lean_platform() -> SocTiming:
    """The machine with the platform code of the rows, warm: rows of the group platform of rtl-refill.

    An order takes 29 cycles (2D 33), a wait for what is over 25, fork and join with arguments 66.
    """
    timing = with_part(rtl_of_the_bench(), "icache", between_calls_lines=0, call_lines=0)
    timing = with_part(timing, "dma", program_1d_cycles=29, program_2d_cycles=33, wait_done_cycles=25)
    return with_part(timing, "event_unit", fork_push_cycles=25, fork_master_cycles=29, join_cycles=31)


def predict(case: Case) -> Prediction:
    """Cycles of the whole sequence, from empty caches."""
    return Prediction(_cycles(case, code=True))


def predict_warm(case: Case) -> Prediction:
    """The same with all code in the caches."""
    return Prediction(_cycles(case, code=False))


def _cycles(case: Case, *, code: bool) -> int:
    actions = tuple(_actions(case))
    cycles = round(case.number("kernel_cycles_warm") / case.number("forks"))
    costs = FixedCosts({kernel.team.kernel: cycles for kernel in actions if isinstance(kernel, Compute)})
    pieces = _code(case, actions) if code else [()] * len(actions)
    soc = Soc(lean_platform(), costs, detect_races=False, code_start=COLD)
    soc.run(Program("sequence", actions, ProgramCode(pieces, 0)), effects=False)
    ended = soc.fc.ended_cycles
    soc.run(Program("nothing", (), ProgramCode([], 0)), effects=False)
    return ended - soc.fc.ended_cycles


def _actions(case: Case) -> Iterator[Action]:
    """The actions of all ops, numbered."""
    number = 0
    ops, tiles = case.number("ops"), case.number("tiles")
    double = case.text("buffering") == "double"
    ahead = -1

    def order(to_l1: bool) -> DmaStart:
        nonlocal number
        size, line = case.number("transfer_bytes"), case.optional("dma_line")
        if line and line > size:
            message = f"a transfer of {size} B cannot have lines of {line} B"
            raise case.error(message, "use shorter lines")
        lines = size // line if line else 1
        command = Command(to_l1, 0, "l2", 0, size // lines, lines, 2 * (line or 0))
        number += 1
        return DmaStart(number - 1, commands=(command,))

    def wait(transfer: int) -> DmaWait:
        nonlocal number
        number += 1
        return DmaWait(number - 1, transfer=transfer)

    for op in range(ops):
        team = TeamWork(f"kernel {op}", (CoreWork(()),) * CORES)
        outs: list[int] = []
        for tile in range(tiles):
            if ahead < 0 or not double:
                first = order(to_l1=True)
                yield first
                ahead = first.id
            yield wait(ahead)
            ahead = -1
            if double and (tile + 1 < tiles or op + 1 < ops):
                following = order(to_l1=True)
                yield following
                ahead = following.id
            if double and len(outs) == 2:
                yield wait(outs.pop(0))
            yield Compute(number, team=team)
            number += 1
            out = order(to_l1=False)
            yield out
            if double:
                outs.append(out.id)
            else:
                yield wait(out.id)
        for left in outs:
            yield wait(left)


def _code(case: Case, actions: tuple[Action, ...]) -> list[tuple[CodePiece, ...]]:
    """Ops one behind the other, then kernels, then the platform."""
    ops = case.number("ops")
    words = [word for action in actions for word in statements_of(action)]
    scale = case.number("op_bytes") / sum(STATEMENT_BYTES[word] for word in words)
    straight = [int(count) for count in case.text("kernel_straight_lines").split() if count.isdecimal()]
    if not straight or 16 * max(straight) * ops > MOST_CODE_BYTES:
        wrong = "column 'kernel_straight_lines' must be a number per kernel: lines of its code without jumps"
        raise case.error(wrong, "separate the numbers by spaces, e.g. '12 8' for two kernels")
    kernels, address = [], case.number("op_bytes")
    rest = (case.number("kernel_bytes") - 16 * sum(straight[:ops])) // ops
    for op in range(ops):
        size_bytes = max(1, 16 * straight[op % len(straight)] + rest)
        kernels.append(CodePiece(address, size_bytes, KERNEL_INSTRUCTION_BYTES, kernel=True))
        address += size_bytes
    platform = {}
    for word, size_bytes in PLATFORM_BYTES.items():
        platform[word] = CodePiece(address, size_bytes, INSTRUCTION_BYTES)
        address += size_bytes
    pieces, place = [], 0.0
    for action, word in zip(actions, words, strict=True):
        size = STATEMENT_BYTES[word] * scale
        own = CodePiece(round(place), round(place + size) - round(place), INSTRUCTION_BYTES)
        place += size
        kernel = (kernels[int(action.team.kernel.split()[1])],) if isinstance(action, Compute) else ()
        pieces.append((own, platform[word], *kernel))
    return pieces

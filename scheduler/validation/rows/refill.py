# SPDX-License-Identifier: Apache-2.0
"""KIND refill: code of known lines that comes from L2, from the shared cache, or from the private one.

Code without transfers is walked along its lines by the machine's own `arch.pricing.line_caches.CodePath`; for
code beside the DMA, and for orders that fill its queues, a program is simulated. What a line takes when it is
there is read off its kind; what surrounds the code of a row (a jump, the line with the return) is as its file
says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from arch.blocks.soc import Soc
from arch.pricing.code_caches import COLD
from arch.pricing.cost_model import CoreCost, TeamCost, Traffic
from arch.pricing.line_caches import CodePath
from arch.spec.isa import CoreWork, TeamWork
from arch.spec.program import Action, CodePiece, Command, Compute, DmaStart, Program, ProgramCode
from scheduler.validation.rows.cases import CORES, Case, Column
from scheduler.validation.rows.machines import with_part
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.rows.steps import rtl_of_the_bench

MOST_LINES, MOST_PASSED, MOST_ORDERS = 1 << 12, 1 << 16, 64
"""Lines of code, lines that all passes over them fetch, and orders of a row: more were not measured."""

COLUMNS = (
    Column("group"),
    Column("prefetch", 0, (0, 1)),
    CORES,
    Column("code"),
    Column("lines", 1, optional=True, most=MOST_LINES),
    Column("offset", 0, optional=True),
    Column("state"),
    Column("dma"),
    Column("distance", 0, optional=True),
    Column("cycles", 1),
    Column("first_instruction"),
)

OWN_CYCLES = {"cnop": 8, "nop4": 4, "half": 5, "mulh": 20, "lw": 4}
"""Kind of code -> cycles of a line of 16 B that is there; a taken jump to each line has its own."""

RETURN_BESIDE_CYCLES = {"mulh": 5}
"""By how much earlier the return behind the last instruction is decoded, if its line is there: n lines of
four multiplications take 20 n - 2 (rows straight, warm)."""

RETURN_CYCLES = 1
"""From the first instruction of the line with the return to the end of the row: n lines of four instructions
take 2 + 4 n + 1 where all are there (rows straight, warm, of 1 to 4 lines)."""

INSTRUCTION_BYTES, RETURN_BYTES = 4, 2
"""Of an instruction of the group jump; of the return behind a row's code."""

FORK_CYCLES = 18
"""Fork and join of a team without arguments, beyond the code of one core: rows of 4 lines, warm."""

ORDER_CYCLES, LAST_ORDER_CYCLES = 29, 27
"""An order of a 1D transfer by a lean platform, warm, and one that ends the row: rows of small orders (a row
of one takes 27, each more 29)."""

DRIVER_LINES = 20
"""Lines the driver of a row executes before each call: read off two thirds of the rows."""

EXECUTED = 3
"""Times that code has been executed which is in the shared cache."""

LAST_WORD, COMPRESSED = 12, "cnop"
"""Where in a line a jump also asks for the line behind; a return does so behind code that is fetched ahead of
it (rows align: compressed code three lines, others two)."""

FROM_L2_CYCLES = 21
"""From the jump to the first instruction where its line comes from L2, and more on several cores; 2 to 7
where it was there."""

PASSES = {"walk": 12, "loop": 8, "bigloop": 10}
"""Turns of a loop over all lines, the first from empty caches."""

PASS_CYCLES = {"walk": 5, "loop": 1, "bigloop": 1}
"""The way back of a turn."""

FIRST_LINE = 1 << 12
"""Where the code of a row lies; any line is like any other."""

_DMA = re.compile(r"(?:(\d+)x )?(in|out|in/out)(2D)? ?(\d+)(K| B)(?: line (\d+))?(?:\+(in|out)(\d+)K)?")


def predict(case: Case) -> Prediction:
    """Cycles of the row."""
    if case.number("prefetch"):
        raise case.not_modelled("pulptrain does not model the prefetch register")
    group = case.text("group")
    if group == "order":
        return Prediction(_order(case))
    if group == "platform" or case.text("code") not in OWN_CYCLES:
        raise case.not_modelled(f"pulptrain does not model code '{case.text('code')}' of group '{group}'")
    if group == "dma":
        return Prediction(_beside_dma(case))
    return Prediction(_walked(case))


def _walked(case: Case) -> int:
    """Code of one core, or of a team whose cores all take as long."""
    timing, group, count = rtl_of_the_bench(), case.text("group"), case.number("lines")
    path = CodePath(timing.icache)
    own, state, offset = OWN_CYCLES[case.text("code")], case.text("state"), case.optional("offset") or 0
    is_jump, passes = group == "jump", PASSES.get(group, 1)
    lines = range(FIRST_LINE, FIRST_LINE + (2 * count if is_jump else count))
    if is_jump:
        own = timing.icache.jump_cycles + offset // INSTRUCTION_BYTES
    elif group == "align":
        asks = case.text("code") == COMPRESSED and offset + RETURN_BYTES > LAST_WORD
        lines = range(FIRST_LINE, FIRST_LINE + count + asks)
    return_line = lines.stop
    first = [] if case.text("first_instruction") and not _is_there(case) else lines[:1]
    if state in ("warm", "shared"):
        for _ in range(EXECUTED):
            path.walk([*range(DRIVER_LINES), *first, *lines[1:], return_line], own, 0)
        if state == "shared":
            path.leave_private()
    path.walk(range(DRIVER_LINES), own, 0)
    if state == "cold" and _is_there(case):
        path.walk(first, own, 0)
    cycles = 0.0
    for turn in range(passes):
        if is_jump:
            for line in lines[::2]:
                cycles += path.walk([line], own, 0) + own
                if offset == LAST_WORD:
                    cycles += path.walk([line + 1], own, 0)
        else:
            step = [*lines, return_line] if turn == passes - 1 else lines
            cycles += path.walk(step, own, 0) + own * count + PASS_CYCLES.get(group, 0)
    cycles += timing.icache.jump_cycles + RETURN_CYCLES
    cycles -= RETURN_BESIDE_CYCLES.get(case.text("code"), 0) if state == "warm" else 0
    return round(cycles + (FORK_CYCLES if group == "fork" and case.number("cores") > 1 else 0))


def _is_there(case: Case) -> bool:
    """Whether the line that is jumped to was there: the jump before may have asked for it (`LAST_WORD`)."""
    begun = case.text("first_instruction").split()[:1]
    return bool(begun) and begun[0].isdecimal() and int(begun[0]) < FROM_L2_CYCLES


def _beside_dma(case: Case) -> int:
    """Code that core 0 jumps to `distance` cycles after it has ordered transfers."""
    count, own = case.number("lines"), OWN_CYCLES[case.text("code")]
    actions: list[Action] = list(_orders(case, case.text("dma")))
    ordered = len(actions)
    actions += [_alone(ordered, "distance"), _alone(ordered + 1, "code")]
    line_bytes = rtl_of_the_bench().icache.line_bytes
    code = CodePiece(FIRST_LINE * line_bytes, count * line_bytes, line_bytes / own, kernel=True)
    pieces = [*[()] * (ordered + 1), (code,)]
    program = Program("row", tuple(actions), ProgramCode(pieces, code.size_bytes))
    costs = FixedCosts({"distance": case.number("distance"), "code": count * own})
    until_code = Program("row", tuple(actions[:-1]), ProgramCode(pieces[:-1], 0))
    around = rtl_of_the_bench().icache.jump_cycles + RETURN_CYCLES
    return _cycles(program, costs) - _cycles(until_code, costs) + around


def _order(case: Case) -> int:
    """Core 0 orders transfers."""
    actions = tuple(_orders(case, case.text("dma")))
    costs = FixedCosts({})
    empty = _cycles(Program("row", (), ProgramCode([], 0)), costs)
    ordered = Program("row", actions, ProgramCode([()] * len(actions), 0))
    return _cycles(ordered, costs) - empty - (ORDER_CYCLES - LAST_ORDER_CYCLES)


def _cycles(program: Program, costs: FixedCosts) -> int:
    # The code is all there is: nothing of it is in a price.
    timing = with_part(rtl_of_the_bench(), "icache", between_calls_lines=0, call_lines=0)
    timing = with_part(timing, "dma", program_1d_cycles=ORDER_CYCLES, program_2d_cycles=33)
    soc = Soc(timing, costs, detect_races=False, code_start=COLD)
    soc.run(program, effects=False)
    return soc.fc.ended_cycles


def _orders(case: Case, text: str) -> Sequence[DmaStart]:
    match = _DMA.fullmatch(text)
    if match is None:
        raise case.error(f"cannot read the transfers '{text}'", "write transfers as 2x in4K")
    times, way, flat, size, unit, line, also, more = match.groups()
    if not 0 < int(times or 1) <= MOST_ORDERS or not int(size) or (flat and not int(line or 0)):
        wrong = (
            f"the transfers '{text}' are not 1 to {MOST_ORDERS} transfers of 1 byte or more, also in a line"
        )
        raise case.error(wrong, "write e.g. 2x in4K, or in2D 4K line 64")
    size_bytes = int(size) << (10 if unit == "K" else 0)
    ways = [way] * int(times or 1)
    if way == "in/out":
        ways = ["in", "out"] * (int(times or 1) // 2) + ["in"] * (int(times or 1) % 2)
    sizes = [size_bytes] * len(ways)
    if also:
        ways, sizes = [*ways, also], [*sizes, int(more) << 10]
    starts: list[DmaStart] = []
    for number, (one, bytes_) in enumerate(zip(ways, sizes, strict=True)):
        lines = max(1, bytes_ // int(line)) if flat else 1
        command = Command(
            one == "in", 0, "l2", 0, bytes_ // lines, lines, (bytes_ // lines) * 2 if flat else 0
        )
        starts.append(DmaStart(number, commands=(command,)))
    return starts


def _alone(number: int, kernel: str) -> Compute:
    return Compute(number, team=TeamWork(kernel, (CoreWork(()),)), fork=False)


class FixedCosts:
    """A cost model of cycles that are given."""

    def __init__(self, cycles: dict[str, int]) -> None:
        self._cycles = cycles

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        """So many instructions."""
        cycles = self._cycles[work.kernel]
        return TeamCost((CoreCost(cycles, cycles),) * work.size)

    def least_cycles(self, work: TeamWork) -> int:
        """Nothing is known."""
        return 0

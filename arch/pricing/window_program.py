# SPDX-License-Identifier: Apache-2.0
"""Turns the shape of a nest into a window program: what is left of the code once static time is folded.

A window must execute millions of instructions a second, so everything that waiting cannot change is worked
out once per shape: the stretch between two requests to a shared unit becomes one number. What remains are
requests, loops, addresses, and operands that may or may not be there yet. `arch.pricing.window_engine`
executes it.
"""

from __future__ import annotations

from arch.pricing.scoreboard import (
    BRANCH_STALL,
    CROSSING,
    DIVIDER,
    DIVSQRT_UNIT,
    FPU_STALL,
    FPU_UNIT,
    LOAD_USE,
    MEMORY,
    MULTICYCLE,
    NEVER_TAKEN,
    NO_UNIT,
    STALL_WORDS,
    WHOLE_WORDS,
    CodeBlock,
    CodeStep,
    LoopNode,
    Shape,
)
from arch.pricing.window_engine import (
    ACCESS,
    BRANCH,
    EMIT,
    END,
    LOOP,
    MARK,
    MISALIGNED,
    MULTIPLY,
    NEXT,
    OPERATION_FIELDS,
    SET,
    WAIT,
    WAIT_DIVIDER_LATENCY,
    WAIT_FPU_LATENCY,
    WAIT_LOAD_USE,
    WAIT_MULTICYCLE,
)
from configs.values import Struct

_DYNAMIC = {
    LOAD_USE: WAIT_LOAD_USE,
    MULTICYCLE: WAIT_MULTICYCLE,
    FPU_STALL: WAIT_FPU_LATENCY,
    DIVIDER: WAIT_DIVIDER_LATENCY,
}


class WindowHardware(Struct, frozen=True):
    """What a window needs to know of the hardware; part of the key under which its program is kept.

    `banks_shared`, `fpu_shared` and `divsqrt_shared` say whether another requester can be in the way.
    `banks_rotate` and `fpus_rotate` are the cores among which the priority of a cycle moves on, or 0 if the
    lowest core always comes first. `banks_fair`: every bank is round robin over cores and DMA ports;
    otherwise the oldest request is served first.
    """

    banks: int
    word_bytes: int
    banks_shared: bool
    banks_rotate: int
    banks_fair: bool
    fpu_mapping: str
    fpu_shared: bool
    fpus_rotate: int
    fpu_interval_cycles: int
    divsqrt_shared: bool
    divsqrt_interval_cycles: int
    branch_taken_stall_cycles: int
    misaligned_stall_cycles: int

    @property
    def fpu_recovers(self) -> bool:
        """Whether a unit that nobody shares can still be busy when its own core comes back."""
        return self.fpu_interval_cycles > 1 and self.fpu_mapping != "dynamic"

    @property
    def fpu_code(self) -> int:
        """Code of an item that asks for the FPU; the codes below ask for the banks."""
        return self.banks

    @property
    def divsqrt_code(self) -> int:
        """Code of an item that asks for the div/sqrt unit."""
        return self.banks + 1

    @property
    def first_special(self) -> int:
        """Code of the first of `WindowProgram.specials`."""
        return self.banks + 2


class StaticCost(Struct, frozen=True):
    """Cycles of the blocks under one path that no waiting can change: instructions, (cause, stalls)."""

    path: tuple[int, ...]
    instructions: int
    stalls: tuple[tuple[int, int], ...]
    fractions: tuple[tuple[int, int], ...]
    """(numerator, denominator) of every branch that is taken in a share of its executions."""


class WindowProgram(Struct, frozen=True, eq=False):
    """A window program: flat tables for `arch.pricing.window_engine`, and the static costs of its blocks.

    `operations` are `OPERATION_FIELDS` numbers each: a kind, the cycles that go by before it, and
    - LOOP: loop, place of the operation behind its NEXT, whether every iteration does the same but for banks
      that move on;
    - NEXT: loop, place of its first operation, cycles of the closing branch, which falls through at the end;
    - EMIT: code of an item;
    - BRANCH: branch, numerator, denominator: taken in that share of its executions;
    - ACCESS: slot, alignment, bytes: one bank, or two for an access that crosses a word.

    `specials` are (kind, x, y) of the items with a code above those of the units: MISALIGNED, then MARK and
    MULTIPLY of every loop, then the others. `slots`, `moves` and `moves_from` are described at `lay_out`.
    `items` bounds the items one execution emits under each path of loops. `settled`: nothing is asked for and
    nothing waited for, so `static` is all.
    """

    operations: tuple[int, ...]
    specials: tuple[int, ...]
    slots: tuple[int, ...]
    moves: tuple[int, ...]
    moves_from: tuple[int, ...]
    registers: int
    branches: int
    items: tuple[tuple[tuple[int, ...], int], ...]
    static: tuple[StaticCost, ...]
    settled: bool

    @property
    def tables(self) -> int:
        """Numbers of the tables a trace is laid out by."""
        return len(self.operations) + len(self.slots) + len(self.moves) + len(self.moves_from)


def window_program(shape: Shape, machine: WindowHardware) -> WindowProgram:
    """The program of `shape`; it holds for every trip count and address."""
    return _Writer(shape, machine).write()


class _Writer:
    """Walks a shape once; `_offset` is the static distance of the next issue slot from the time so far."""

    def __init__(self, shape: Shape, machine: WindowHardware) -> None:
        self._shape = shape
        self._machine = machine
        self._out: list[int] = []
        self._offset = 0
        loops = len(shape.loops)
        self._specials = [(MISALIGNED, machine.misaligned_stall_cycles, 0)]
        self._specials += [(kind, loop, 0) for loop in range(loops) for kind in (MARK, MULTIPLY)]
        self._codes = {special: index for index, special in enumerate(self._specials)}
        self._items: dict[tuple[int, ...], int] = {}
        self._path: tuple[int, ...] = ()
        self._pending: dict[int, tuple[int, int]] = {}
        self._dynamic: dict[tuple[int, int], int] = {}
        self._registers: dict[tuple[int, int], int] = {}
        self._static: dict[tuple[int, ...], tuple[int, list[int], list[tuple[int, int]]]] = {}
        blocks = shape.blocks()
        self._reach = max(
            (
                cycles - step.rule.occupancy_cycles
                for block in blocks
                for step in block.steps
                for _, cycles, _ in step.writes
            ),
            default=0,
        )
        self._boundary = self._boundary_registers(blocks)

    def write(self) -> WindowProgram:
        self._nodes(self._shape.body)
        self._path = ()
        self._special(END)
        slots, places = self._slots()
        moves: list[int] = []
        moves_from = [0]
        for loop in self._shape.loops:
            for slot, info in enumerate(self._shape.slots if slots else ()):
                if loop.index in info.path:
                    moves += (slot, places[slot] + 1 + info.path.index(loop.index))
            moves_from.append(len(moves) // 2)
        return WindowProgram(
            tuple(self._out),
            tuple(number for special in self._specials for number in special),
            tuple(slots),
            tuple(moves),
            tuple(moves_from),
            len(self._registers),
            self._shape.branches,
            tuple(self._items.items()),
            tuple(
                [
                    StaticCost(
                        path,
                        instructions,
                        tuple([(cause, cycles) for cause, cycles in enumerate(stalls) if cycles]),
                        tuple(fractions),
                    )
                    for path, (instructions, stalls, fractions) in self._static.items()
                ]
            ),
            {LOOP, NEXT, BRANCH}.issuperset(self._out[:-OPERATION_FIELDS:OPERATION_FIELDS]),
        )

    def _slots(self) -> tuple[list[int], list[int]]:
        """The table of slots, and the place of each base among the numbers (base, strides) of all slots.

        Both are empty if no address matters.
        """
        if not (self._machine.banks_shared or self._shape.crosses):
            return [], []
        word, banks = self._machine.word_bytes, self._machine.banks
        table: list[int] = []
        places: list[int] = []
        place = 0
        for info in self._shape.slots:
            places.append(place)
            behind = place + 1 + len(info.path)
            whole = info.alignment == WHOLE_WORDS
            table += (place, behind, word, banks) if whole else (place, behind, 1, word * banks)
            place = behind
        return table, places

    def _boundary_registers(self, blocks: tuple[CodeBlock, ...]) -> set[tuple[int, int]]:
        """(register, cause) that can be pending when a block ends and are read early in one."""
        left: set[tuple[int, int]] = set()
        read_early: set[int] = set()
        for block in blocks:
            offset = 0
            pending: dict[int, tuple[int, int]] = {}
            for step in block.steps:
                for register in step.srcs:
                    if register in pending:
                        offset = max(offset, pending[register][0])
                for register, cycles, cause in step.writes:
                    pending[register] = (offset + cycles, cause)
                offset += step.rule.occupancy_cycles
            left.update([(reg, cause) for reg, (ready, cause) in pending.items() if ready > offset])
            for step in block.steps[: self._reach]:
                read_early.update(step.srcs)
        return {(register, cause) for register, cause in left if register in read_early}

    def _operation(self, kind: int, first: int = 0, second: int = 0, third: int = 0) -> None:
        self._out += (kind, self._offset, first, second, third)
        self._offset = 0

    def _count(self, path: tuple[int, ...], items: int) -> None:
        self._items[path] = self._items.get(path, 0) + items

    def _emit(self, code: int) -> None:
        self._operation(EMIT, code)
        self._count(self._path, 1)

    def _special(self, kind: int, x: int = 0, y: int = 0) -> None:
        special = (kind, x, y)
        if special not in self._codes:
            self._codes[special] = len(self._specials)
            self._specials.append(special)
        self._emit(self._machine.first_special + self._codes[special])

    def _register(self, register: int, cause: int) -> int:
        return self._registers.setdefault((register, cause), len(self._registers))

    def _nodes(self, nodes: tuple[CodeBlock | LoopNode, ...]) -> None:
        for node in nodes:
            if isinstance(node, CodeBlock):
                self._block(node)
            else:
                self._loop(node)

    def _loop(self, loop: LoopNode) -> None:
        stall = loop.closing * self._machine.branch_taken_stall_cycles
        start = len(self._out)
        self._operation(LOOP, loop.index)
        self._count(loop.path, 2)
        self._nodes(loop.body)
        self._operation(NEXT, loop.index, start + OPERATION_FIELDS, stall)
        self._out[start + 3] = len(self._out)
        body = range(start, len(self._out), OPERATION_FIELDS)
        self._out[start + 4] = int(all(self._repeats(place) for place in body))

    def _repeats(self, place: int) -> bool:
        """Whether an operation does the same in every iteration, but for a bank that moves on."""
        kind, _, _, alignment, _ = self._out[place : place + OPERATION_FIELDS]
        return kind != BRANCH and (kind != ACCESS or alignment == WHOLE_WORDS)

    def _block(self, block: CodeBlock) -> None:
        self._path = block.path
        instructions, stalls, fractions = self._static.get(block.path, (0, [0] * len(STALL_WORDS), []))
        self._static[block.path] = instructions + len(block.steps), stalls, fractions
        self._dynamic = dict.fromkeys(self._boundary, self._reach - 1)
        self._pending = {}
        for position, step in enumerate(block.steps):
            rule = step.rule
            if step.srcs:
                self._sources(step, position, stalls)
            if rule.unit != NO_UNIT:
                self._request(step, position)
            for register, cycles, cause in step.writes:
                if self._dynamic:
                    self._overwrite(register, position)
                self._pending[register] = (self._offset + cycles, cause)
            self._offset += rule.occupancy_cycles
            stalls[rule.occupancy_cause] += rule.occupancy_cycles - 1
            if step.taken == NEVER_TAKEN:
                continue
            numerator, denominator = step.taken
            if step.branch >= 0:
                fractions.append(step.taken)
                self._anchor(position, 0)
                self._operation(BRANCH, step.branch, numerator, denominator)
            elif numerator:
                self._offset += self._machine.branch_taken_stall_cycles
                stalls[BRANCH_STALL] += self._machine.branch_taken_stall_cycles
        end = self._offset
        for register, (ready, cause) in self._pending.items():
            if (register, cause) in self._boundary:
                if ready > end:
                    self._special(SET, self._register(register, cause), ready - end)
                elif self._reach > 1:
                    self._special(SET, self._register(register, cause), 0)

    def _overwrite(self, register: int, position: int) -> None:
        """A register that may still be pending gets a result whose time is certain."""
        for entry in [entry for entry in self._dynamic if entry[0] == register]:
            if self._dynamic[entry] > position:
                # The item begins time anew, for results of this block that are under way as well.
                passed = self._offset
                self._pending = {name: (ready - passed, why) for name, (ready, why) in self._pending.items()}
                self._special(SET, self._register(*entry), 0)
            del self._dynamic[entry]

    def _sources(self, step: CodeStep, position: int, stalls: list[int]) -> None:
        """Wait for the operands of `step`."""
        for register in step.srcs:
            pending = self._pending.get(register)
            if pending is not None and pending[0] > self._offset:
                stalls[pending[1]] += pending[0] - self._offset
                self._offset = pending[0]
                continue
            for (candidate, cause), last in list(self._dynamic.items()) if self._dynamic else ():
                if candidate == register and position <= last:
                    self._anchor(position, 0)
                    self._special(WAIT, self._register(register, cause), _DYNAMIC[cause])

    def _anchor(self, position: int, gap: int) -> None:
        """Before a request: results that may still be pending `gap` cycles on become registers."""
        now = self._offset
        for register, (ready, cause) in self._pending.items():
            if ready > now + gap:
                self._special(SET, self._register(register, cause), ready - now)
                self._dynamic[(register, cause)] = position + self._reach
        self._pending = {}

    def _request(self, step: CodeStep, position: int) -> None:
        machine = self._machine
        unit = step.rule.unit
        if unit == MEMORY:
            if step.slot < 0:
                return
            alignment = self._shape.slots[step.slot].alignment
            if machine.banks_shared or alignment == CROSSING:
                self._anchor(position, 1)
                self._operation(ACCESS, step.slot, alignment, step.width_bytes)
                self._count(self._path, 3 if alignment == CROSSING else 1)
        elif unit == FPU_UNIT:
            if machine.fpu_shared or machine.fpu_recovers:
                self._anchor(position, 1)
                self._emit(machine.fpu_code)
        elif unit == DIVSQRT_UNIT and machine.divsqrt_shared:
            self._anchor(position, 1)
            self._emit(machine.divsqrt_code)

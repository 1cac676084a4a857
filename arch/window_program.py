"""Turns the shape of a nest into a window program: what is left of the code once static time is folded.

A window must execute millions of instructions a second, so everything that waiting cannot change is worked
out once per shape: the stretch between two requests to a shared unit becomes one number. What remains are
requests, loops, moving addresses, and operands that may or may not be there yet. `arch.window` executes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from arch.scoreboard import (
    BRANCH_STALL,
    CROSSING,
    DIVSQRT_UNIT,
    FPU_STALL,
    FPU_UNIT,
    LOAD_USE,
    MEMORY,
    MULTICYCLE,
    NO_UNIT,
    STALL_WORDS,
    Block,
    LoopNode,
    Shape,
    Step,
)

COUNTERS = ("wb", "wf", "dx", "d0", "d1", "d3")
"""Counted in the window: waiting for banks, for FPUs, misaligned accesses, and stalls whose length depends on
the waiting before them (load_use, multicycle, fpu)."""

_DYNAMIC = {LOAD_USE: 3, MULTICYCLE: 4, FPU_STALL: 5}


class Code(IntEnum):
    """Instructions of a window program.

    Before each, a number of cycles goes by that nothing can change; the operands are said here.
    """

    END = 0
    """The core has done its share."""
    LOOP = 1
    """loop, place of its NEXT: execute the segments of the window, or skip a loop without trips."""
    MOVE = 2
    """slot, loop: the address of the slot goes on by its stride in that loop."""
    NEXT = 3
    """loop, place of its first instruction, cycles of the closing branch, which falls through at the end."""
    SET = 4
    """register, cycles: its value comes that many cycles from now."""
    CLEAR = 5
    """register: nobody will have to wait for it."""
    WAIT = 6
    """register, counter: until its value is there."""
    BRANCH = 7
    """branch, numerator, denominator: taken in that share of its executions."""
    ACCESS = 8
    """slot, alignment, bytes: one bank, or two for an access that crosses a word."""
    FPU = 9
    """shared: start an operation; a private unit is only asked if it needs to recover."""
    DIVSQRT = 10
    """Start a division or square root."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a window needs to know of the hardware; part of the key under which its program is kept.

    `banks_shared`, `fpu_shared` and `divsqrt_shared` say whether another requester can be in the way.
    `banks_rotate` and `fpus_rotate` are the cores among which the priority of a cycle moves on, or 0 if the
    lowest core always comes first.
    """

    banks: int
    word_bytes: int
    banks_shared: bool
    banks_rotate: int
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


@dataclass(frozen=True, slots=True)
class StaticCost:
    """Cycles of one block that no waiting can change: instructions and stalls per word."""

    path: tuple[int, ...]
    instructions: int
    stalls: tuple[int, ...]
    fractions: tuple[tuple[int, int], ...]
    """(numerator, denominator) of every branch that is taken in a share of its executions."""


Operation = tuple[Code, int, int, int, int]
"""Code, cycles before it, three operands."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A window program, the number of its registers, and the static costs of its blocks."""

    operations: tuple[Operation, ...]
    registers: int
    static: tuple[StaticCost, ...]


def window_program(shape: Shape, machine: Machine) -> Program:
    """The program of `shape`; it holds for every trip count and address."""
    return _Writer(shape, machine).write()


class _Writer:
    """Walks a shape once; `_offset` is the static distance of the next issue slot from the time so far."""

    def __init__(self, shape: Shape, machine: Machine) -> None:
        self._shape = shape
        self._machine = machine
        self._out: list[Operation] = []
        self._offset = 0
        self._pending: dict[int, tuple[int, int]] = {}
        self._dynamic: dict[tuple[int, int], int] = {}
        self._registers: dict[tuple[int, int], int] = {}
        self._static: list[StaticCost] = []
        blocks = shape.blocks()
        self._reach = max(
            (step.rule.result_cycles - step.rule.occupancy_cycles for b in blocks for step in b.steps),
            default=0,
        )
        self._boundary = self._boundary_registers(blocks)

    def write(self) -> Program:
        self._nodes(self._shape.body)
        self._emit(Code.END)
        return Program(tuple(self._out), len(self._registers), tuple(self._static))

    def _boundary_registers(self, blocks: tuple[Block, ...]) -> set[tuple[int, int]]:
        """(register, cause) that can be pending when a block ends and are read early in one."""
        left: set[tuple[int, int]] = set()
        read_early: set[int] = set()
        for block in blocks:
            offset = 0
            pending: dict[int, tuple[int, int]] = {}
            for step in block.steps:
                offset = max([offset, *(pending[src][0] for src in step.srcs if src in pending)])
                if step.dst >= 0:
                    pending[step.dst] = (offset + step.rule.result_cycles, step.rule.result_cause)
                offset += step.rule.occupancy_cycles
            left.update((reg, cause) for reg, (ready, cause) in pending.items() if ready > offset)
            for step in block.steps[: self._reach]:
                read_early.update(step.srcs)
        return {(register, cause) for register, cause in left if register in read_early}

    def _emit(self, code: Code, first: int = 0, second: int = 0, third: int = 0) -> None:
        self._out.append((code, self._offset, first, second, third))
        self._offset = 0

    def _register(self, register: int, cause: int) -> int:
        return self._registers.setdefault((register, cause), len(self._registers))

    def _nodes(self, nodes: tuple[Block | LoopNode, ...]) -> None:
        for node in nodes:
            if isinstance(node, Block):
                self._block(node)
            else:
                self._loop(node)

    def _loop(self, loop: LoopNode) -> None:
        stall = loop.closing * self._machine.branch_taken_stall_cycles
        start = len(self._out)
        self._emit(Code.LOOP)
        before = self._out[start][1]
        self._nodes(loop.body)
        self._offset += stall
        for slot, info in enumerate(self._shape.slots):
            if loop.index in info.path:
                self._emit(Code.MOVE, slot, loop.index)
        self._out[start] = (Code.LOOP, before, loop.index, len(self._out), 0)
        self._emit(Code.NEXT, loop.index, start + 1, stall)

    def _block(self, block: Block) -> None:
        stalls = [0] * len(STALL_WORDS)
        fractions: list[tuple[int, int]] = []
        self._dynamic = dict.fromkeys(self._boundary, self._reach - 1)
        self._pending = {}
        for position, step in enumerate(block.steps):
            self._sources(step, position, stalls)
            self._request(step, position)
            rule = step.rule
            if step.dst >= 0:
                for entry in [entry for entry in self._dynamic if entry[0] == step.dst]:
                    if self._dynamic[entry] > position:
                        self._emit(Code.CLEAR, self._register(*entry))
                    del self._dynamic[entry]
                self._pending[step.dst] = (self._offset + rule.result_cycles, rule.result_cause)
            self._offset += rule.occupancy_cycles
            stalls[rule.occupancy_cause] += rule.occupancy_cycles - 1
            numerator, denominator = step.taken
            if step.branch >= 0:
                fractions.append(step.taken)
                self._anchor(position, 0)
                self._emit(Code.BRANCH, step.branch, numerator, denominator)
            elif numerator:
                self._offset += self._machine.branch_taken_stall_cycles
                stalls[BRANCH_STALL] += self._machine.branch_taken_stall_cycles
        end = self._offset
        for register, (ready, cause) in self._pending.items():
            if (register, cause) in self._boundary:
                if ready > end:
                    self._emit(Code.SET, self._register(register, cause), ready - end)
                elif self._reach > 1:
                    self._emit(Code.CLEAR, self._register(register, cause))
        self._static.append(StaticCost(block.path, len(block.steps), tuple(stalls), tuple(fractions)))

    def _sources(self, step: Step, position: int, stalls: list[int]) -> None:
        """Wait for the operands of `step`."""
        for register in step.srcs:
            known = self._pending.get(register)
            if known is not None and known[0] > self._offset:
                stalls[known[1]] += known[0] - self._offset
                self._offset = known[0]
                continue
            for (candidate, cause), last in list(self._dynamic.items()):
                if candidate == register and position <= last:
                    self._anchor(position, 0)
                    self._emit(Code.WAIT, self._register(register, cause), _DYNAMIC[cause])

    def _anchor(self, position: int, gap: int) -> None:
        """Before a request: results that may still be pending `gap` cycles on become registers."""
        now = self._offset
        for register, (ready, cause) in self._pending.items():
            if ready > now + gap:
                self._emit(Code.SET, self._register(register, cause), ready - now)
                self._dynamic[(register, cause)] = position + self._reach
        self._pending = {}

    def _request(self, step: Step, position: int) -> None:
        machine = self._machine
        unit = step.rule.unit
        if unit == NO_UNIT:
            return
        if unit == MEMORY:
            if step.slot < 0:
                return
            alignment = self._shape.slots[step.slot].alignment
            if machine.banks_shared or alignment == CROSSING:
                self._anchor(position, 1)
                self._emit(Code.ACCESS, step.slot, alignment, step.width_bytes)
        elif unit == FPU_UNIT:
            if machine.fpu_shared or machine.fpu_recovers:
                self._anchor(position, 1)
                self._emit(Code.FPU, int(machine.fpu_shared))
        elif unit == DIVSQRT_UNIT and machine.divsqrt_shared:
            self._anchor(position, 1)
            self._emit(Code.DIVSQRT)

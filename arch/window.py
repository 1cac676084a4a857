"""Compiles the shape of a nest to a Python generator that replays its requests to shared units in time order.

A window must execute millions of instructions a second, so each shape becomes straight Python once (as
`dataclasses` does for methods): the stretch between two requests is folded into one addition, loops become
`for` loops, addresses become running variables. The generator yields the time of its next request and is
resumed when that time has come; requests reach a unit in order of (time, core), so a unit is only the time
it is free again.

Time inside a window is `cycles * TIME_SCALE + core`: one integer that orders requests and names the core.

Every loop runs a window of its trips: a warm-up segment and a measured one. At its end, the waiting counted
in the measured segment is multiplied to the remaining trips. A window that covers all trips is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heapreplace
from typing import Any

from arch.scoreboard import (
    BRANCH_STALL,
    DIVSQRT_UNIT,
    FPU_STALL,
    FPU_UNIT,
    LOAD_USE,
    MEMORY,
    MULTICYCLE,
    NO_UNIT,
    STALL_WORDS,
    WHOLE_WORDS,
    Block,
    LoopNode,
    Shape,
    Step,
)

TIME_SCALE = 32
"""Steps per cycle in window time; the remainder is the number of the requester."""

Generator = Callable[..., Iterator[int]]

COUNTERS = ("wb", "wf", "dx", "d0", "d1", "d3")
"""Counted in the window: waiting for banks, for FPUs, misaligned accesses, and stalls whose length depends on
the waiting before them (load_use, multicycle, fpu)."""

_DYNAMIC = {LOAD_USE: "d0", MULTICYCLE: "d1", FPU_STALL: "d3"}


@dataclass(frozen=True, slots=True)
class Machine:
    """What the compiled code needs to know of the hardware; part of the key under which it is kept.

    `banks_shared`, `fpu_shared` and `divsqrt_shared` say whether another requester can be in the way.
    """

    banks: int
    word_bytes: int
    banks_shared: bool
    fpu_mapping: str
    fpu_shared: bool
    fpu_interval_cycles: int
    divsqrt_shared: bool
    divsqrt_interval_cycles: int
    branch_taken_stall_cycles: int
    misaligned_stall_cycles: int


@dataclass(frozen=True, slots=True)
class StaticCost:
    """Cycles of one block that no waiting can change: instructions and stalls per word."""

    path: tuple[int, ...]
    instructions: int
    stalls: tuple[int, ...]
    fractions: tuple[tuple[int, int], ...]
    """(numerator, denominator) of every branch that is taken in a share of its executions."""


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """A shape ready to run: its generator function, the source of that, and its static costs."""

    function: Generator
    source: str
    static: tuple[StaticCost, ...]


def compile_shape(shape: Shape, machine: Machine) -> Compiled:
    """Compile `shape`; the result holds for every trip count and address."""
    draft = _Writer(shape, machine, COUNTERS).write()
    writer = _Writer(shape, machine, tuple(name for name in COUNTERS if _counts(draft, name)))
    source = writer.write()
    namespace: dict[str, Any] = {"heapreplace": heapreplace}
    exec(compile(source, "<window>", "exec"), namespace)
    return Compiled(namespace["core"], source, tuple(writer.static))


def _counts(source: str, counter: str) -> bool:
    """Whether `source` counts anything in `counter` other than multiplying it at the end of a loop."""
    lines = (line.strip() for line in source.splitlines())
    return any(line.startswith(f"{counter} += ") and "* x" not in line for line in lines)


class _Writer:
    """Emits the source of one generator; `_offset` is the static distance of the next issue slot from `t`."""

    def __init__(self, shape: Shape, machine: Machine, counters: tuple[str, ...]) -> None:
        self._counters = counters
        self._shape = shape
        self._machine = machine
        self._lines: list[str] = []
        self._indent = 1
        self._offset = 0
        self._pending: dict[int, tuple[int, int]] = {}
        self._dynamic: dict[tuple[int, int], int] = {}
        self.static: list[StaticCost] = []
        blocks = shape.blocks()
        self._reach = max(
            (step.rule.result_cycles - step.rule.occupancy_cycles for b in blocks for step in b.steps),
            default=0,
        )
        self._boundary = self._boundary_registers(blocks)

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

    def _emit(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    def write(self) -> str:
        loops = self._shape.loops
        self._emit("wb = wf = dx = d0 = d1 = d3 = 0")
        for loop in loops:
            self._emit(f"h{loop.index}, w{loop.index}, x{loop.index} = loops[{loop.index}]")
        for slot, info in enumerate(self._shape.slots):
            self._emit(f"a{slot} = addresses[{slot}][0]")
            for loop_index in info.path:
                depth = info.path.index(loop_index)
                self._emit(f"s{slot}_{loop_index} = addresses[{slot}][1][{depth}]")
        for branch in range(self._shape.branches):
            self._emit(f"p{branch} = 0")
        for register, cause in sorted(self._boundary):
            self._emit(f"r{register}_{cause} = 0")
        self._nodes(self._shape.body)
        self._flush()
        self._emit("out.extend((t, wb, wf, dx, d0, d1, d3))")
        self._emit("yield -1")
        head = "def core(c, k, u, t, bank_free, fpu_free, div_free, loops, addresses, out):"
        return "\n".join([head, *self._lines, ""])

    def _nodes(self, nodes: tuple[Block | LoopNode, ...]) -> None:
        for node in nodes:
            if isinstance(node, Block):
                self._block(node)
            else:
                self._loop(node)

    def _loop(self, loop: LoopNode) -> None:
        index = loop.index
        stall = loop.closing * self._machine.branch_taken_stall_cycles
        slots = [slot for slot, info in enumerate(self._shape.slots) if index in info.path]
        self._flush()
        self._emit(f"if w{index}:")
        self._indent += 1
        self._emit(f"for q{index} in h{index}:")
        self._indent += 1
        for name in self._counters:
            self._emit(f"v{index}_{name} = {name}")
        self._emit(f"for i{index} in range(q{index}):")
        self._indent += 1
        before = len(self._lines)
        self._nodes(loop.body)
        self._offset += stall
        self._flush()
        for slot in slots:
            self._emit(f"a{slot} += s{slot}_{index}")
        if len(self._lines) == before:
            self._emit("pass")
        self._indent -= 2
        if stall:
            self._emit(f"t -= {stall * TIME_SCALE}")
        for slot in slots:
            if loop.path:
                self._emit(f"a{slot} -= w{index} * s{slot}_{index}")
        if self._counters:
            self._emit(f"if x{index}:")
        for name in self._counters:
            self._lines.append(
                "    " * (self._indent + 1) + f"{name} += ({name} - v{index}_{name}) * x{index}"
            )
        self._indent -= 1

    def _flush(self) -> None:
        if self._offset:
            self._emit(f"t += {self._offset * TIME_SCALE}")
            self._offset = 0

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
                        self._emit(f"r{entry[0]}_{entry[1]} = 0")
                    del self._dynamic[entry]
                self._pending[step.dst] = (self._offset + rule.result_cycles, rule.result_cause)
            self._offset += rule.occupancy_cycles
            stalls[rule.occupancy_cause] += rule.occupancy_cycles - 1
            numerator, denominator = step.taken
            branch_stall = self._machine.branch_taken_stall_cycles
            if step.branch >= 0:
                fractions.append(step.taken)
                self._anchor(position, 0)
                self._emit(f"p{step.branch} += {numerator}")
                self._emit(f"if p{step.branch} >= {denominator}:")
                self._emit(f"    p{step.branch} -= {denominator}")
                self._emit(f"    t += {branch_stall * TIME_SCALE}")
            elif numerator:
                self._offset += branch_stall
                stalls[BRANCH_STALL] += branch_stall
        for register, (ready, cause) in self._pending.items():
            if (register, cause) in self._boundary:
                if ready > self._offset:
                    self._emit(f"r{register}_{cause} = t + {ready * TIME_SCALE}")
                elif self._reach > 1:
                    self._emit(f"r{register}_{cause} = 0")
        self._flush()
        self.static.append(StaticCost(block.path, len(block.steps), tuple(stalls), tuple(fractions)))

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
                    name = f"r{register}_{cause}"
                    counter = _DYNAMIC[cause]
                    self._emit(f"if {name} > t:")
                    self._emit(f"    {counter} += {name} - t")
                    self._emit(f"    t = {name}")

    def _anchor(self, position: int, gap: int) -> None:
        """Make `t` the present; results that may still be pending `gap` cycles on become variables."""
        for register, (ready, cause) in self._pending.items():
            if ready > self._offset + gap:
                self._emit(f"r{register}_{cause} = t + {ready * TIME_SCALE}")
                self._dynamic[(register, cause)] = position + self._reach
        self._pending = {}
        self._flush()

    def _request(self, step: Step, position: int) -> None:
        machine = self._machine
        unit = step.rule.unit
        if unit == NO_UNIT:
            return
        if unit == MEMORY:
            self._memory(step, position)
        elif unit == FPU_UNIT:
            pool = machine.fpu_mapping == "dynamic"
            own = machine.fpu_interval_cycles > 1 and not pool
            if machine.fpu_shared or own:
                self._anchor(position, 1)
                if machine.fpu_shared:
                    self._emit("yield t")
                self._unit("fpu_free", machine.fpu_interval_cycles, pooled=pool)
        elif unit == DIVSQRT_UNIT and machine.divsqrt_shared:
            self._anchor(position, 1)
            self._emit("yield t")
            self._unit("div_free", machine.divsqrt_interval_cycles, pooled=True)

    def _unit(self, name: str, interval_cycles: int, *, pooled: bool) -> None:
        """Take a unit of the list `name`: the first free one of a pool, else unit `u` of this core."""
        self._emit(f"f = {name}[{0 if pooled else 'u'}]")
        self._emit("if f > t:")
        self._emit("    wf += f - t + c")
        self._emit("    t = f + c")
        free = f"t + k + {(interval_cycles - 1) * TIME_SCALE}" if interval_cycles > 1 else "t + k"
        if pooled:
            self._emit(f"heapreplace({name}, {free})")
        else:
            self._emit(f"{name}[u] = {free}")

    def _memory(self, step: Step, position: int) -> None:
        if step.slot < 0:
            return
        machine = self._machine
        crosses = self._shape.slots[step.slot].crosses
        if not crosses:
            if machine.banks_shared:
                self._anchor(position, 1)
                whole = self._shape.slots[step.slot].alignment == WHOLE_WORDS
                self._bank(f"a{step.slot}{'' if whole else f' // {machine.word_bytes}'} % {machine.banks}")
            return
        self._anchor(position, 1)
        word = machine.word_bytes
        if machine.banks_shared:
            self._bank(f"a{step.slot} // {word} % {machine.banks}")
        self._emit(f"if a{step.slot} % {word} + {step.width_bytes} > {word}:")
        self._indent += 1
        self._emit(f"t += {machine.misaligned_stall_cycles * TIME_SCALE}")
        self._emit(f"dx += {machine.misaligned_stall_cycles * TIME_SCALE}")
        if machine.banks_shared:
            self._bank(f"(a{step.slot} // {word} + 1) % {machine.banks}")
        self._indent -= 1

    def _bank(self, index: str) -> None:
        self._emit("yield t")
        self._emit(f"b = {index}")
        self._emit("f = bank_free[b]")
        self._emit("if f > t:")
        self._emit("    wb += f - t + c")
        self._emit("    t = f + c")
        self._emit("bank_free[b] = t + k")

"""Python engine for window programs: every program becomes a generator that replays its requests.

As `dataclasses` does for methods, each program is written out once as straight Python: loops become `for`
loops, addresses running variables. A generator yields the key of its next request and is resumed when that is
the smallest of all; requests reach a unit in order of (cycle, rank of the core in that cycle), so a unit is
only the time at which it is free again.

A core's time inside a window is `cycles * TIME_SCALE` plus a constant that names the core.

Every loop runs a window of its trips: a warm-up segment and a measured one. At its end, the waiting counted
in the measured segment is multiplied to the remaining trips. A window that covers all trips is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapreplace
from typing import Any

from arch.scoreboard import CROSSING, WHOLE_WORDS, Shape
from arch.window_program import COUNTERS, Code, Machine, Operation, Program

REQUESTERS = 32
"""Requesters a window can tell apart: cores and DMA ports."""

TIME_SCALE = REQUESTERS * REQUESTERS
"""Steps per cycle in window time; the remainder is rank * REQUESTERS + number of the requester."""

Generator = Callable[..., Iterator[int]]


def generator_of(program: Program, shape: Shape, machine: Machine) -> Generator:
    """The generator function of `program`: (c, s, u, t, units ..., loops, addresses, out) -> request keys."""
    namespace: dict[str, Any] = {"heapreplace": heapreplace}
    exec(compile(_Writer(program, shape, machine).write(), "<window>", "exec"), namespace)
    function: Generator = namespace["core"]
    return function


class _Writer:
    """Writes the source of one generator."""

    def __init__(self, program: Program, shape: Shape, machine: Machine) -> None:
        self._program = program
        self._shape = shape
        self._machine = machine
        self._lines: list[str] = []
        self._indent = 1

    def _emit(self, *lines: str) -> None:
        self._lines.extend("    " * self._indent + line for line in lines)

    def write(self) -> str:
        shape = self._shape
        self._emit("wb = wf = dx = d0 = d1 = d3 = 0")
        for loop in shape.loops:
            self._emit(f"h{loop.index}, w{loop.index}, x{loop.index} = loops[{loop.index}]")
        for slot, info in enumerate(shape.slots):
            self._emit(f"a{slot} = addresses[{slot}][0]")
            for depth, index in enumerate(info.path):
                self._emit(f"s{slot}_{index} = addresses[{slot}][1][{depth}]")
        for branch in range(shape.branches):
            self._emit(f"p{branch} = 0")
        for register in range(self._program.registers):
            self._emit(f"r{register} = 0")
        for operation in self._program.operations:
            self._operation(operation)
        head = "def core(c, k, u, t, bank_free, fpu_free, div_free, loops, addresses, out):"
        return "\n".join([head, *self._lines, ""])

    def _operation(self, operation: Operation) -> None:
        code, before, first, second, third = operation
        if before:
            self._emit(f"t += {before * TIME_SCALE}")
        machine = self._machine
        stall = machine.branch_taken_stall_cycles * TIME_SCALE
        plain = {
            Code.MOVE: (f"a{first} += s{first}_{second}",),
            Code.SET: (f"r{first} = t + {second * TIME_SCALE}",),
            Code.CLEAR: (f"r{first} = 0",),
            Code.BRANCH: (
                *(f"p{first} += {second}", f"if p{first} >= {third}:"),
                *(f"    p{first} -= {third}", f"    t += {stall}"),
            ),
            Code.END: (f"out.extend((t // {TIME_SCALE}, wb, wf, dx, d0, d1, d3))", "yield -1"),
        }
        match code:
            case Code.LOOP:
                self._loop(first)
            case Code.NEXT:
                self._next(first, third)
            case Code.WAIT:
                self._emit(
                    f"if r{first} > t:", f"    {COUNTERS[second]} += r{first} - t", f"    t = r{first}"
                )
            case Code.ACCESS:
                self._access(first, second, third)
            case Code.FPU:
                if first:
                    self._yield(machine.fpus_rotate)
                self._unit("fpu_free", machine.fpu_interval_cycles, pooled=machine.fpu_mapping == "dynamic")
            case Code.DIVSQRT:
                self._yield(machine.fpus_rotate)
                self._unit("div_free", machine.divsqrt_interval_cycles, pooled=True)
            case _:
                self._emit(*plain[code])

    def _loop(self, index: int) -> None:
        self._emit(f"if w{index}:")
        self._indent += 1
        self._emit(f"for q{index} in h{index}:")
        self._indent += 1
        for name in COUNTERS:
            self._emit(f"v{index}_{name} = {name}")
        self._emit(f"for i{index} in range(q{index}):")
        self._indent += 1
        self._emit("pass")

    def _next(self, index: int, stall: int) -> None:
        self._indent -= 2
        if stall:
            self._emit(f"t -= {stall * TIME_SCALE}")
        for slot, info in enumerate(self._shape.slots):
            if index in info.path:
                self._emit(f"a{slot} -= w{index} * s{slot}_{index}")
        self._emit(f"if x{index}:")
        for name in COUNTERS:
            self._emit(f"    {name} += ({name} - v{index}_{name}) * x{index}")
        self._indent -= 1

    def _yield(self, rotate: int) -> None:
        """Ask for a unit: the key orders requests by cycle, and by the rank of the core in it."""
        if rotate:
            self._emit(f"yield t + (c - t // {TIME_SCALE}) % {rotate} * {REQUESTERS}")
        else:
            self._emit(f"yield t + c * {REQUESTERS}")

    def _unit(self, name: str, interval_cycles: int, *, pooled: bool) -> None:
        """Take a unit of the list `name`: the first free one of a pool, else unit `u` of this core."""
        self._emit(f"f = {name}[{0 if pooled else 'u'}]")
        self._emit("if f > t:", "    wf += f - t + c", "    t = f + c")
        free = f"t + k + {(interval_cycles - 1) * TIME_SCALE}" if interval_cycles > 1 else "t + k"
        self._emit(f"heapreplace({name}, {free})" if pooled else f"{name}[u] = {free}")

    def _access(self, slot: int, alignment: int, width_bytes: int) -> None:
        word, banks = self._machine.word_bytes, self._machine.banks
        if self._machine.banks_shared:
            whole = alignment == WHOLE_WORDS
            self._bank(f"a{slot} % {banks}" if whole else f"a{slot} // {word} % {banks}")
        if alignment == CROSSING:
            stall = self._machine.misaligned_stall_cycles * TIME_SCALE
            self._emit(f"if a{slot} % {word} + {width_bytes} > {word}:")
            self._indent += 1
            self._emit(f"t += {stall}", f"dx += {stall}")
            if self._machine.banks_shared:
                self._bank(f"(a{slot} // {word} + 1) % {banks}")
            self._indent -= 1

    def _bank(self, index: str) -> None:
        self._yield(self._machine.banks_rotate)
        self._emit(f"b = {index}", "f = bank_free[b]")
        self._emit("if f > t:", "    wb += f - t + c", "    t = f + c", "bank_free[b] = t + k")

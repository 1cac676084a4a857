# SPDX-License-Identifier: Apache-2.0
"""Defects of the tile loop: what is pushed and waited for when, and what of it is charged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from arch.spec.program import Command, DmaStart
from configs.values import replace
from scheduler.programs import program
from scheduler.programs.op_loop import OpLoop
from scheduler.programs.program import ProgramBuilder
from tools.timing_defects.change import Change, Replacement, around, registrar
from tools.timing_defects.transfers import as_run

DEFECTS: dict[str, Change] = {}
_defect = registrar(DEFECTS, "tile loop")

_LOOP = "scheduler/programs/op_loop.py"


def _built(change: Any) -> list[Replacement]:
    """Every tile loop, changed after it was made."""

    def wrong(right: Any, self: OpLoop, *args: Any) -> None:
        right(self, *args)
        change(self)

    return around(OpLoop, "__init__", wrong)


def _commands(instead: Callable[[Command], tuple[Command, ...]]) -> list[Replacement]:
    """Every command of a box, with others in its place."""

    def wrong(right: Any, *args: Any, **more: Any) -> tuple[Command, ...]:
        return tuple(each for command in right(*args, **more) for each in instead(command))

    return around(program, "commands_for", wrong)


_defect(_LOOP, "every output is waited for at once")(
    lambda: around(OpLoop, "_wait_for_stores", lambda right, self, name, left: right(self, name, 0))
)
_defect(_LOOP, "an output is waited for one tile later than it must be")(
    lambda: around(
        OpLoop, "_wait_for_stores", lambda right, self, name, left: right(self, name, left and left + 1)
    )
)


@_defect(_LOOP, "inputs are never loaded in advance")
def _not_ahead() -> Sequence[Replacement]:
    def change(loop: OpLoop) -> None:
        loop._ahead = {key: 0 if key[0] == "in" else ahead for key, ahead in loop._ahead.items()}

    return _built(change)


@_defect(_LOOP, "the next inputs are requested after the kernel, not before it")
def _pushed_late() -> Sequence[Replacement]:
    ahead, compute = OpLoop._load_ahead, OpLoop._compute

    def wrong(self: OpLoop, tile: int, task: Any) -> None:
        compute(self, tile, task)
        ahead(self, tile)

    return [(OpLoop, "_load_ahead", lambda self, tile: None), (OpLoop, "_compute", wrong)]


@_defect(_LOOP, "an input that is already in L1 is loaded again for every tile")
def _loaded_again() -> Sequence[Replacement]:
    def wrong(right: Any, self: OpLoop) -> Any:
        slots = right(self)
        uses: dict[str, int] = {}
        for tile, inputs in enumerate(slots):
            for name, item in inputs.items():
                use = uses[name] = uses.get(name, -1) + 1
                address = self._layout.address("in", name, use)
                inputs[name] = replace(item, loaded_by=tile, address=address)
        return slots

    return around(OpLoop, "_input_slots", wrong)


_defect(_LOOP, "all inputs of a tile are one transfer")(
    lambda: _built(lambda loop: setattr(loop, "_loads_at_once", 1))
)


@_defect(_LOOP, "the wait for an input costs the master nothing")
def _no_wait() -> Sequence[Replacement]:
    def wrong(self: OpLoop, tile: int) -> None:
        for name, item in self._inputs[tile].items():
            if item.loaded_by == tile:
                # The kernel depends on the transfer: it still begins behind it.
                start = self._awaited[name, tile] = self._started[name, tile]
                self._builder._under_way.pop(start, None)

    return [(OpLoop, "_wait_for_inputs", wrong)]


@_defect(_LOOP, "inputs are waited for in the opposite order of their requests")
def _opposite_waits() -> Sequence[Replacement]:
    def wrong(right: Any, self: OpLoop, tile: int) -> None:
        self._inputs[tile] = dict(reversed(self._inputs[tile].items()))
        right(self, tile)

    return around(OpLoop, "_wait_for_inputs", wrong)


_defect("scheduler/tiles/transfers.py", "every tile of a tensor takes two DMA commands")(
    lambda: _commands(_halves)
)


def _halves(command: Command) -> tuple[Command, ...]:
    if command.lines > 1:
        first = command.lines // 2
        moved, further = first * command.line_bytes, first * command.stride_bytes
        one = replace(command, lines=first, stride_bytes=command.stride_bytes if first > 1 else 0)
        two = replace(command, lines=command.lines - first)
        two = two if two.lines > 1 else replace(two, stride_bytes=0)
    else:
        moved = further = command.line_bytes // 8 * 4
        if not moved:
            return (command,)
        one, two = replace(command, line_bytes=moved), replace(command, line_bytes=command.line_bytes - moved)
    l1, external = two.l1_address + moved, two.external_address + further
    return one, replace(two, l1_address=l1, external_address=external)


_defect("scheduler/tiles/transfers.py", "a 2D tile of a matrix is moved like contiguous bytes")(
    lambda: _commands(lambda command: (as_run(command),))
)


@_defect("scheduler/programs/program.py", "the code around a transfer is not charged")
def _no_code() -> Sequence[Replacement]:
    def wrong(number: int, deps: Any, work: Any, commands: Any, code_cycles: int = 0) -> DmaStart:
        return DmaStart(number, deps, work, commands, 0)

    return [(program, "DmaStart", wrong)]


@_defect("scheduler/programs/program.py", "a transfer is requested and waited for at once")
def _blocking() -> Sequence[Replacement]:
    def wrong(right: Any, self: ProgramBuilder, *args: Any, **more: Any) -> Any:
        start = right(self, *args, **more)
        self.wait(start)
        return start

    return around(ProgramBuilder, "start", wrong)

# SPDX-License-Identifier: Apache-2.0
"""The actions of a program as statements: per op what the master core does, with the numbers that vary.

An identifier of a transfer is given out when it starts and is free again when it is waited for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from arch.spec.program import (
    Action,
    Command,
    Compute,
    DmaStart,
    DmaWait,
    Place,
    Program,
    Release,
    UdmaStart,
    UdmaWait,
)
from configs.errors import REPORT, InputError
from configs.values import Struct
from deploy.calls.call import CCall, Pointer, Table, c_calls
from scheduler.programs.rolling import Leaf, Loop, Node, places_of, rolled
from scheduler.table_form import is_of_tables
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.varying import Varying


class Transfer(Struct, frozen=True):
    """The form of a transfer, or of a wait for one: what is fixed in it."""

    function: str
    """That of platform.h."""
    record: str
    """Its record in a table."""
    what: str
    levels: tuple[str, ...]
    """Of each of its numbers: the level it is an address in; "" of other numbers."""


_DMA = {
    (True, True): ("pt_dma_in_2d", "LINES | INTO"),
    (False, True): ("pt_dma_out_2d", "LINES"),
    (True, False): ("pt_dma_in", "LOADS"),
    (False, False): ("pt_dma_out", "STORES"),
}
"""Function and record of a DMA command, by whether it loads and whether it is 2D."""

_UDMA = {True: ("pt_l3_in", "FAR | INTO"), False: ("pt_l3_out", "FAR")}
"""The same between L2 and L3."""


class Argument(Struct, frozen=True):
    """A field of a kernel's arguments: numbers of the statement, or one that varies, or what is `fixed`."""

    name: str
    levels: tuple[str, ...] = ()
    """Of each of its numbers, as in `Transfer`."""
    is_array: bool = False
    varying: int | None = None
    """Which of the program's varying numbers it is."""
    fixed: float | Table | None = None


_N = TypeVar("_N")


class Kernel(Struct, frozen=True):
    """The form of a kernel call; its numbers are those of its arguments, one after the other."""

    name: str
    struct: str
    fork: bool
    arguments: tuple[Argument, ...]

    @property
    def levels(self) -> tuple[str, ...]:
        """Of each of its numbers, as in `Transfer`."""
        return tuple(level for argument in self.arguments for level in argument.levels)

    def with_numbers(self, numbers: Iterable[_N]) -> Iterator[tuple[Argument, list[_N]]]:
        """Each argument with those of the statement's numbers that are its."""
        left = iter(numbers)
        return ((argument, [*islice(left, len(argument.levels))]) for argument in self.arguments)


Form = Transfer | Kernel


class Statement(Struct, frozen=True):
    """What is fixed in a statement, and numbers that may differ from one to the next."""

    form: Form
    numbers: Sequence[int]


@dataclass
class OpStatements:
    """What the master core does for one op; `dead` are buffers that end with it, `results` what it made."""

    op: Op
    number: int
    statements: list[Statement] = field(default_factory=list)
    dead: tuple[Place, ...] = ()
    results: tuple[Place, ...] = ()

    def copies_out(self, tensor: str) -> bool:
        """Whether it begins to copy the tensor from L2 to L3."""
        function, _ = _UDMA[False]
        forms = [each.form for each in self.statements if isinstance(each.form, Transfer)]
        return any(form.function == function and form.what == tensor for form in forms)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The statements with the loops that are in them."""
        return rolled([statement.form for statement in self.statements])

    def numbers_of(self, leaf: Leaf, around: Sequence[Loop]) -> NDArray[np.int64]:
        """Each number of a statement in all turns of the loops around it, with an axis per loop."""
        places = places_of(leaf, around)
        numbers = np.array([self.statements[place].numbers for place in places.flat], np.int64)
        return numbers.T.reshape(numbers.shape[1], *places.shape)


class _Identifiers:
    """Identifiers of transfers, as many as are under way at a time.

    A buffer has the one it had last time, if that is free, so that a loop over tiles has the same in every
    turn.
    """

    def __init__(self) -> None:
        self.most = 0
        self._free: set[int] = set()
        self._of: dict[int, int] = {}
        self._last: dict[Hashable, int] = {}

    def take(self, start: int, buffer: Hashable) -> int:
        """One for the transfer of action `start`."""
        if not self._free:
            self._free.add(self.most)
            self.most += 1
        number = self._last.get(buffer, -1)
        if number not in self._free:
            number = min(self._free - set(self._last.values()), default=min(self._free))
        self._last[buffer] = number
        self._free.remove(number)
        self._of[start] = number
        return number

    def give_back(self, start: int) -> int:
        """That of the transfer of action `start`, which is waited for."""
        number = self._of.pop(start)
        self._free.add(number)
        return number


class Statements:
    """The statements of a program, op by op; `transfers` and `external` are how many identifiers it needs."""

    def __init__(self, program: Program, graph: TrainingGraph, varying: list[Varying]) -> None:
        self.kernels: dict[str, None] = {}
        """Names of all kernels, in the order of their first calls."""
        self._graph, self._varying = graph, varying
        self._by_work = {(op.layer, op.step): op for op in graph.ops}
        self._ids, self._external_ids = _Identifiers(), _Identifiers()
        self.ops = self._segments(program.actions)
        self.transfers, self.external = self._ids.most, self._external_ids.most

    def _segments(self, actions: Sequence[Action]) -> list[OpStatements]:
        segments: list[OpStatements] = []
        statements: list[Statement] = []
        for action in actions:
            if is_of_tables(action):
                continue  # what walks tables moves them
            if isinstance(action, Release):
                number = len(segments)
                op, ended = self._graph.ops[number], tuple(item for item in action.places if item.size_bytes)
                segments.append(OpStatements(op, number, statements, ended, action.results))
                statements = []
            else:
                statements += self._statements(action)
        segments[-1].statements += statements
        return segments

    def _statements(self, action: Action) -> list[Statement]:
        what = action.work.what
        match action:
            case DmaStart():
                first = action.commands[0]
                number = self._ids.take(
                    action.id, (action.work.op, action.work.step, first.to_l1, first.l1_address)
                )
                return [_transfer(command, number, what) for command in action.commands]
            case DmaWait():
                return [_wait("pt_dma_wait", "WAITS", what, self._ids.give_back(action.transfer))]
            case UdmaStart():
                number = self._external_ids.take(action.id, (what, action.commands[0].l2_address))
                return [
                    Statement(
                        Transfer(*_UDMA[item.to_l2], what, ("", "l2", "l3", "")),
                        [number, item.l2_address, item.l3_address, item.size_bytes],
                    )
                    for item in action.commands
                ]
            case UdmaWait():
                number = self._external_ids.give_back(action.transfer)
                return [_wait("pt_l3_wait", "FAR_WAITS", what, number)]
            case Compute():
                op = self._by_work[action.work.op, action.work.step]
                return [self._call_statement(action, call) for call in c_calls(action, op)]
        what = f"op {action.work.op} has a {type(action).__name__}, which cannot be exported as C"
        raise InputError(what, cure=REPORT)

    def _call_statement(self, action: Compute, call: CCall) -> Statement:
        self.kernels.setdefault(call.kernel)
        arguments, numbers = [], list[int]()
        for name, value in call.fields:
            if isinstance(value, Varying):
                arguments.append(Argument(name, varying=self._number_of(value)))
            elif isinstance(value, Table | float):
                arguments.append(Argument(name, fixed=value))
            elif isinstance(value, Pointer):
                arguments.append(Argument(name, ("l1",)))
                numbers.append(value.address)
            else:
                own = value if isinstance(value, tuple) else (int(value),)
                arguments.append(Argument(name, ("",) * len(own), isinstance(value, tuple)))
                numbers += own
        return Statement(Kernel(call.kernel, call.struct, action.fork, tuple(arguments)), numbers)

    def _number_of(self, value: Varying) -> int:
        for number, earlier in enumerate(self._varying):
            if earlier is value:
                return number
        self._varying.append(value)
        return len(self._varying) - 1


def _transfer(command: Command, number: int, what: str) -> Statement:
    if command.external_level != "l2":
        text = f"{what} uses the DMA for {command.external_level}, which cannot be exported as C"
        raise InputError(text, cure="use a SoC whose DMA reaches L2 only")
    numbers = [number, command.l1_address, command.external_address, command.size_bytes]
    if command.lines > 1:
        numbers += [command.stride_bytes, command.line_bytes]
    levels = ("", "l1", "l2", "", "", "")[: len(numbers)]
    return Statement(Transfer(*_DMA[command.to_l1, command.lines > 1], what, levels), numbers)


def _wait(function: str, record: str, what: str, number: int) -> Statement:
    return Statement(Transfer(function, record, what, ("",)), [number])

# SPDX-License-Identifier: Apache-2.0
"""The actions of a program as statements: per op what the master core does, with the numbers that vary.

An identifier of a transfer is given out when it starts and is free again when it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

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
from deploy.calls.call import CCall, Pointer, Table
from scheduler.programs.rolling import Node, rolled
from scheduler.table_form import is_of_tables
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.varying import Varying


class Transfer(Struct, frozen=True):
    """The form of a DMA command; numbers: identifier, L1, L2, bytes and, in 2D, stride and line."""

    to_l1: bool
    strided: bool
    what: str


class External(Struct, frozen=True):
    """The form of a transfer between L2 and L3; numbers: identifier, L2, L3, bytes."""

    to_l2: bool
    what: str


class Wait(Struct, frozen=True):
    """The form of a wait; number: identifier."""

    external: bool
    what: str


class Argument(Struct, frozen=True):
    """A field of a kernel's arguments: a number that varies, or one that does not."""

    name: str
    kind: str
    """address, int (one number), ints (`count` of them), float, varying or table (no number)."""
    ctype: str = ""
    count: int = 1
    value: float = 0.0
    values: tuple[float, ...] = ()
    varying: int = 0
    """Which of the program's varying numbers it is."""

    @property
    def numbers(self) -> int:
        """How many of the statement's numbers are its."""
        return {"address": 1, "int": 1, "ints": self.count}.get(self.kind, 0)


class Kernel(Struct, frozen=True):
    """The form of a kernel call; its numbers are those of its arguments, one after the other."""

    name: str
    struct: str
    fork: bool
    arguments: tuple[Argument, ...]


class Statement(Struct, frozen=True):
    """What is fixed in a statement, and numbers that may differ from one to the next."""

    form: Hashable
    numbers: Sequence[int]


@dataclass
class OpStatements:
    """What the master core does for one op; `dead` are buffers that end with it, `results` what it made."""

    op: Op
    number: int
    statements: list[Statement] = field(default_factory=list)
    dead: tuple[Place, ...] = ()
    results: tuple[Place, ...] = ()

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The statements with the loops that are in them."""
        return rolled([statement.form for statement in self.statements])


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


Call = Callable[[Compute, Op], Sequence[CCall]]
"""What an action is in C: functions that do it, one after the other."""


class Statements:
    """The statements of a program, op by op; `transfers` and `external` are how many identifiers it needs."""

    def __init__(self, program: Program, graph: TrainingGraph, call: Call, varying: list[Varying]) -> None:
        self.kernels: dict[str, None] = {}
        """Names of all kernels, in the order of their first calls."""
        self._graph, self._call, self._varying = graph, call, varying
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
                ended = tuple([place for place in action.places if place.size_bytes])
                segments.append(
                    OpStatements(self._graph.ops[number], number, statements, ended, action.results)
                )
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
                return [Statement(Wait(False, what), [self._ids.give_back(action.transfer)])]
            case UdmaStart():
                number = self._external_ids.take(action.id, (what, action.commands[0].l2_address))
                return [
                    Statement(
                        External(item.to_l2, what),
                        [number, item.l2_address, item.l3_address, item.size_bytes],
                    )
                    for item in action.commands
                ]
            case UdmaWait():
                return [Statement(Wait(True, what), [self._external_ids.give_back(action.transfer)])]
            case Compute():
                op = self._by_work[action.work.op, action.work.step]
                return [self._call_statement(action, call) for call in self._call(action, op)]
        what = f"op {action.work.op} has a {type(action).__name__}, which cannot be exported as C"
        raise InputError(what, cure=REPORT)

    def _call_statement(self, action: Compute, call: CCall) -> Statement:
        self.kernels.setdefault(call.kernel)
        arguments, numbers = [], list[int]()
        for name, value in call.fields:
            if isinstance(value, Pointer):
                arguments.append(Argument(name, "address", value.ctype))
                numbers.append(value.address)
            elif isinstance(value, Varying):
                arguments.append(Argument(name, "varying", varying=self._number_of(value)))
            elif isinstance(value, Table):
                arguments.append(Argument(name, "table", values=value.values))
            elif isinstance(value, tuple):
                arguments.append(Argument(name, "ints", count=len(value)))
                numbers += value
            elif isinstance(value, float):
                arguments.append(Argument(name, "float", value=value))
            else:
                arguments.append(Argument(name, "int"))
                numbers.append(int(value))
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
    return Statement(Transfer(command.to_l1, command.lines > 1, what), numbers)


def levels_of(form: Hashable) -> Mapping[int, str]:
    """Which numbers of a statement are addresses: position -> level."""
    match form:
        case Transfer():
            return {1: "l1", 2: "l2"}
        case External():
            return {1: "l2", 2: "l3"}
        case Kernel(arguments=arguments):
            position, levels = 0, dict[int, str]()
            for item in arguments:
                if item.kind == "address":
                    levels[position] = "l1"
                position += item.numbers
            return levels
    return {}

# SPDX-License-Identifier: Apache-2.0
"""The table of an op in network.c, as `deploy/project/tables.c` walks it: words, one record a line."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

import numpy as np

from configs.values import Struct
from deploy.calls.call import Table
from deploy.program.buffers import Buffer, Buffers
from deploy.program.statements import Argument, Kernel, OpStatements, Transfer
from scheduler.programs.rolling import Leaf, Loop, Node, Run, first_call, in_records, runs_of, table_nodes

END_WORDS, FETCH_WORDS = 1, 4

WIDTH = 108
"""Of the lines of a call, at most."""

DETAIL = 16
"""Bits above which the first word of a record has its detail."""

FETCH, BEHIND = "@fetch@", "@behind@"
"""Stand for the record that brings the next tables, and for the address of what lies behind all records."""


class _Change(Struct, frozen=True):
    """A word of the table that differs from turn to turn: the `runs` of what is added, over and over."""

    word: int
    runs: Sequence[Run]

    @property
    def text(self) -> str:
        """Its words: a pair if every turn adds the same."""
        if len(self.runs) == 1:
            return f"{self.word}, {_word(self.runs[0][1])}"
        runs = ", ".join(f"{turns}, {_word(step)}" for turns, step in self.runs)
        return f"{self.word}, 0, {self.runs[0][0]}, {len(self.runs)}, {runs}"


class OpTable:
    """The table of one op: its records, `words` of 32 bits, and the constants they refer to.

    These lie behind all tables that come together.
    `kernels` has the numbers of kernels and grows by those that are called here. With `fetches` it has room
    for the record that brings the next tables.
    """

    def __init__(
        self, statements: OpStatements, buffers: Buffers, kernels: dict[str, int], *, fetches: bool
    ) -> None:
        self._op, self._buffers, self._kernels = statements, buffers, kernels
        self.constants: list[float] = []
        self.records: list[str] = []
        self.words = 0
        nodes = [*table_nodes(statements.nodes)]
        first = first_call(nodes, lambda form: isinstance(form, Kernel)) if fetches else 0
        first = first if first < len(nodes) else 0
        self._add_nodes(nodes[:first], ())
        if fetches:
            self._append(FETCH, FETCH_WORDS)
        self._add_nodes(nodes[first:], ())
        self._append("0,", END_WORDS)

    def _add_nodes(self, nodes: Sequence[Node], around: tuple[Loop, ...]) -> list[_Change]:
        """Append records; the words that the innermost loop around them changes."""
        changes: list[_Change] = []
        for alike in in_records(nodes, _is_near_wait):
            node = alike[0]
            if isinstance(node, Leaf):
                changes += (
                    self._add_waits(alike, around) if _is_near_wait(node.form) else self._add(node, around)
                )
                continue
            begin = self.words
            inside = sorted(self._add_nodes(node.body, (*around, node)), key=lambda item: len(item.runs) > 1)
            steady = sum(len(change.runs) == 1 for change in inside)
            begun = f"TURNS | {steady} * DETAIL, {self.words - begin}, {node.count}, {node.count}"
            record = ", ".join([begun, str(len(inside) - steady), *(change.text for change in inside)])
            self._append(f"{record},", record.count(",") + 1)
        return changes

    def _add_waits(self, waits: Sequence[Node], around: Sequence[Loop]) -> list[_Change]:
        """One record; a transfer is 4 bits, one more than its identifier."""
        texts, about, changes = list[str](), list[str](), list[_Change]()
        for number, leaf in enumerate(waits):
            assert isinstance(leaf, Leaf)
            assert isinstance(leaf.form, Transfer)
            identifiers = self._op.numbers_of(leaf, around).reshape(-1)
            texts.append(f"{identifiers[0] + 1} * DETAIL" + (f" << {4 * number}" if number else ""))
            about.append(leaf.form.what)
            runs = [(turns, step << DETAIL + 4 * number) for turns, step in runs_of(identifiers)]
            changes += [_Change(self.words, runs)] if runs else []
        self._append(f"WAITS | {' | '.join(texts)}, /* {', '.join(about)} */", 1)
        return changes

    def _add(self, leaf: Leaf, around: Sequence[Loop]) -> list[_Change]:
        form, first = self._op.statements[leaf.place].form, self.words
        turns = [each.reshape(-1) for each in self._op.numbers_of(leaf, around)]
        words = [self._number(level, int(each[0])) for level, each in zip(form.levels, turns, strict=True)]
        runs = [*map(runs_of, turns)]
        if isinstance(form, Kernel):
            return self._call(form, words, runs)
        record = [f"{form.record} | {words[0]} * DETAIL", *words[1:], f"/* {form.what} */"]
        self._append(", ".join(record), len(words))
        return [
            _Change(first + place, [(turns, step << DETAIL if place == 0 else step) for turns, step in found])
            for place, found in enumerate(runs)
            if found
        ]

    def _call(self, form: Kernel, words: Sequence[str], runs: Sequence[Sequence[Run]]) -> list[_Change]:
        """The record of a call, behind those that put varying numbers into it."""
        at = self.words + 3 * sum(argument.varying is not None for argument in form.arguments) + 2
        mask, texts, changes = 0, list[str](), list[_Change]()
        for argument, own in form.with_numbers(zip(words, runs, strict=True)):
            if argument.levels == ("l1",) or isinstance(argument.fixed, Table):
                mask |= 1 << len(texts)
            if argument.varying is not None:
                self._append(f"VARIES, {at + len(texts)}, {argument.varying}, /* {argument.name} */", 3)
            changes += [_Change(at + len(texts) + n, found) for n, (_, found) in enumerate(own) if found]
            texts += self._values(argument, [word for word, _ in own])
        number = self._kernels.setdefault(form.name, len(self._kernels))
        masks = [f"0x{mask >> bits & 0xFFFFFFFF:x}" for bits in range(0, len(texts), 32)]
        kind = "CALLS" if form.fork else "ALONE"
        texts += masks
        self._append(f"{kind} | {len(texts)} * DETAIL, {number}, /* {form.name} */", 2)
        names = ", ".join(argument.name for argument in form.arguments)
        about = wrap(f"/* {names} */", WIDTH, subsequent_indent=" * ")
        words = wrap(f"{', '.join(texts)},", WIDTH, break_long_words=False)
        self.records += [f"    {line}" for line in (*about, *words)]
        self.words += len(texts)
        return changes

    def _values(self, argument: Argument, words: Sequence[str]) -> Sequence[str]:
        match argument.fixed:
            case float():
                return [_bits(argument.fixed)]
            case Table(values=values):
                first = len(self.constants)
                self.constants += values
                return [f"{BEHIND} + {4 * first}"] if values else ["NOWHERE"]
        return words if argument.varying is None else ["0"]

    @property
    def size_bytes(self) -> int:
        """Of the records and the constants."""
        return 4 * (self.words + len(self.constants))

    def _append(self, line: str, words: int) -> None:
        self.records.append(line)
        self.words += words

    def _number(self, level: str, number: int) -> str:
        """A number, or an address in a `level`, by the name of its buffer but in L3."""
        if level in ("", "l3"):
            return str(_word(number))
        (buffer,) = self._buffers.found(level, self._op.number, np.array([number]))
        offset = number - buffer.allocation.address
        return f"{buffer.name} + {offset}" if offset else buffer.name


class GroupTable:
    """The tables of some `ops`, by number, in one array that comes to buffer `place` before op `first`."""

    def __init__(self, name: str, first: int, ops: Sequence[OpTable], place: Buffer) -> None:
        self.name, self.first, self.place = f"{name}_tables", first, place
        self.ops = dict(enumerate(ops, first))
        self.words = sum(op.size_bytes for op in ops) // 4 or END_WORDS

    @property
    def start(self) -> str:
        """The statement that brings it."""
        return f"pt_dma_in(NETWORK_TABLES, L1({self.place.name}), {self.name}, {4 * self.words});"

    def address(self, number: int) -> str:
        """Where the table of an op is then."""
        before = sum(op.words for other, op in self.ops.items() if other < number)
        return self.place.name + (f" + {4 * before}" if before else " | NETWORK_FETCHED")

    def lines(self, abouts: Sequence[str], following: GroupTable | None, number: int) -> list[str]:
        """The definition in C, what is said about all ops; the group that follows has a `number`."""
        behind = sum(op.words for op in self.ops.values())
        fetch = f"FETCH, {following.place.name}, {number}, {4 * following.words}," if following else ""
        text, constants = list[str](), list[float]()
        for op_number, op in self.ops.items():
            address = f"{self.place.name} + {4 * (behind + len(constants))}"
            records = [line.replace(FETCH, fetch).replace(BEHIND, address) for line in op.records]
            text += [f"    {line}" for line in (abouts[op_number], *records)]
            constants += op.constants
        bits = [f"    {', '.join(map(_bits, constants))},"] if constants else []
        return [f"static uint32_t {self.name}[] = {{", *(text or ["    0,"]), *bits, "};"]


def _is_near_wait(form: object) -> bool:
    return isinstance(form, Transfer) and form.record == "WAITS"


def _word(number: int) -> int | str:
    """A number as 32 bits."""
    return f"0x{number & 0xFFFFFFFF:x}" if number < 0 else number


def _bits(value: float) -> str:
    return f"0x{np.float32(value).view(np.uint32):x}"

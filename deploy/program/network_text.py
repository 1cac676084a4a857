# SPDX-License-Identifier: Apache-2.0
"""network.c: one function per op, tile loops and all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from deploy.calls.call import Table
from deploy.calls.expression import float_text
from deploy.program.buffers import INDICES, Buffer, Buffers
from deploy.program.index_arithmetic import Numbers, expression
from deploy.program.statements import Argument, Kernel, OpStatements
from deploy.program.table_text import GroupTable
from scheduler.programs.rolling import Leaf, Loop, Node

WIDTH = 118
"""Of a line, at most, where it can be broken."""


class OpText:
    """The C text of one op: `tables` are the arrays it looks numbers up in, `lines` its function, which
    begins with the statements `first`."""

    def __init__(
        self, name: str, statements: OpStatements, buffers: Buffers, first: Sequence[str] = ()
    ) -> None:
        self.tables: list[str] = []
        self._name, self._op, self._buffers = name, statements, buffers
        body = [line for node in statements.nodes for line in self._node(node)]
        begin = [f"    {statement}" for statement in first]
        self.lines = [*self.tables, f"void {name}(void) {{", *begin, *body, "}"]

    def _node(self, node: Node, *around: Loop) -> list[str]:
        indent = "    " * (1 + len(around))
        if isinstance(node, Leaf):
            return self._statement(node, around, indent)
        index = _index(len(around))
        head = f"{indent}for (int {index} = 0; {index} < {node.count}; {index}++) {{"
        body = [line for item in node.body for line in self._node(item, *around, node)]
        return [head, *body, f"{indent}}}"]

    def _statement(self, leaf: Leaf, around: Sequence[Loop], indent: str) -> list[str]:
        form = self._op.statements[leaf.place].form
        indices = [_index(depth) for depth in range(len(around))]
        numbers = zip(form.levels, self._op.numbers_of(leaf, around), strict=True)
        texts = [_bare(self._number(level, values, indices)) for level, values in numbers]
        if isinstance(form, Kernel):
            return _call(form, texts, indent)
        return [f"{indent}{form.function}({', '.join(texts)}); /* {form.what} */"]

    def _number(self, level: str, values: Numbers, indices: Sequence[str]) -> str:
        """A number, or an address in a `level`."""
        if not level:
            return expression(values, indices, self._table)
        buffers = self._buffers.found(level, self._op.number, values)
        bases = np.array([buffer.allocation.address for buffer in buffers], np.int64).reshape(values.shape)
        name = _alternating(buffers, bases, indices)
        if not name:
            first = min(buffers, key=lambda buffer: buffer.allocation.address)
            name = first.name
            bases[...] = first.allocation.address
        offset = expression(values - bases, indices, self._table)
        place = name if offset == "0" else f"{name} + {offset}"
        return place if level == "l3" else f"{level.upper()}({_bare(place)})"

    def _table(self, values: Numbers) -> str:
        name = f"{self._name}_{len(self.tables)}"
        numbers = ", ".join(str(int(value)) for value in values)
        self.tables.append(f"static const int32_t {name}[] = {{{numbers}}};")
        return name


def _index(depth: int) -> str:
    return INDICES[depth] if depth < len(INDICES) else f"n{depth}"


def _alternating(buffers: Sequence[Buffer], bases: Numbers, indices: Sequence[str]) -> str:
    """A choice between two buffers by the innermost index, where turns alternate; else nothing."""
    if not indices or len({buffer.name for buffer in buffers}) != 2:
        return ""
    even, odd = np.unique(bases[..., 0::2]), np.unique(bases[..., 1::2])
    if even.size != 1 or odd.size != 1:
        return ""
    names = {buffer.allocation.address: buffer.name for buffer in buffers}
    return f"({indices[-1]} % 2 ? {names[int(odd[0])]} : {names[int(even[0])]})"


def _bare(text: str) -> str:
    """An expression without parentheses around all of it."""
    return text[1:-1] if re.fullmatch(r"\([^()]*\)", text) else text


def _call(form: Kernel, texts: Sequence[str], indent: str) -> list[str]:
    """A call with its arguments by name, several on a line."""
    items = [f".{argument.name} = {_value(argument, own)}" for argument, own in form.with_numbers(texts)]
    head = f"{indent}{'pt_fork' if form.fork else 'pt_alone'}({form.name}, &(struct {form.struct}){{"
    lines, line = [], head
    for number, item in enumerate(items):
        text = item + ("," if number < len(items) - 1 else "});")
        if len(line) + len(text) + 1 > WIDTH and line != head:
            lines.append(line)
            line = f"{indent}    {text}"
        else:
            line += text if line == head else f" {text}"
    return [*lines, line]


def _value(argument: Argument, texts: Sequence[str]) -> str:
    if argument.varying is not None:
        return f"network_varying[{argument.varying}]"
    match argument.fixed:
        case float():
            return float_text(argument.fixed)
        case Table(values=values):
            return f"(const float[]){{{', '.join(map(float_text, values))}}}" if values else "0"
    return f"{{{', '.join(texts)}}}" if argument.is_array else texts[0]


def ops_text(
    ops: Sequence[OpStatements],
    names: Sequence[str],
    buffers: Buffers,
    groups: Sequence[GroupTable] = (),
    first_number: int = 0,
) -> str:
    """The functions of all ops, behind the tables of those that are none, numbered from the first on."""
    abouts = [
        f"/* {op.name}: {op.primitive}, {', '.join(op.inputs)} -> {', '.join(op.outputs)} */"
        for op in (item.op for item in ops)
    ]
    following = dict(pairwise(groups))
    parts = [
        "\n".join(group.lines(abouts, following.get(group), number))
        for number, group in enumerate(groups, first_number + 1)
    ]
    begins: dict[int, list[str]] = {0: [group.start for group in groups[:1]]}
    for group in groups:
        if group.first not in group.ops:
            after = [following[group].start] if group in following else []
            begins.setdefault(group.first, []).extend(["pt_dma_wait(NETWORK_TABLES);", *after])
    walked = {number: group.address(number) for group in groups for number in group.ops}
    for number, (name, item) in enumerate(zip(names, ops, strict=True)):
        first = begins.get(number, [])
        if number not in walked:
            parts.append("\n".join([abouts[number], *OpText(name, item, buffers, first).lines]))
        elif first:
            body = "\n".join(f"    {statement}" for statement in (*first, f"network_walk({walked[number]});"))
            parts.append(f"static void {name}_begin(void) {{\n{body}\n}}")
    return "\n\n".join(parts)


def loops_of(nodes: Sequence[Node]) -> int:
    """How many loops there are."""
    return sum(1 + loops_of(node.body) for node in nodes if isinstance(node, Loop))

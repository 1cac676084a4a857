# SPDX-License-Identifier: Apache-2.0
"""network.c: one function per op, tile loops and all."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np

from deploy.program.buffers import INDICES, Buffer, Buffers
from deploy.program.index_arithmetic import Numbers, expression
from deploy.program.statements import Argument, External, Kernel, OpStatements, Transfer, Wait, levels_of
from deploy.program.table_text import GroupTable
from scheduler.programs.rolling import Leaf, Loop, Node, places_of

WIDTH = 118
"""Of a line, at most, where it can be broken."""


class OpText:
    """The C text of one op: `tables` are the arrays it looks numbers up in, `lines` its function, which
    begins with the statements `first`."""

    def __init__(
        self, name: str, statements: OpStatements, buffers: Buffers, first: Sequence[str] = ()
    ) -> None:
        self.tables: list[str] = []
        self._name, self._op_number, self._buffers = name, statements.number, buffers
        self._statements = statements.statements
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
        form, levels, places = leaf.form, levels_of(leaf.form), places_of(leaf, around)
        indices = [_index(depth) for depth in range(len(around))]
        numbers = [self._statements[place].numbers for place in places.flat]
        by_number = np.array(numbers, np.int64).T.reshape(len(numbers[0]), *places.shape)
        texts = [
            self._address(levels[position], values, indices)
            if position in levels
            else self._number(values, indices)
            for position, values in enumerate(by_number)
        ]
        if isinstance(form, Kernel):
            return _call(form, texts, indent)
        text = _simple(form, texts)
        return [f"{indent}{text}"]

    def _number(self, values: Numbers, indices: Sequence[str]) -> str:
        return expression(values, indices, self._table)

    def _address(self, level: str, values: Numbers, indices: Sequence[str]) -> str:
        buffers = self._buffers.found(level, self._op_number, values)
        first = min(buffers, key=lambda buffer: buffer.allocation.address)
        offset = values - first.allocation.address
        names = {buffer.name for buffer in buffers}
        if len(names) == 2 and indices:
            chosen = self._alternating(buffers, values, indices)
            if chosen:
                return _at(level, chosen)
        text = expression(offset, indices, self._table)
        return _at(level, first.name if text == "0" else f"{first.name} + {text}")

    def _alternating(self, buffers: Sequence[Buffer], values: Numbers, indices: Sequence[str]) -> str:
        """A choice between two buffers by the innermost index, where turns alternate; else nothing."""
        bases = np.array([buffer.allocation.address for buffer in buffers], np.int64).reshape(values.shape)
        even, odd = bases[..., 0::2], bases[..., 1::2]
        if even.size == 0 or odd.size == 0 or even.min() != even.max() or odd.min() != odd.max():
            return ""
        names = {buffer.allocation.address: buffer.name for buffer in buffers}
        choice = f"({indices[-1]} % 2 ? {names[int(odd.flat[0])]} : {names[int(even.flat[0])]})"
        offset = expression(values - bases, indices, self._table)
        return choice if offset == "0" else f"{choice} + {offset}"

    def _table(self, values: Numbers) -> str:
        name = f"{self._name}_{len(self.tables)}"
        numbers = ", ".join(str(int(value)) for value in values)
        self.tables.append(f"static const int32_t {name}[] = {{{numbers}}};")
        return name


def _index(depth: int) -> str:
    return INDICES[depth] if depth < len(INDICES) else f"n{depth}"


def _at(level: str, offset: str) -> str:
    return offset if level == "l3" else f"{level.upper()}({_bare(offset)})"


def _simple(form: Hashable, texts: Sequence[str]) -> str:
    match form:
        case Transfer(to_l1=to_l1, strided=strided, what=what):
            name = f"pt_dma_{'in' if to_l1 else 'out'}{'_2d' if strided else ''}"
        case External(to_l2=to_l2, what=what):
            name = f"pt_l3_{'in' if to_l2 else 'out'}"
        case Wait(external=external, what=what):
            name = f"pt_{'l3' if external else 'dma'}_wait"
        case _:
            raise AssertionError(form)
    return f"{name}({', '.join(_bare(text) for text in texts)}); /* {what} */"


def _bare(text: str) -> str:
    """An expression without parentheses around all of it."""
    return text[1:-1] if re.fullmatch(r"\([^()]*\)", text) else text


def _call(form: Kernel, texts: Sequence[str], indent: str) -> list[str]:
    """A call with its arguments by name, several on a line."""
    items, position = [], 0
    for argument in form.arguments:
        count = argument.numbers
        items.append(f".{argument.name} = {_value(argument, texts[position : position + count])}")
        position += count
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
    match argument.kind:
        case "ints":
            return "{" + ", ".join(_bare(text) for text in texts) + "}"
        case "float":
            return float_text(argument.value)
        case "table":
            numbers = ", ".join(map(float_text, argument.values))
            return f"(const float[]){{{numbers}}}" if numbers else "0"
        case "varying":
            return f"network_varying[{argument.varying}]"
    return _bare(texts[0])


def float_text(value: float) -> str:
    """The nearest fp32 number as a C constant, exactly."""
    single = np.float32(value)
    if not np.isfinite(single):
        return "NAN" if np.isnan(single) else ("INFINITY" if single > 0 else "-INFINITY")
    text = f"{single:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def ops_text(
    ops: Sequence[OpStatements],
    names: Sequence[str],
    buffers: Buffers,
    groups: Sequence[GroupTable] = (),
    first_number: int = 0,
) -> str:
    """The functions of all ops, behind the tables of those that are none, numbered from the first on."""
    abouts = []
    for item in ops:
        op = item.op
        abouts.append(f"/* {op.name}: {op.primitive}, {', '.join(op.inputs)} -> {', '.join(op.outputs)} */")
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

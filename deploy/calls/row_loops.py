# SPDX-License-Identifier: Apache-2.0
"""Row programs (`trainlib.primitives.lowering.row_loop`) as C, in as few loops over a row as they need.

What is stored of an element, and what it adds to a sum, share the loop in which both are known; what is known
of a whole row is computed between loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deploy.calls.expression import ELEMENT, REDUCTIONS, ROW, Symbol, Trace, Writer
from trainlib.primitives.lowering.row_loop import RowLoop


def traced(loop: RowLoop) -> tuple[Trace, dict[str, Symbol]]:
    """The formula on symbols; results by array, those of parts as ``P_0``, ``P_1`` ..."""
    trace = Trace()

    def array(name: str) -> Any:
        if name in loop.parts:
            return tuple(trace.array(f"{name}_{part}") for part in range(loop.parts[name]))
        return trace.array(name, known=ROW if name in loop.of_rows else ELEMENT)

    made = loop.formula(*map(array, loop.reads))
    results = (made,) if len(loop.writes) == 1 and loop.writes not in loop.parts else made
    named: dict[str, Symbol] = {}
    for name, result in zip(loop.writes, results, strict=True):
        if name in loop.parts:
            named |= {f"{name}_{part}": trace.symbol(item) for part, item in enumerate(result)}
        else:
            named[name] = trace.symbol(result)
    return trace, named


def body(
    loop: RowLoop, results: Mapping[str, Symbol], rows: str, elements: str, *, narrow: bool = False
) -> list[str]:
    """The statements of a kernel; sizes are the fields of its arguments with these names.

    If an array is `narrow`, all are loaded and stored in their formats.
    """
    if not rows:
        return list(_over_elements(results, elements, narrow))
    writer = RowWriter(results, f"arg->{elements}", narrow)
    lines = [f"const struct pt_range own = pt_own(arg->{rows});"]
    lines.append("for (int r = own.start; r < own.stop; r++) {")
    for name in dict.fromkeys((*loop.reads, *loop.writes)):
        if name not in loop.of_rows:
            kind = "float *" if name in loop.writes else "const float *"
            kind = "PT_POINTER " if narrow else kind
            lines.append(f"    {kind}{name} = arg->{name} + r * arg->{elements};")
    return [*lines, *(f"    {line}" for line in writer.row), "}"]


def load(array: str, index: str, narrow: bool) -> str:
    """An element of an array."""
    return f"PT_LOAD({array}, {index})" if narrow else f"{array}[{index}]"


def store(array: str, index: str, text: str, narrow: bool) -> str:
    """The statement by which an element gets a value."""
    return f"PT_STORE({array}, {index}, {text});" if narrow else f"{array}[{index}] = {text};"


def _over_elements(results: Mapping[str, Symbol], elements: str, narrow: bool) -> Iterator[str]:
    def index(part: str) -> str:
        before = f"{part} * arg->{elements} + " if part not in ("", "0", "1") else ""
        return f"{f'arg->{elements} + ' if part == '1' else before}i"

    def place(name: str, known: int = ELEMENT) -> str:
        array, _, part = name.partition("_")
        return load(f"arg->{array}", index(part), narrow)

    writer = Writer(results, place)
    yield f"const struct pt_range own = pt_own(arg->{elements});"
    yield "for (int i = own.start; i < own.stop; i++) {"
    yield from (f"    {line}" for line in writer.inside)
    for name, text in writer.results.items():
        array, _, part = name.partition("_")
        yield f"    {store(f'arg->{array}', index(part), text, narrow)}"
    yield "}"


class RowWriter(Writer):
    """Statements of one row."""

    def __init__(self, results: Mapping[str, Symbol], count: str, narrow: bool) -> None:
        """`count` is how many elements a row has."""
        self.row: list[str] = []
        """Numbers of the row, its loops, and what is stored of it."""
        self._length, self._narrow = count, narrow
        self._depths: dict[int, int] = {}
        self._sums: dict[int, list[Symbol]] = {}
        self._of_elements: list[int] = []
        super().__init__({}, self._place)
        for item in results.values():
            self._count(item)
        elements = {name: item for name, item in results.items() if item.known == ELEMENT}
        if len(elements) > 1:
            self._fresh = {id(item): f"new_{name}" for name, item in elements.items()}
        for depth in range(max(map(self._depth, results.values())) + 1):
            stored = {name: item for name, item in elements.items() if self._depth(item) == depth}
            if stored or depth in self._sums:
                self._loop(stored, self._sums.get(depth, []))
        of_row = {name: item for name, item in results.items() if name not in elements}
        self.row += [store(f"arg->{name}", "r", self.text(item), narrow) for name, item in of_row.items()]

    def _place(self, name: str, known: int) -> str:
        return load(*((f"arg->{name}", "r") if known == ROW else (name, "i")), self._narrow)

    def _depth(self, item: Symbol) -> int:
        """Loops over the row that come before a value is known."""
        if id(item) not in self._depths:
            depth = max(map(self._depth, item.args), default=0)
            if item.op in REDUCTIONS:
                self._sums.setdefault(depth, []).append(item)
                depth += 1
            self._depths[id(item)] = depth
        return self._depths[id(item)]

    def _loop(self, stored: Mapping[str, Symbol], sums: Sequence[Symbol]) -> None:
        names: dict[int, str] = {}
        self.inside, first, begun = [], 0, []
        for item in sums:
            begin, name = REDUCTIONS[item.op][0], f"{item.op}{len(self._names) + len(names) or ''}"
            if item.op == "largest" and item.args[0].op[0] == "@" and len(sums) + len(stored) == 1:
                begin, first = load(item.args[0].op[1:], "0", self._narrow), 1
            begun.append(f"float {name} = {begin};")
            names[id(item)] = name
        texts = {name: self.text(item, user=ELEMENT) for name, item in stored.items()}
        steps = [
            REDUCTIONS[item.op][1].format(names[id(item)], self.text(item.args[0], user=ELEMENT))
            for item in sums
        ]
        steps += [store(name, "i", text, self._narrow) for name, text in texts.items()]
        self.row += [*begun, f"for (int i = {first}; i < {self._length}; i++) {{"]
        self.row += [*(f"    {line}" for line in (*self.inside, *steps)), "}"]
        for known in self._of_elements:
            self._names.pop(known, None)
        self._names |= names

    def _named(self, item: Symbol, text: str) -> str:
        if item.known == ELEMENT:
            self._of_elements.append(id(item))
        return super()._named(item, text)

    def _lines(self, known: int) -> list[str]:
        return self.row if known == ROW else super()._lines(known)

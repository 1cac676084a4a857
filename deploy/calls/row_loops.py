# SPDX-License-Identifier: Apache-2.0
"""Row programs (`trainlib.primitives.lowering.row_loop`) as C, in as few loops over a row as they need.

What is stored of an element, and what it adds to a sum, share the loop in which both are known; what is known
of a whole row is computed between loops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deploy.calls.expression import COMPARE, ELEMENT, REDUCTIONS, ROW, SEGMENT, Symbol, Trace, Writer
from trainlib.primitives.lowering.row_loop import RowLoop


def traced(loop: RowLoop) -> tuple[Trace, dict[str, Symbol]]:
    """The formula on symbols; results by array, those of parts as ``P_0``, ``P_1`` ..."""
    trace = Trace()

    def array(name: str) -> Any:
        if name in loop.parts:
            return tuple(trace.array(f"{name}_{part}") for part in range(loop.parts[name]))
        return trace.array(name, known=_known(loop, name))

    numbers = {name: trace.option(name, number) for name, number in loop.numbers.items()}
    made = loop.formula(*map(array, loop.reads), **numbers)
    results = (made,) if len(loop.writes) == 1 and loop.writes not in loop.parts else made
    named: dict[str, Symbol] = {}
    for name, result in zip(loop.writes, results, strict=True):
        if name in loop.parts:
            named |= {f"{name}_{part}": trace.symbol(item) for part, item in enumerate(result)}
        else:
            item, known = trace.placed(trace.symbol(result)), _known(loop, name)
            named[name] = item if item.known >= known else trace.new_symbol("each", (item,), known=known)
    return trace, named


def _known(loop: RowLoop, name: str) -> int:
    indices = set(re.findall(r"\b[rsi]\b", loop.places.get(name, "i")))
    return ELEMENT if "i" in indices else SEGMENT if "s" in indices and len(loop.elements) > 1 else ROW


def body(loop: RowLoop, results: Mapping[str, Symbol], *, narrow: bool = False) -> list[str]:
    """The statements of a kernel; sizes are fields of its arguments.

    If an array is `narrow`, all are loaded and stored in their formats.
    """
    if not loop.rows:
        return _over_elements(results, loop.elements[0], narrow)
    writer = RowWriter(loop, results, narrow)
    if loop.rows == ("1",):
        return [*writer.before, *pointers(loop, writer.used, ""), *writer.row]
    shared = loop.elements[-1] if loop.across else loop.rows[0]
    lines = [*writer.before, f"const struct pt_range own = pt_own(arg->{shared});"]
    inner = [*pointers(loop, writer.used, "s" if len(loop.rows) > 1 else ""), *writer.row]
    for size in loop.rows[1:]:
        inner = loop_over("s", ("0", f"arg->{size}"), inner)
    ends = ("0", f"arg->{loop.rows[0]}") if loop.across else ("own.start", "own.stop")
    return [*lines, *loop_over("r", ends, inner)]


def load(array: str, index: str, narrow: bool) -> str:
    """An element of an array."""
    return f"PT_LOAD({array}, {index})" if narrow else f"{array}[{index}]"


def store(place: str, text: str) -> str:
    """The statement by which what `load` gives gets a value."""
    if place.startswith("PT_LOAD("):
        return f"PT_STORE({place[len('PT_LOAD(') : -1]}, {text});"
    return f"{place} = {text};"


def _over_elements(results: Mapping[str, Symbol], elements: str, narrow: bool) -> list[str]:
    def place(name: str, known: int = ELEMENT) -> str:
        array, _, part = name.partition("_")
        before = "" if part in ("", "0") else f"{'' if part == '1' else part + ' * '}arg->{elements} + "
        return load(f"arg->{array}", f"{before}i", narrow)

    writer = Writer(results, place)
    return over_own(writer, elements, [store(place(name), text) for name, text in writer.results.items()])


def over_own(writer: Writer, size: str, stores: Sequence[str]) -> list[str]:
    """The statements of a writer, those of its loop over this core's share of `size` elements."""
    loop = loop_over("i", ("own.start", "own.stop"), [*writer.inside, *stores])
    return [*writer.before, f"const struct pt_range own = pt_own(arg->{size});", *loop]


def loop_over(index: str, ends: tuple[str, str], lines: Sequence[str]) -> list[str]:
    """These statements from one end to before the other."""
    return [f"for (int {index} = {ends[0]}; {index} < {ends[1]}; {index}++) {{", *indented(lines), "}"]


def indented(lines: Sequence[str]) -> list[str]:
    """By one level."""
    return [f"    {line}" for line in lines]


def _terms(loop: RowLoop, name: str, *, of_element: bool) -> str:
    """Where an element lies, as C: what counts elements, or what all in the innermost loop share."""
    terms = [term for term in loop.places[name].split(" + ") if ("i" in term.split("*")) == of_element]
    return re.sub(r"\b(?![rsi0]\b)\w+", r"arg->\g<0>", " + ".join(terms)).replace("*", " * ")


def pointers(loop: RowLoop, used: Iterable[str], index: str) -> list[str]:
    """To the first element of a row (or, with `index` s, of a run of it) of the arrays that have elements."""
    lines = []
    for name in used:
        first = _terms(loop, name, of_element=False)
        if first and ("s" in re.findall(r"\b[rsi]\b", first)) == (index == "s"):
            lines.append(f"PT_POINTER {name} = arg->{name} + {first};")
    return lines


class RowWriter(Writer):
    """Statements of one row."""

    def __init__(self, loop: RowLoop, results: Mapping[str, Symbol], narrow: bool) -> None:
        self.row: list[str] = []
        """Numbers of the row, its loops, and what is stored of it."""
        self.used: dict[str, None] = {}
        """Arrays of which elements are read or written."""
        self._loop, self._narrow = loop, narrow
        self._segment: list[str] = []
        self._depths: dict[int, int] = {}
        self._sums: dict[int, list[Symbol]] = {}
        self._of_loop: list[int] = []
        self._scans: list[str] = []
        super().__init__({}, self._place)
        for item in results.values():
            self._count(item)
        elements = {name: item for name, item in results.items() if item.known == ELEMENT}
        if len(elements) > 1:
            self._fresh = {id(item): f"new_{name}" for name, item in elements.items()}
        for depth in range(max(map(self._depth, results.values())) + 1):
            stored = {name: item for name, item in elements.items() if self._depth(item) == depth}
            if stored or depth in self._sums:
                self._pass(stored, self._sums.get(depth, []))
        of_row = {name: item for name, item in results.items() if name not in elements}
        self.row += [store(self._place(name, ROW), self.text(item)) for name, item in of_row.items()]

    def _place(self, name: str, known: int) -> str:
        if known < ELEMENT:
            return load(f"arg->{name}", _terms(self._loop, name, of_element=False), self._narrow)
        self.used[name] = None
        array = name if _terms(self._loop, name, of_element=False) else f"arg->{name}"
        return load(array, _terms(self._loop, name, of_element=True), self._narrow)

    def _depth(self, item: Symbol) -> int:
        """Loops over the row that come before a value is known."""
        if id(item) not in self._depths:
            depth = max(map(self._depth, item.args), default=0)
            if item.op in REDUCTIONS:
                self._sums.setdefault(depth, []).append(item)
                depth += 1
            self._depths[id(item)] = depth
        return self._depths[id(item)]

    def _pass(self, stored: Mapping[str, Symbol], sums: Sequence[Symbol]) -> None:
        """One loop over the row: sums, and what is stored."""
        self.inside, self._segment, before, self.used = [], [], self.used, {}
        begun = []
        for item in sums:
            name = self._names[id(item)] = self._unused(item.op)
            begun.append(f"{item.kind} {name} = {REDUCTIONS[item.op][0]};")
        texts = {name: self.text(item, user=ELEMENT) for name, item in stored.items()}
        alone = len(sums) + len(stored) + len(self._loop.elements) == 2
        steps = [line for item in sums for line in self._steps(self._names[id(item)], item, alone=alone)]
        steps += [store(self._place(name, ELEMENT), text) for name, text in texts.items()]
        ends = ("own.start", "own.stop") if self._loop.across else ("0", f"arg->{self._loop.elements[-1]}")
        lines = loop_over("i", ends, [*self.inside, *steps])
        for size in self._loop.elements[:-1]:
            lines = [*pointers(self._loop, [*self.used], "s"), *self._segment, *lines]
            lines = loop_over("s", ("0", f"arg->{size}"), lines)
        self.row += [*begun, *self._scans, *lines]
        self._scans = []
        for known in self._of_loop:
            self._names.pop(known, None)
        self.used = {**before, **self.used}

    def _steps(self, name: str, item: Symbol, *, alone: bool) -> list[str]:
        """The same; a largest that no other reduction shares its loop with ends at the first NaN."""
        if not alone or item.op not in ("largest", "smallest"):
            return [self._step(name, item)]
        each = self._named(item.args[0], self.text(item.args[0], user=ELEMENT))
        found = f"if (!({each} {'<=' if item.op == 'largest' else '>='} {name})) {{"
        return [found, *indented([f"{name} = {each};", f"if ({each} != {each})", "    break;"]), "}"]

    def _step(self, name: str, item: Symbol) -> str:
        """What an element does to a reduction; a sum that it gives 0 it leaves as it is."""
        (term,), form = item.args, REDUCTIONS[item.op][1]
        if item.op == "sum" and term.op == "?" and term.args[1].value is not None and not term.args[1].now:
            added, when = form.format(name, self.text(term.args[2], like="float", user=ELEMENT)), term.args[0]
            if when.op == "first" and self._uses[id(when)] == 1:
                first = self._names[id(when)] = self._unused("first")
                self._scans.append(f"int {first} = 0;")
                holds = self.text(when.args[0], COMPARE, user=ELEMENT)
                return f"if (!{first} && {holds}) {first} = 1; else {added}"
            return f"if (!({self.text(when, user=ELEMENT)})) {added}"
        return form.format(name, self.text(term, user=ELEMENT))

    def _leaf(self, item: Symbol) -> str:
        return f"{item.op[1:]}_i" if item.known == ELEMENT else item.op[1:]

    def _named(self, item: Symbol, text: str) -> str:
        if item.known >= SEGMENT:
            self._of_loop.append(id(item))
        if item.op != "first":
            return super()._named(item, text)
        name = self._names[id(item)] = self._unused("first")
        self._scans.append(f"int found_{name} = 0;")
        condition = self.text(item.args[0], COMPARE, user=ELEMENT)
        self.inside += [f"const int {name} = !found_{name} && {condition};", f"found_{name} |= {name};"]
        return name

    def _lines(self, known: int) -> list[str]:
        return self.row if known == ROW else self._segment if known == SEGMENT else super()._lines(known)

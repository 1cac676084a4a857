# SPDX-License-Identifier: Apache-2.0
"""From a parsed nest and concrete sizes to the `CoreWork` of one core.

A nest is compiled once into blocks that hold only what the sizes decide (trip counts, conditions, branch
directions) between ready runs of instructions. One call then evaluates the decisions of one core, takes the
body with these decisions from a cache or puts it together, and computes the address streams it uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import accumulate, count
from math import prod
from operator import mul
from typing import NamedTuple

from arch.spec.isa import CodeLayout, CoreForm, CoreWork, Instruction, Loop, Node, Skeleton, Stream
from configs.errors import ConfigError, InputError
from configs.values import Struct, replace
from trainlib.kernels.expressions import ALLOWED, Evaluator, Names, Sum, evaluator
from trainlib.kernels.kernel_file import suggestion
from trainlib.kernels.nodes import Access, Choice, Code, Nest, NestNode, codes

BODY_CACHE_ENTRIES = 4096
"""Expanded bodies kept per nest; bodies are shared by cores and calls with equal trip counts."""

LAYOUT_CACHE_ENTRIES = 1024
"""Layouts of code kept per nest."""

PLAN_CACHE_ENTRIES = 1024
"""Skeletons with units whose streams are kept ready."""

MOST_EXECUTED = 10**18
"""Instructions of one core in one kernel: their cycles still fit 64 bits."""

WIDEST_BYTES = 4
"""Bytes one load or store moves at most."""

FARTHEST_BYTES = 2**52
"""Bytes between any two accesses of a kernel: what an index may make of the address of an array."""

_UNUSED = Stream(0, ())
_stream = partial(tuple.__new__, Stream)


class Array(NamedTuple):
    """An array in L1: byte address of element 0, distance of neighbours in elements in each dimension.

    An access of one element is as wide as the array's: a nest for 16-bit data may have fp32 statistics.
    """

    address: int
    strides: tuple[int, ...] = (1,)
    element_bytes: int = 4


_NO_ARRAY = Array(0, ())


class _Run(Struct, frozen=True):
    """Instructions nothing is to be decided about, and the streams they use."""

    instructions: tuple[Instruction, ...]
    used: tuple[int, ...]
    place: int
    """Of the first one in the text."""


class _Turn(Struct, frozen=True):
    """A branch whose direction the sizes decide: not taken, taken."""

    decide: Evaluator
    instructions: tuple[Instruction, Instruction]
    place: int


class _Fork(Struct, frozen=True):
    decide: Evaluator
    blocks: tuple[_Block, _Block]
    """If the condition is 0, if it is 1."""


class _Repeat(Struct, frozen=True):
    decide: Evaluator
    hardware: bool
    block: _Block


class _Block(Struct, frozen=True):
    steps: tuple[_Run | _Turn | _Fork | _Repeat, ...]
    open: tuple[_Turn | _Fork | _Repeat, ...]
    """The steps that need a decision, in order."""
    instructions: int
    """Those that are executed whatever is decided."""


class _Anchor(Struct, frozen=True):
    """The part of the base addresses of some accesses that differs from core to core and call to call."""

    array: str
    varying: tuple[tuple[int, Evaluator], ...]
    """The indices that are more than a constant, by the number of their unit, and their values without the
    constant."""


class _Use(Struct, frozen=True):
    """An access: its anchor; its numbers (base, strides) as coefficients of the units of its array.

    `evaluated` are the numbers of strides that hold sizes too, each with its parts by unit.
    """

    anchor: int
    first_unit: int
    coefficients: tuple[tuple[int, ...], ...]
    """By number: one coefficient per dimension of the array."""
    evaluated: tuple[tuple[int, tuple[tuple[int, Sum], ...]], ...]
    reach: int
    """Bound of the coefficients of a number."""


class _Body(Struct, frozen=True):
    """A skeleton under one set of decisions, the anchors it uses, and what else is evaluated of its strides.

    `reach` bounds the coefficients of one address, `instructions` are those of the text and its loops.
    """

    skeleton: Skeleton
    anchors: tuple[_Anchor, ...]
    evaluated: tuple[tuple[tuple[int, Sum], ...], ...]
    reach: int
    instructions: int


_Plan = list[tuple[int, int, int, tuple[int, ...]]]
"""Per used access: its number, its anchor, bytes behind the anchor, strides."""


class Placed(Struct, frozen=True):
    """Arrays as one nest uses them: bytes between neighbours, and the largest; addresses by name.

    `widths_bytes` are those of the accesses; empty if all are as the text says.
    """

    units_bytes: tuple[int, ...]
    largest_bytes: int
    widths_bytes: tuple[int, ...]
    addresses: Mapping[str, int]


class Expander:
    """Turns one nest into `CoreWork`s; equal trip counts and conditions give the same body object."""

    def __init__(self, nest: Nest, where: str, element_bytes: int = 4) -> None:
        self.nest = nest
        self.where = where
        self.element_bytes = element_bytes
        places = count()
        self._block = _compiled(nest.body, places)
        self._text_instructions = next(places)
        self._code_layouts: dict[tuple[tuple[int, int], ...], CodeLayout] = {}
        ranks = {access.array: len(access.base) for access in nest.accesses}
        self._arrays = tuple(sorted(ranks))
        self._ranks = tuple([ranks[name] for name in self._arrays])
        first_unit = dict(zip(self._arrays, accumulate(self._ranks, initial=0), strict=False))
        numbers: dict[object, int] = {}
        self._anchors: dict[int, _Anchor] = {}
        self._uses: list[_Use] = []
        for access in nest.accesses:
            key = (access.array, *(base.form for base in access.base))
            anchor = numbers.setdefault(key, len(numbers))
            self._uses.append(_use(access, anchor, first_unit[access.array]))
            if anchor not in self._anchors:
                self._anchors[anchor] = _anchor(access, first_unit[access.array])
        self._widths_bytes = [0] * len(nest.accesses)
        for code in codes(nest.body):
            if code.instruction.stream >= 0:
                self._widths_bytes[code.instruction.stream] = code.instruction.width_bytes
        self._given: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._texts: dict[tuple[tuple[int, ...], tuple[int, ...], int], _Body] = {}
        self._bodies: dict[tuple[Skeleton, tuple[int, ...]], tuple[Node, ...]] = {}
        self._plans: dict[tuple[Skeleton, tuple[int, ...]], _Plan] = {}
        self._rows: dict[tuple[int, int, int], tuple[tuple[int, ...], ...]] = {}

    def core_work(self, names: Names, arrays: Mapping[str, Array], code_bytes: int) -> CoreWork:
        """The work of the core described by `names` (sizes, start, stop) on `arrays` (by name in the text).

        Raises ConfigError when the text names an array or a size the call does not have.
        """
        return self.work(self.form(names, self.placed(arrays), code_bytes))

    def form(self, names: Names, placed: Placed, code_bytes: int) -> CoreForm:
        """That work by its numbers. Raises like `core_work`."""
        structure: list[int] = []
        trips: list[int] = []
        units_bytes, addresses = placed.units_bytes, placed.addresses
        try:
            _decide(self._block, names, structure, trips)
            key = (tuple(structure), placed.widths_bytes, code_bytes)
            body = self._texts.get(key)
            if body is None:
                body = self._text(*key)
            anchors_bytes = []
            for anchor in body.anchors:
                total = addresses[anchor.array]
                for unit, value in anchor.varying:
                    total += units_bytes[unit] * value(names)
                anchors_bytes.append(total)
            for parts in body.evaluated:
                stride_bytes = sum([units_bytes[unit] * part.evaluate(names) for unit, part in parts])
                self._check_distance(stride_bytes)
                units_bytes += (stride_bytes,)
        except (KeyError, ArithmeticError, RecursionError) as error:
            raise self._failure(error, names) from None
        form = CoreForm(body.skeleton, tuple(trips), units_bytes, tuple(anchors_bytes))
        if prod(trips) * body.instructions > MOST_EXECUTED and _executed(self._nodes(form)) > MOST_EXECUTED:
            raise ConfigError(
                f"a core would execute more than {MOST_EXECUTED:.0e} instructions, the limit",
                where=self.where,
                cure="use smaller sizes, or fewer loop iterations",
            )
        if body.reach * placed.largest_bytes > FARTHEST_BYTES:
            for _, _, offset_bytes, strides_bytes in _plan(body.skeleton, units_bytes):
                self._check_distance(max(offset_bytes, *strides_bytes, key=abs))
        return form

    def work(self, form: CoreForm) -> CoreWork:
        """What a `form` of this nest stands for."""
        skeleton = form.skeleton
        streams = [_UNUSED] * len(self._uses)
        key = (skeleton, form.units_bytes)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= PLAN_CACHE_ENTRIES:
                self._plans.clear()
            plan = self._plans[key] = _plan(skeleton, form.units_bytes)
        for access, anchor, offset_bytes, strides_bytes in plan:
            streams[access] = _stream((form.anchors_bytes[anchor] + offset_bytes, strides_bytes))
        return CoreWork(self._nodes(form), tuple(streams), skeleton.code_bytes, skeleton.layout)

    def _nodes(self, form: CoreForm) -> tuple[Node, ...]:
        key = (form.skeleton, form.trips)
        nodes = self._bodies.get(key)
        if nodes is None:
            if len(self._bodies) >= BODY_CACHE_ENTRIES:
                self._bodies.clear()
            nodes = self._bodies[key] = _turning(form.skeleton.body, iter(form.trips))
        return nodes

    def issued(self, names: Names) -> int:
        """Instructions of that core. Raises ConfigError like `core_work`."""
        try:
            return _issued(self._block, names)
        except (KeyError, ArithmeticError, RecursionError) as error:
            raise self._failure(error, names) from None

    def _failure(self, error: Exception, names: Names) -> ConfigError:
        if not isinstance(error, KeyError):
            return ConfigError(f"cannot evaluate an expression: {error}", where=self.where, cure=ALLOWED)
        unknown = str(error.args[0])
        return ConfigError(
            f"unknown name {error} in the kernel file", where=self.where, cure=suggestion(unknown, names)
        )

    def _text(self, structure: tuple[int, ...], widths_bytes: tuple[int, ...], code_bytes: int) -> _Body:
        """The text under decisions."""
        used: list[int] = []
        runs: list[tuple[int, int]] = []
        body = _build(self._block, iter(structure), used, runs)
        if widths_bytes:
            body = _as_wide(body, widths_bytes)
        anchors = {self._uses[access].anchor: 0 for access in used}
        for place, anchor in enumerate(anchors):
            anchors[anchor] = place
        units = sum(self._ranks)
        evaluated: list[tuple[tuple[int, Sum], ...]] = []
        for access in used:
            evaluated += [parts for _, parts in self._uses[access].evaluated if parts not in evaluated]
        streams = {}
        for access in used:
            use = self._uses[access]
            key = (access, anchors[use.anchor], len(evaluated))
            rows = None if use.evaluated else self._rows.get(key)
            if rows is None:
                rows = self._rows[key] = _rows(use, anchors[use.anchor], units, tuple(evaluated))
            streams[access] = rows
        reach = max([self._uses[access].reach for access in used], default=0)
        layout = self._code_layout(tuple(runs))
        arrays = tuple([self._anchors[anchor].array for anchor in anchors])
        skeleton = Skeleton(body, streams, code_bytes, layout, arrays)
        if len(self._texts) >= BODY_CACHE_ENTRIES:
            self._texts.clear()
        text = self._texts[structure, widths_bytes, code_bytes] = _Body(
            skeleton,
            tuple([self._anchors[anchor] for anchor in anchors]),
            tuple(evaluated),
            reach,
            _executed(body),
        )
        return text

    def _code_layout(self, runs: tuple[tuple[int, int], ...]) -> CodeLayout:
        """The one layout of these runs: bodies that differ in trip counts alone share it."""
        layout = self._code_layouts.get(runs)
        if layout is None:
            if len(self._code_layouts) >= LAYOUT_CACHE_ENTRIES:
                self._code_layouts.clear()
            layout = self._code_layouts[runs] = CodeLayout(runs, self._text_instructions)
        return layout

    def placed(self, arrays: Mapping[str, Array]) -> Placed:
        """Arrays as this nest uses them.

        Raises ConfigError for arrays the text does not have, InputError for elements too narrow for it.
        """
        given = [arrays.get(name, _NO_ARRAY) for name in self._arrays]
        if tuple([len(array.strides) for array in given]) != self._ranks or _NO_ARRAY in given:
            for access in self.nest.accesses:
                self._check(access, arrays)
        sizes = tuple([array.element_bytes for array in given])
        widths_bytes = self._given.get(sizes)
        if widths_bytes is None:
            widths_bytes = self._given[sizes] = self._checked_widths(arrays)
        units_bytes = tuple([array.element_bytes * unit for array in given for unit in array.strides])
        addresses = {name: array.address for name, array in zip(self._arrays, given, strict=True)}
        return Placed(units_bytes, max(map(abs, units_bytes), default=0), widths_bytes, addresses)

    def _checked_widths(self, arrays: Mapping[str, Array]) -> tuple[int, ...]:
        """`_Layout.widths_bytes`. Raises InputError for elements narrower than the text's access to them."""
        given = list(self._widths_bytes)
        for index, access in enumerate(self.nest.accesses):
            element_bytes = arrays[access.array].element_bytes
            if element_bytes < self.element_bytes and given[index] > element_bytes:
                raise InputError(
                    f"array {access.array} has elements of {element_bytes} bytes, but the kernel "
                    f"accesses {given[index]} bytes at once",
                    where=self.where,
                    cure=f"use a kernel for elements of {element_bytes} bytes",
                )
            if element_bytes > self.element_bytes and given[index] == self.element_bytes:
                given[index] = min(element_bytes, WIDEST_BYTES)
        return () if given == self._widths_bytes else tuple(given)

    def _check(self, access: Access, arrays: Mapping[str, Array]) -> None:
        array = arrays.get(access.array)
        if array is None or len(array.strides) != len(access.base):
            declared = ", ".join(f"{name}({len(item.strides)})" for name, item in arrays.items())
            raise ConfigError(
                f"'arrays' does not declare {access.array} with {len(access.base)} indices",
                where=self.where,
                cure=f"use one of {declared} (number of indices), or add {access.array} to 'arrays'",
            )

    def _check_distance(self, size_bytes: int) -> None:
        if abs(size_bytes) > FARTHEST_BYTES:
            raise ConfigError(
                f"an array access is more than {FARTHEST_BYTES} B away from the first element",
                where=self.where,
                cure="use smaller indices",
            )


def _as_wide(body: tuple[Node, ...], widths_bytes: tuple[int, ...]) -> tuple[Node, ...]:
    """The body with access i ``widths_bytes[i]`` wide."""
    return tuple(
        replace(node, body=_as_wide(node.body, widths_bytes))
        if isinstance(node, Loop)
        else replace(node, width_bytes=widths_bytes[node.stream])
        if node.stream >= 0
        else node
        for node in body
    )


def _executed(body: tuple[Node, ...]) -> int:
    """Instructions a body executes, and trips of its loops."""
    loops = [node for node in body if isinstance(node, Loop)]
    return len(body) - len(loops) + sum([loop.trips * (1 + _executed(loop.body)) for loop in loops])


def _use(access: Access, anchor: int, first_unit: int) -> _Use:
    depths = range(len(access.strides[0]))
    rows = [tuple([base.constant for base in access.base])]
    rows += [tuple([along[depth].constant for along in access.strides]) for depth in depths]
    evaluated = []
    for depth in depths:
        sums = [(first_unit + dimension, along[depth]) for dimension, along in enumerate(access.strides)]
        if any(part.terms for _, part in sums):
            evaluated.append((1 + depth, tuple(sums)))
    reach = max([sum(map(abs, row)) for row in rows])
    return _Use(anchor, first_unit, tuple(rows), tuple(evaluated), reach)


def _rows(
    use: _Use, anchor: int, units: int, evaluated: tuple[tuple[tuple[int, Sum], ...], ...]
) -> tuple[tuple[int, ...], ...]:
    """The numbers of an access as a skeleton has them."""
    rows = []
    for number, coefficients in enumerate(use.coefficients):
        row = [anchor if number == 0 else -1, 0] + [0] * (units + len(evaluated))
        row[2 + use.first_unit : 2 + use.first_unit + len(coefficients)] = coefficients
        rows.append(row)
    for number, parts in use.evaluated:
        rows[number] = [-1, 0] + [0] * (units + len(evaluated))
        rows[number][2 + units + evaluated.index(parts)] = 1
    return tuple([tuple(row) for row in rows])


def _anchor(access: Access, first_unit: int) -> _Anchor:
    varying = tuple(
        (first_unit + dimension, evaluator(replace(base, constant=0)))
        for dimension, base in enumerate(access.base)
        if base.terms
    )
    return _Anchor(access.array, varying)


def _plan(skeleton: Skeleton, units_bytes: tuple[int, ...]) -> _Plan:
    plan: _Plan = []
    for access, rows in skeleton.streams.items():
        offset_bytes, *strides_bytes = [sum(map(mul, row[2:], units_bytes)) for row in rows]
        plan.append((access, rows[0][0], offset_bytes, tuple(strides_bytes)))
    return plan


def _turning(body: tuple[Node, ...], trips: Iterator[int]) -> tuple[Node, ...]:
    """The body of a skeleton with the trips of its loops."""
    if not any(isinstance(node, Loop) for node in body):
        return body
    return tuple(
        [
            Loop(next(trips), _turning(node.body, trips), node.hardware) if isinstance(node, Loop) else node
            for node in body
        ]
    )


def _compiled(nodes: tuple[NestNode, ...], places: Iterator[int]) -> _Block:
    """`places` counts the instructions of the text."""
    steps: list[_Run | _Turn | _Fork | _Repeat] = []
    run: list[Instruction] = []
    first = 0

    def close() -> None:
        if run:
            used = tuple(item.stream for item in run if item.stream >= 0)
            steps.append(_Run(tuple(run), used, first))
            run.clear()

    for node in nodes:
        if isinstance(node, Code) and node.taken_if is None:
            place = next(places)
            first = first if run else place
            run.append(node.instruction)
            continue
        close()
        if isinstance(node, Code):
            if node.taken_if is not None:
                taken = replace(node.instruction, taken_fraction=1.0)
                steps.append(_Turn(node.taken_if.evaluate, (node.instruction, taken), next(places)))
        elif isinstance(node, Choice):
            then = _compiled(node.then, places)
            steps.append(_Fork(node.condition.evaluate, (_compiled(node.otherwise, places), then)))
        else:
            steps.append(_Repeat(node.trips, node.hardware, _compiled(node.body, places)))
    close()
    fixed = sum(
        len(step.instructions) if isinstance(step, _Run) else isinstance(step, _Turn) for step in steps
    )
    return _Block(tuple(steps), tuple(step for step in steps if not isinstance(step, _Run)), fixed)


def _issued(block: _Block, names: Names) -> int:
    """What the body of these names issues (`TeamWork.issued`), without putting it together."""
    total = block.instructions
    for step in block.open:
        if isinstance(step, _Repeat):
            trips = step.decide(names)
            if trips > 0:
                inner = step.block
                total += trips * (_issued(inner, names) if inner.open else inner.instructions)
        elif isinstance(step, _Fork):
            total += _issued(step.blocks[1 if step.decide(names) else 0], names)
    return total


def _decide(block: _Block, names: Names, structure: list[int], trips: list[int]) -> None:
    """What is decided in `block`: whether loops turn and conditions hold, and how often loops turn."""
    for step in block.open:
        value = step.decide(names)
        if isinstance(step, _Repeat):
            if value > 0:
                structure.append(1)
                trips.append(value)
                if step.block.open:
                    _decide(step.block, names, structure, trips)
            else:
                structure.append(0)
        else:
            chosen = 1 if value else 0
            structure.append(chosen)
            if isinstance(step, _Fork):
                _decide(step.blocks[chosen], names, structure, trips)


def _build(
    block: _Block, structure: Iterator[int], used: list[int], runs: list[tuple[int, int]]
) -> tuple[Node, ...]:
    """The nodes under decisions, loops turning once; accesses and places in the text go to `used`, `runs`."""
    if not block.open and block.steps:
        (only,) = block.steps
        if isinstance(only, _Run):
            used.extend(only.used)
            runs.append((only.place, len(only.instructions)))
            return only.instructions
    result: list[Node] = []
    for step in block.steps:
        if isinstance(step, _Run):
            result.extend(step.instructions)
            used.extend(step.used)
            runs.append((step.place, len(step.instructions)))
        elif isinstance(step, _Turn):
            result.append(step.instructions[next(structure)])
            runs.append((step.place, 1))
        elif isinstance(step, _Fork):
            result.extend(_build(step.blocks[next(structure)], structure, used, runs))
        elif next(structure):
            result.append(Loop(1, _build(step.block, structure, used, runs), step.hardware))
    return tuple(result)

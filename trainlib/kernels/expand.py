# SPDX-License-Identifier: Apache-2.0
"""From a parsed nest and concrete sizes to the `CoreWork` of one core.

A nest is compiled once into blocks that hold only what the sizes decide (trip counts, conditions, branch
directions) between ready runs of instructions. One call then evaluates the decisions of one core, takes the
body with these decisions from a cache or puts it together, and computes the address streams it uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from arch.spec.isa import CodeLayout, CoreWork, Instruction, Loop, Node, Stream
from configs.errors import ConfigError, InputError
from configs.records import record
from trainlib.kernels.expressions import Evaluator, Names, Sum, evaluator
from trainlib.kernels.kernel_file import suggestion
from trainlib.kernels.nodes import Access, Choice, Code, Nest, NestNode

BODY_CACHE_ENTRIES = 4096
"""Expanded bodies kept per nest; bodies are shared by cores and calls with equal trip counts."""

LAYOUT_CACHE_ENTRIES = 1024
"""Array layouts (byte distances of neighbours) kept per nest; all cores of a team share one."""

PLAN_CACHE_ENTRIES = 64
"""Bodies per layout whose streams are kept ready."""

MOST_EXECUTED = 10**18
"""Instructions of one core in one kernel: their cycles still fit 64 bits."""

WIDEST_BYTES = 4
"""Bytes one load or store moves at most."""

FARTHEST_BYTES = 2**52
"""Bytes between any two accesses of a kernel: what an index may make of the address of an array."""

_UNUSED = Stream(0, ())
_stream = partial(tuple.__new__, Stream)


@record(frozen=True, slots=True)
class Array:
    """An array in L1: byte address of element 0, distance of neighbours in elements in each dimension.

    An access of one element is as wide as the array's: a nest for 16-bit data may have fp32 statistics.
    """

    address: int
    strides: tuple[int, ...] = (1,)
    element_bytes: int = 4


_NO_ARRAY = Array(0, ())


@dataclass(frozen=True, slots=True)
class _Run:
    """Instructions nothing is to be decided about, and the streams they use."""

    instructions: tuple[Instruction, ...]
    used: tuple[int, ...]
    place: int
    """Of the first one in the text."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A branch whose direction the sizes decide: not taken, taken."""

    decide: Evaluator
    instructions: tuple[Instruction, Instruction]
    place: int


@dataclass(frozen=True, slots=True)
class _Fork:
    decide: Evaluator
    blocks: tuple[_Block, _Block]
    """If the condition is 0, if it is 1."""


@dataclass(frozen=True, slots=True)
class _Repeat:
    decide: Evaluator
    hardware: bool
    block: _Block


@dataclass(frozen=True, slots=True)
class _Block:
    steps: tuple[_Run | _Turn | _Fork | _Repeat, ...]
    open: tuple[_Turn | _Fork | _Repeat, ...]
    """The steps that need a decision, in order."""
    instructions: int
    """Those that are executed whatever is decided."""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The part of the base addresses of some accesses that differs from core to core and call to call."""

    array: str
    varying: tuple[tuple[int, Evaluator], ...]
    """The indices that are more than a constant, by dimension, and their values without the constant."""

    def address(self, names: Names, arrays: Mapping[str, Array]) -> int:
        """Byte address of the element where all loop counters and constants are 0."""
        array = arrays[self.array]
        total = array.address
        for dimension, value in self.varying:
            total += array.element_bytes * array.strides[dimension] * value(names)
        return total


@dataclass(frozen=True, slots=True)
class _Use:
    """An access; those with equal anchor, constants or coefficients have equal numbers for them."""

    access: int
    anchor: int
    offset: int
    strides: int


@dataclass(frozen=True, slots=True)
class _Body:
    """Instructions and loops under one set of decisions, the accesses they use, the anchors of these."""

    nodes: tuple[Node, ...]
    uses: tuple[_Use, ...]
    anchors: tuple[int, ...]
    number: int
    layout: CodeLayout


_Plan = list[tuple[int, int, int, tuple[int, ...]]]
"""Per used access: its number, its anchor, bytes behind the anchor, strides."""


@dataclass(slots=True)
class _Layout:
    """What one layout of the arrays makes of the accesses, filled in as streams are asked for."""

    widths_bytes: tuple[int, ...]
    """How wide each access is; empty if all are as the text says."""
    offsets_bytes: dict[int, int] = field(default_factory=dict)
    """Bytes between an access and its anchor, by `_Use.offset`."""
    strides_bytes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """By `_Use.strides`; only those that depend on nothing but the layout."""
    plans: dict[int, _Plan] = field(default_factory=dict)
    """By `_Body.number`."""


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
        self._arrays = tuple(sorted({access.array for access in nest.accesses}))
        numbers: dict[object, int] = {}

        def number(*key: object) -> int:
            return numbers.setdefault(key, len(numbers))

        self._anchors: dict[int, _Anchor] = {}
        self._uses: list[_Use] = []
        for index, access in enumerate(nest.accesses):
            use = _Use(
                index,
                number("anchor", access.array, *(base.form for base in access.base)),
                number("offset", access.array, *(base.constant for base in access.base)),
                number("strides", access.array, *((item.form, item.constant) for item in _flat(access))),
            )
            self._uses.append(use)
            if use.anchor not in self._anchors:
                self._anchors[use.anchor] = _anchor(access)
        self._widths_bytes = [0] * len(nest.accesses)
        _read_widths(nest.body, self._widths_bytes)
        self._layouts: dict[tuple[tuple[tuple[int, ...], int], ...], _Layout] = {}
        self._bodies: dict[tuple[tuple[int, ...], tuple[int, ...]], _Body] = {}
        self._built = 0
        self._ranks: set[tuple[int, ...]] = set()

    def core_work(self, names: Names, arrays: Mapping[str, Array], code_bytes: int) -> CoreWork:
        """The work of the core described by `names` (sizes, start, stop) on `arrays` (by name in the text).

        Raises ConfigError when the text names an array or a size the call does not have.
        """
        try:
            layout = self._layout(arrays)
            body = self._body(names, layout.widths_bytes)
            plan = layout.plans.get(body.number) or self._plan(body, layout, arrays, names)
            anchors_bytes = {index: self._anchors[index].address(names, arrays) for index in body.anchors}
        except (KeyError, ArithmeticError, RecursionError) as error:
            raise self._failure(error, names) from None
        streams = [_UNUSED] * len(self._uses)
        for access, anchor, offset_bytes, strides_bytes in plan:
            streams[access] = _stream((anchors_bytes[anchor] + offset_bytes, strides_bytes))
        return CoreWork(body.nodes, tuple(streams), code_bytes, body.layout)

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Raise ConfigError for arrays the text does not have, InputError for elements too narrow for it."""
        self._layout(arrays)

    def issued(self, names: Names) -> int:
        """Instructions of that core. Raises ConfigError like `core_work`."""
        try:
            return _issued(self._block, names)
        except (KeyError, ArithmeticError, RecursionError) as error:
            raise self._failure(error, names) from None

    def _failure(self, error: Exception, names: Names) -> ConfigError:
        if not isinstance(error, KeyError):
            return ConfigError(f"an expression of the kernel text has no value: {error}", where=self.where)
        unknown = str(error.args[0])
        return ConfigError(
            f"the kernel text uses the unknown name {error}",
            where=self.where,
            cure=suggestion(unknown, names),
        )

    def _plan(self, body: _Body, layout: _Layout, arrays: Mapping[str, Array], names: Names) -> _Plan:
        plan: _Plan = []
        fixed = True
        for use in body.uses:
            offset_bytes = layout.offsets_bytes.get(use.offset)
            if offset_bytes is None:
                offset_bytes = self._offset(use, layout, arrays)
            strides_bytes = layout.strides_bytes.get(use.strides)
            if strides_bytes is None:
                strides_bytes = self._strides(use, layout, arrays, names)
                fixed = fixed and use.strides in layout.strides_bytes
            plan.append((use.access, use.anchor, offset_bytes, strides_bytes))
        if fixed:
            if len(layout.plans) >= PLAN_CACHE_ENTRIES:
                layout.plans.clear()
            layout.plans[body.number] = plan
        return plan

    def _body(self, names: Names, widths_bytes: tuple[int, ...]) -> _Body:
        decisions: list[int] = []
        _decide(self._block, names, decisions)
        key = (tuple(decisions), widths_bytes)
        cached = self._bodies.get(key)
        if cached is None:
            used: list[int] = []
            runs: list[tuple[int, int]] = []
            body = _build(self._block, iter(decisions), used, runs)
            if widths_bytes:
                body = _as_wide(body, widths_bytes)
            if _executed(body) > MOST_EXECUTED:
                raise ConfigError(
                    f"a core would execute more than {MOST_EXECUTED:.0e} instructions",
                    where=self.where,
                    cure="smaller sizes, or fewer trips of the loops",
                )
            uses = tuple(self._uses[index] for index in used)
            anchors = tuple(dict.fromkeys(use.anchor for use in uses))
            if len(self._bodies) >= BODY_CACHE_ENTRIES:
                self._bodies.clear()
            self._built += 1
            cached = _Body(body, uses, anchors, self._built, self._code_layout(tuple(runs)))
            self._bodies[key] = cached
        return cached

    def _code_layout(self, runs: tuple[tuple[int, int], ...]) -> CodeLayout:
        """The one layout of these runs: bodies that differ in trip counts alone share it."""
        layout = self._code_layouts.get(runs)
        if layout is None:
            if len(self._code_layouts) >= LAYOUT_CACHE_ENTRIES:
                self._code_layouts.clear()
            layout = self._code_layouts[runs] = CodeLayout(runs, self._text_instructions)
        return layout

    def _layout(self, arrays: Mapping[str, Array]) -> _Layout:
        given = [arrays.get(name, _NO_ARRAY) for name in self._arrays]
        key = tuple([(array.strides, array.element_bytes) for array in given])
        layout = self._layouts.get(key)
        if layout is None:
            ranks = tuple([len(array.strides) for array in given])
            if ranks not in self._ranks:
                for access in self.nest.accesses:
                    self._check(access, arrays)
                self._ranks.add(ranks)
            layout = _Layout(self._given_widths(arrays))
            if len(self._layouts) >= LAYOUT_CACHE_ENTRIES:
                self._layouts.clear()
            self._layouts[key] = layout
        return layout

    def _given_widths(self, arrays: Mapping[str, Array]) -> tuple[int, ...]:
        """`_Layout.widths_bytes`. Raises InputError for elements narrower than the text's access to them."""
        given = list(self._widths_bytes)
        for index, access in enumerate(self.nest.accesses):
            element_bytes = arrays[access.array].element_bytes
            if element_bytes < self.element_bytes and given[index] > element_bytes:
                raise InputError(
                    f"{access.array} has elements of {element_bytes} bytes, the kernel reads and writes "
                    f"{given[index]}",
                    where=self.where,
                    cure=f"a kernel for elements of {element_bytes} bytes",
                )
            if element_bytes > self.element_bytes and given[index] == self.element_bytes:
                given[index] = min(element_bytes, WIDEST_BYTES)
        return () if given == self._widths_bytes else tuple(given)

    def _check(self, access: Access, arrays: Mapping[str, Array]) -> None:
        array = arrays.get(access.array)
        if array is None or len(array.strides) != len(access.base):
            declared = ", ".join(f"{name}({len(item.strides)})" for name, item in arrays.items())
            raise ConfigError(
                f"array {access.array} with {len(access.base)} indices is not known",
                where=self.where,
                cure=f"the arrays of this kernel (number of indices) are {declared}",
            )

    def _offset(self, use: _Use, layout: _Layout, arrays: Mapping[str, Array]) -> int:
        access = self.nest.accesses[use.access]
        array = arrays[access.array]
        offset_bytes = 0
        for unit, base in zip(array.strides, access.base, strict=True):
            offset_bytes += array.element_bytes * unit * base.constant
        self._check_distance(offset_bytes)
        layout.offsets_bytes[use.offset] = offset_bytes
        return offset_bytes

    def _check_distance(self, size_bytes: int) -> None:
        if abs(size_bytes) > FARTHEST_BYTES:
            raise ConfigError(
                f"an access is more than {FARTHEST_BYTES} bytes away",
                where=self.where,
                cure="smaller indices",
            )

    def _strides(
        self, use: _Use, layout: _Layout, arrays: Mapping[str, Array], names: Names
    ) -> tuple[int, ...]:
        access = self.nest.accesses[use.access]
        array = arrays[access.array]
        strides_bytes = [0] * len(access.strides[0])
        fixed = True
        for elements, along in zip(array.strides, access.strides, strict=True):
            unit = array.element_bytes * elements
            for depth, stride in enumerate(along):
                if stride.terms:
                    fixed = False
                    strides_bytes[depth] += unit * stride.evaluate(names)
                elif stride.constant:
                    strides_bytes[depth] += unit * stride.constant
        self._check_distance(max(strides_bytes, key=abs, default=0))
        if fixed:
            layout.strides_bytes[use.strides] = tuple(strides_bytes)
        return tuple(strides_bytes)


def _read_widths(nodes: tuple[NestNode, ...], widths_bytes: list[int]) -> None:
    """How wide the text says each access is, by its number."""
    for node in nodes:
        if isinstance(node, Code):
            if node.instruction.stream >= 0:
                widths_bytes[node.instruction.stream] = node.instruction.width_bytes
        elif isinstance(node, Choice):
            _read_widths(node.then, widths_bytes)
            _read_widths(node.otherwise, widths_bytes)
        else:
            _read_widths(node.body, widths_bytes)


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


def _flat(access: Access) -> tuple[Sum, ...]:
    return tuple(stride for along in access.strides for stride in along)


def _anchor(access: Access) -> _Anchor:
    varying = tuple(
        (dimension, evaluator(replace(base, constant=0)))
        for dimension, base in enumerate(access.base)
        if base.terms
    )
    return _Anchor(access.array, varying)


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


def _decide(block: _Block, names: Names, decisions: list[int]) -> None:
    for step in block.open:
        value = step.decide(names)
        if isinstance(step, _Repeat):
            decisions.append(value if value > 0 else 0)
            if value > 0 and step.block.open:
                _decide(step.block, names, decisions)
        else:
            chosen = 1 if value else 0
            decisions.append(chosen)
            if isinstance(step, _Fork):
                _decide(step.blocks[chosen], names, decisions)


def _build(
    block: _Block, decisions: Iterator[int], used: list[int], runs: list[tuple[int, int]]
) -> tuple[Node, ...]:
    """The nodes under `decisions`; their accesses and places in the text go to `used` and `runs`."""
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
            result.append(step.instructions[next(decisions)])
            runs.append((step.place, 1))
        elif isinstance(step, _Fork):
            result.extend(_build(step.blocks[next(decisions)], decisions, used, runs))
        else:
            trips = next(decisions)
            if trips > 0:
                result.append(Loop(trips, _build(step.block, decisions, used, runs), step.hardware))
    return tuple(result)

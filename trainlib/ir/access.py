# SPDX-License-Identifier: Apache-2.0
"""Iteration spaces and access maps: what a contraction touches, described once, everything else derived.

A contraction multiplies an element of one operand with an element of another and adds the product to an
element of the result, once per iteration of a nest of loops:

    CONVOLUTION = Contraction(
        y="n co ho wo",
        x="n, ci: co//co_of_group*ci_of_group + ci, hi: ho*sh + hk*dh - up, wi: wo*sw + wk*dw - left",
        w="co ci hk wk",
    )

An axis is a loop by its name, or ``name: expression`` in loops and symbols (strides, paddings, channels of
a group). From that follow, exactly: the loops of every step, which of them the result has (extents) and
which it is a sum over (reductions), the box of every operand a tile needs, halo and padding included, which
loops meet in one axis, multiply-accumulates, and how many of them are useful: neither with padding nor, in
the gradient of a strided convolution, with the zeros between.

The gradients are the same products summed over other loops: that of `w` is a sum over the loops of `y` that
`w` lacks; in that of `x` the loops of `y` that stand in an expression are replaced by the positions of `x`
(the gather form), ``ho = (hi + up - hk*dh) / sh`` where this is a whole number.

Compare the affine access maps of the polyhedral model (Feautrier 1991), which schedulers such as Timeloop and
Stream use for the same purpose.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from configs.values import Struct, replace
from trainlib.ir.steps import Extent

Taps = NDArray[np.int64]
"""[positions, kernel positions]: index of the element that is read, -1 where there is none (a zero)."""

KEPT_TAPS = 1024
"""Indices of taps that are small enough to be kept."""


class Span(Struct, frozen=True):
    """Elements [start, stop) of an axis that a tile needs, and how far from there the tile reads on.

    `before` is the distance of `start` from the first place that is read, `after` that of the last place from
    the last element: zeros of the padding. In the gradient of a strided axis places are those between the
    elements, too. Negative where an element is fetched although nothing is read of it.
    """

    start: int
    stop: int
    before: int
    after: int

    @property
    def extent(self) -> Extent:
        """The interval."""
        return (self.start, self.stop)

    @property
    def count(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def with_also(self, others: Extent) -> Span:
        """The smallest span that holds the elements `others` too (none if that interval is empty)."""
        if others[0] >= others[1]:
            return self
        start, stop = min(self.start, others[0]), max(self.stop, others[1])
        return Span(start, stop, self.before + start - self.start, self.after + self.stop - stop)


class Term(Struct, frozen=True):
    """`stride` times a loop variable, its block number (``loop // block``) or place in a period."""

    loop: str
    stride: int = 1
    block: int = 0
    """0: the variable itself. Blocks of 1 are those of groups of one channel."""
    period: int = 0

    def ends(self, extent: Extent) -> tuple[int, int]:
        """Smallest and largest value over an interval of the loop."""
        first, last = extent[0], extent[1] - 1
        if self.block:
            first, last = first // self.block, last // self.block
        if self.period:
            whole = first // self.period != last // self.period
            first, last = (0, self.period - 1) if whole else (first % self.period, last % self.period)
        ends = first * self.stride, last * self.stride
        return ends if self.stride > 0 else ends[::-1]


@dataclass(frozen=True, slots=True)
class Index:
    """Which element of an axis of `size` an iteration touches: (sum of terms + offset) / divisor.

    Touched is nothing (a zero) where that is no whole number, or outside [0, size).
    """

    axis: str
    size: int
    terms: tuple[Term, ...]
    offset: int = 0
    divisor: int = 1
    loop: str | None = field(init=False, repr=False, compare=False)
    """The loop it is, if it is one."""

    def __post_init__(self) -> None:
        """Find out once whether it is a loop."""
        loops = self.loops
        single = len(loops) == 1 and self.terms == (Term(loops[0]),) and (self.offset, self.divisor) == (0, 1)
        object.__setattr__(self, "loop", loops[0] if single else None)

    @property
    def loops(self) -> tuple[str, ...]:
        """The loops it depends on."""
        return tuple(term.loop for term in self.terms)

    def span(self, ranges: Mapping[str, Extent]) -> Span:
        """What a tile needs of the axis; one element at least."""
        first = last = self.offset
        for term in self.terms:
            if term.block or term.period or term.stride < 0:
                low, high = term.ends(ranges[term.loop])
                first, last = first + low, last + high
            else:
                begin, end = ranges[term.loop]
                first, last = first + begin * term.stride, last + (end - 1) * term.stride
        start = min(max(-(-first // self.divisor), 0), self.size - 1)
        stop = max(min(last // self.divisor + 1, self.size), start + 1)
        return Span(start, stop, start * self.divisor - first, last - (stop - 1) * self.divisor)

    def is_exact(self, loops: Mapping[str, int]) -> bool:
        """Whether each iteration of its loops touches another element, and all are touched."""
        span = self.span({name: (0, loops[name]) for name in self.loops})
        plain = self.divisor == 1 and not any(term.block or term.period for term in self.terms)
        count = prod(loops[name] for name in self.loops)
        return plain and span.before == span.after == 0 and count == self.size == span.count

    def taps(self, outer: str, inner: str, ranges: Mapping[str, Extent], fetched: Extent) -> Taps:
        """[outer, inner]: index into the elements `fetched` for each value of two loops.

        Of a gradient (an index with a divisor or a negative stride of `inner`) the inner loop runs backwards,
        so that indices ascend: the kernel is rotated.
        """
        rows, window = ranges[outer], ranges[inner]
        # The tiles of a search ask for the same ones again and again; large ones would fill the memory.
        small = (rows[1] - rows[0]) * (window[1] - window[0]) <= KEPT_TAPS
        made = _kept_taps if small else _taps
        return made(self, outer, inner, rows, window, fetched)

    def owned(self, outer: str, extent: Extent, loop_size: int) -> Extent:
        """Elements that belong to part of a loop if every element is to belong to one part of it.

        Each part begins where its first window does; the first and the last part reach to the ends of the
        axis. May be empty, as where the windows of a part begin in the padding.
        """
        stride = next(term.stride for term in self.terms if term.loop == outer)

        def begin(position: int) -> int:
            return min(max(position * stride + self.offset, 0), self.size)

        start = begin(extent[0]) if extent[0] > 0 else 0
        return start, begin(extent[1]) if extent[1] < loop_size else self.size

    def touched(self, loops: Mapping[str, int]) -> int:
        """Number of iterations of its own loops that touch an element."""
        whole = {name: (0, loops[name]) for name in self.loops}
        span = self.span(whole)
        if self.divisor == 1 and span.before <= 0 and span.after <= 0:  # nothing is outside the axis
            return prod(loops[name] for name in self.loops)
        values = np.array([self.offset])
        for term in self.terms:
            along = np.arange(loops[term.loop]) // max(term.block, 1)
            along = (along % term.period if term.period else along) * term.stride
            values = (values[:, None] + along).reshape(-1)
        places = values // self.divisor
        met = (values % self.divisor == 0) & (places >= 0) & (places < self.size)
        return int(np.count_nonzero(met))


def _taps(index: Index, outer: str, inner: str, rows: Extent, window: Extent, fetched: Extent) -> Taps:
    """`Index.taps` for an interval of each loop."""
    strides = {term.loop: term.stride for term in index.terms}
    inside = np.arange(*window)
    if strides[inner] < 0:
        inside = inside[::-1]
    values = np.arange(*rows)[:, None] * strides[outer] + inside * strides[inner] + index.offset
    places = values // index.divisor
    hits = (places >= fetched[0]) & (places < fetched[1]) & (values % index.divisor == 0)
    taps: Taps = np.where(hits, places - fetched[0], -1)
    taps.flags.writeable = False
    return taps


_kept_taps = lru_cache(maxsize=4096)(_taps)


@dataclass(frozen=True)
class Space:
    """The loops of one step with sizes, and which elements of its tensors an iteration touches, by role."""

    loops: Mapping[str, int]
    accesses: Mapping[str, tuple[Index, ...]]
    result: str

    @cached_property
    def extents(self) -> dict[str, int]:
        """The loops of the result, in the order of its axes."""
        return {index.axis: self.loops[index.axis] for index in self.accesses[self.result]}

    @cached_property
    def reductions(self) -> dict[str, int]:
        """The loops the result is a sum over."""
        return {name: size for name, size in self.loops.items() if name not in self.extents}

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the whole nest, those with zeros included."""
        return prod(self.loops.values())

    @cached_property
    def useful_macs(self) -> int:
        """Multiply-accumulates that touch an element of every operand."""
        guarded = {
            frozenset(index.loops): index.touched(self.loops)
            for access in self.accesses.values()
            for index in access
            if len(index.terms) > 1 or index.divisor > 1
        }
        free = set(self.loops).difference(*guarded)
        return prod(guarded.values()) * prod(self.loops[name] for name in free)

    def index(self, role: str, axis: str) -> Index:
        """How an axis of a tensor is touched."""
        return next(index for index in self.accesses[role] if index.axis == axis)

    def meeting(self, names: Iterable[str]) -> list[tuple[str, ...]]:
        """Those of the loops `names` that meet in one axis of a tensor, in sets.

        The extents of a box along other loops are independent: its elements are a product of what each says.
        """
        wanted = set(names)
        sets: list[set[str]] = []
        for access in self.accesses.values():
            for index in access:
                varying = wanted.intersection(index.loops)
                if len(varying) < 2:
                    continue
                joined = [other for other in sets if other & varying]
                sets = [other for other in sets if not other & varying]
                sets.append(varying.union(*joined))
        return [tuple(name for name in self.loops if name in varying) for varying in sets]


@dataclass(frozen=True)
class Contraction:
    """y = sum of x · w over the loops y lacks, by the text of the axes of the three tensors.

    Loops are in the order a tiler should try them in: those of y, then the others as they appear. Raises
    ValueError for text that is no sum of loops.
    """

    y: str
    x: str
    w: str
    maps: Mapping[str, tuple[tuple[str, ast.expr], ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parse the text once."""
        maps = {role: _axes(getattr(self, role)) for role in ("y", "x", "w")}
        object.__setattr__(self, "maps", maps)

    def space(self, result: str, sizes: Mapping[str, int], symbols: Mapping[str, int] | None = None) -> Space:
        """The nest of a step that writes `result`: ``y``, ``dw`` or ``dx``.

        `sizes` are those of the axes by name; of one that has another size in one tensor, by role and name
        (``w.ci``: input channels of a group). `symbols` are the numbers the text names.
        """
        return _space(self, result, tuple(sizes.items()), tuple((symbols or {}).items()))


@lru_cache(maxsize=4096)
def _space(
    contraction: Contraction,
    result: str,
    sizes_of: tuple[tuple[str, int], ...],
    symbols_of: tuple[tuple[str, int], ...],
) -> Space:
    sizes, symbols = dict(sizes_of), dict(symbols_of)
    accesses = {
        role: [_index(name, expression, _size(sizes, role, name), symbols) for name, expression in axes]
        for role, axes in contraction.maps.items()
    }
    loops = {index.loop: index.size for axes in accesses.values() for index in axes if index.loop}
    forward = {role: tuple(_simplified(index, loops) for index in axes) for role, axes in accesses.items()}
    if result == "y":
        return Space(loops, forward, result)
    if result == "dw":
        return Space(loops, {"dy": forward["y"], "x": forward["x"], result: forward["w"]}, result)
    return _gathered(forward, loops)


def _gathered(forward: Mapping[str, tuple[Index, ...]], loops: Mapping[str, int]) -> Space:
    """The nest that writes the gradient of `x`: its axes are loops, the loops of `y` expressions of them."""
    outputs = {index.loop for index in forward["y"]}
    input_sizes = {index.axis: index.size for index in forward["x"]}
    solved: dict[str, Index] = {}
    rest = dict(loops)
    for index in forward["x"]:
        name = index.axis
        if index.loop is not None:
            solved[index.loop] = Index(index.loop, loops[index.loop], (Term(name),))
            del rest[index.loop]
            continue
        outer = next(term for term in index.terms if term.loop in outputs)
        others = [term for term in index.terms if term is not outer]
        if outer.block:
            # In groups: co // co_of_group · ci_of_group + ci. What remains of co is a loop within the group.
            terms = (Term(name, outer.block, outer.stride), Term(outer.loop))
            solved[outer.loop] = Index(outer.loop, loops[outer.loop], terms)
            rest[outer.loop] = outer.block
            solved[others[0].loop] = Index(name, outer.stride, (Term(name, period=outer.stride),))
            del rest[others[0].loop]
            continue
        back = (replace(term, stride=-term.stride) for term in others)
        solved[outer.loop] = Index(
            outer.loop, loops[outer.loop], (Term(name), *back), -index.offset, outer.stride
        )
        del rest[outer.loop]

    def through(indices: Sequence[Index]) -> tuple[Index, ...]:
        return tuple(
            replace(solved[index.loop], axis=index.axis) if index.loop in solved else index
            for index in indices
        )

    accesses = {
        "dy": through(forward["y"]),
        "w": through(forward["w"]),
        "dx": tuple(Index(name, size, (Term(name),)) for name, size in input_sizes.items()),
    }
    return Space({**input_sizes, **rest}, accesses, "dx")


def _size(sizes: Mapping[str, int], role: str, name: str) -> int:
    return sizes.get(f"{role}.{name}", sizes.get(name, 0))


def _simplified(index: Index, loops: Mapping[str, int]) -> Index:
    """Without the number of the group where there is one group."""
    terms = tuple(term for term in index.terms if loops[term.loop] > term.block)
    return replace(index, terms=terms)


def _axes(text: str) -> tuple[tuple[str, ast.expr], ...]:
    """(name, expression) of every axis."""
    parts = [part.strip() for part in text.split(",")]
    axes = []
    for part in parts:
        name, colon, expression = part.partition(":")
        if colon:
            axes.append((name.strip(), ast.parse(expression.strip(), mode="eval").body))
        else:
            axes += [(name, ast.parse(name, mode="eval").body) for name in part.split()]
    return tuple(axes)


def _index(axis: str, expression: ast.expr, size: int, symbols: Mapping[str, int]) -> Index:
    terms: list[Term] = []
    offset = 0
    for sign, part in _summands(expression, 1):
        term, constant = _term(part, symbols)
        if term is None:
            offset += sign * constant
        else:
            terms.append(replace(term, stride=sign * term.stride * constant))
    return Index(axis, size, tuple(terms), offset)


def _summands(node: ast.expr, sign: int) -> list[tuple[int, ast.expr]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        right = sign if isinstance(node.op, ast.Add) else -sign
        return [*_summands(node.left, sign), *_summands(node.right, right)]
    return [(sign, node)]


def _term(node: ast.expr, symbols: Mapping[str, int]) -> tuple[Term | None, int]:
    """A product of a loop (or its block number) and symbols: the term without them, and their product."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return None, node.value
    if isinstance(node, ast.Name):
        symbol = symbols.get(node.id)
        return (Term(node.id), 1) if symbol is None else (None, symbol)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        (left, one), (right, other) = _term(node.left, symbols), _term(node.right, symbols)
        if left is None or right is None:
            return left or right, one * other
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        (term, one), (divisor, block) = _term(node.left, symbols), _term(node.right, symbols)
        if term is not None and divisor is None and one == 1 and term == Term(term.loop):
            return Term(term.loop, block=block), 1
    raise ValueError(f"'{ast.unparse(node)}' must be a product of a loop variable and symbols")

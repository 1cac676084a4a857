# SPDX-License-Identifier: Apache-2.0
"""Kernel calls that move boxes between buffers: copies with strides, transpositions, zeros around a box.

Every call is one fork. The dimension with the most elements is split over the cores; the last of the others
is the inner loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod

import numpy as np

from configs.errors import ShapeError
from configs.values import Struct
from trainlib.ir.access import Index, Term
from trainlib.ir.graph import Op
from trainlib.ir.steps import Array, Extent, KernelCall, Ranges, Tensors, part
from trainlib.primitives.definition import Shape, Step, Values
from trainlib.primitives.lowering.axes import LEADING, ONE, Area, Axes, Form, LeadingBoxes
from trainlib.primitives.lowering.boxes import row_major, sizes_of
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.pieces import Piece, TileBuilder

LARGEST_RANK = 5
"""Dimensions of a sample the loops of a strided copy can have."""

LOOPS = ("a", "b", "c", "d", "e", "m")
"""Extents of the loops of copy_nd, permute_nd, add_nd: one over the cores, four outer ones, the inner one."""


def in_loops(rank: int, split: int) -> Callable[[Sequence[int], int], Shape]:
    """Orders values of dimensions as `LOOPS`, `split` over the cores; a filler for what is missing."""
    order = [split, *(axis for axis in range(rank) if axis != split)]

    def ordered(values: Sequence[int], filler: int) -> Shape:
        placed, missing = [values[axis] for axis in order], (filler,) * (len(LOOPS) - rank)
        return (*placed[:-1], *missing, placed[-1]) if rank > 1 else (*placed, *missing)

    return ordered


class Walk(Struct, frozen=True):
    """A box as loops: sizes, and the strides in elements with which source and target are walked."""

    sizes: Shape
    source: Shape
    target: Shape

    def merged(self) -> Walk:
        """The same walk without dimensions of size 1, neighbours that are contiguous on both sides in one."""
        loops: list[tuple[int, int, int]] = []
        for size, source, target in zip(self.sizes, self.source, self.target, strict=True):
            if size == 1:
                continue
            if loops and loops[-1][1] == size * source and loops[-1][2] == size * target:
                loops[-1] = (loops[-1][0] * size, source, target)
            else:
                loops.append((size, source, target))
        sizes, sources, targets = zip(*(loops or [(1, 1, 1)]), strict=True)
        return Walk(sizes, sources, targets)

    @property
    def is_matrix(self) -> bool:
        """Whether a merged walk turns a matrix that is contiguous in its rows."""
        return len(self.sizes) == 2 and self.source[1] == self.target[0] == 1

    def of_sample(self) -> Walk:
        """Without the first dimension."""
        return Walk(self.sizes[1:], self.source[1:], self.target[1:])

    def nest(self, dimensions: int = 0, matrix: str = "") -> tuple[str, dict[str, int], Shape, Shape]:
        """The nest, its sizes, and the strides of its arrays; `matrix` is that of a transposition, of so many
        dimensions, where it is one matrix."""
        plain = self.merged()
        count = len(plain.sizes)
        if count == 1:
            return "copy", {"elements": plain.sizes[0]}, plain.source, plain.target
        if matrix and plain.is_matrix:
            sizes = {"N": plain.sizes[0], "M": plain.sizes[1]}
            return matrix, sizes, plain.source, plain.target[::-1]
        ordered = in_loops(count, int(np.argmax(plain.sizes)))
        sizes = dict(zip(LOOPS, ordered(plain.sizes, 1), strict=True))
        if matrix:
            sizes["dims"] = dimensions
        nest = "permute_nd" if matrix else "copy_nd"
        return nest, sizes, ordered(plain.source, 0), ordered(plain.target, 0)


def check_rank(shape: Shape, where: str) -> None:
    """ShapeError for samples of more than `LARGEST_RANK` dimensions."""
    if len(shape) - 1 > LARGEST_RANK:
        raise ShapeError(
            f"the samples have {len(shape) - 1} dimensions, but a strided copy takes {LARGEST_RANK}",
            where=where,
            cure=f"reshape to {LARGEST_RANK} dimensions or fewer",
        )


class Copy(Struct, frozen=True):
    """`target` is what `sources` hold, each at its own places, and `value` where none of them is.

    `loops` walk the target, in the order of its dimensions if nothing else is said. A source has these, or
    maps of one of them: those of the form, or of `maps`; what lies outside its box is not copied. Elements
    along a loop that it lacks are all the same; of those in `only` it has a part. `each`: a call for every
    sample. `matrix` is the nest of a transposition of one matrix, if this is a transposition.
    """

    target: str
    sources: Axes
    value: float = 0.0
    loops: Axes = ()
    maps: Mapping[str, Index] = {}
    only: Mapping[str, Mapping[str, Extent]] = {}
    each: bool = False
    matrix: str = ""

    def run(self, area: Area, build: TileBuilder) -> None:
        """The calls of a tile."""
        build.later(lambda: self._calls(area, TileBuilder(build.choice, build.dtype)))

    def walk(self, area: Area, source: str) -> tuple[Walk, int, int] | None:
        """Loops over what there is of a source, and where they begin in both buffers; None for nothing."""
        axes, maps = self.loops or area.axes(self.target), {**area.form.maps, **self.maps}
        extents, strides, first = dict(area.extents), dict[str, int](), 0
        box = zip(area.axes(source), area.region(source), row_major(area.sizes(source)), strict=True)
        inside = dict(self.only.get(source, {}))
        for axis, (start, stop), stride in box:
            if axis == ONE:
                continue
            (term,), offset = (maps[axis].terms, maps[axis].offset) if axis in maps else ((Term(axis),), 0)
            low, high = sorted((end - offset) * term.stride for end in (start, stop - 1))
            inside[term.loop], strides[term.loop] = (low, high + 1), stride * term.stride
            first += stride * (offset - start)
        for loop, (start, stop) in inside.items():
            extents[loop] = max(extents[loop][0], start), min(extents[loop][1], stop)
        sizes = sizes_of(tuple(extents[axis] for axis in axes))
        if min(sizes) <= 0:
            return None
        first += sum(extents[axis][0] * strides.get(axis, 0) for axis in axes)
        within = dict(zip(area.axes(self.target), row_major(area.sizes(self.target)), strict=True))
        place = sum((extents[axis][0] - area.extents[axis][0]) * within[axis] for axis in axes)
        walked = (tuple(steps.get(axis, 0) for axis in axes) for steps in (strides, within))
        return Walk(sizes, *walked), first, place

    def _calls(self, area: Area, build: TileBuilder) -> Sequence[KernelCall]:
        found = [(name, self.walk(area, name)) for name in self.sources]
        walks = [(name, *walk) for name, walk in found if walk]
        whole = area.sizes(self.target)
        fills = sum(prod(walk.sizes) for _, walk, *_ in walks) < prod(whole)
        if fills:
            build.fill(self.target, whole, self.value)
        # A matrix has a loop of its own; to any other order the batch is one more dimension.
        each = self.each or (self.matrix and whole[0] > 1 and walks[0][1].of_sample().merged().is_matrix)
        for sample in area.samples if each else (None,):
            for number, (name, walk, *starts) in enumerate(walks):
                self._copy(area, build, (name, self.target), walk, starts, sample, not (fills or number))
        return build.calls()

    def _copy(
        self,
        area: Area,
        build: TileBuilder,
        names: Sequence[str],
        walk: Walk,
        starts: Sequence[int],
        sample: int | None,
        first: bool,
    ) -> None:
        """One source; the rest of the target stays as it is, unless this call is the `first` to write it."""
        shape = area.sizes(self.target)
        if sample is not None:
            names = [part(name, sample) if area.axes(name)[0] == BATCH else name for name in names]
            walk, shape = walk.of_sample(), shape[1:]

        def moved(values: Array, *before: Array) -> Array:
            made = before[0].copy() if before else np.zeros(shape, values.dtype)
            _visited(made, starts[1], walk.sizes, walk.target)[...] = _visited(
                values, starts[0], walk.sizes, walk.source
            )
            return made

        nest, sizes, *strides = walk.nest(len(self.loops) - 1, self.matrix)
        pieces = [Piece(*each) for each in zip(names, ((), ()), starts, strides, strict=True)]
        reads = names[:1] if first or prod(walk.sizes) == prod(shape) else names
        build.run(nest, sizes, dict(zip("XY", pieces, strict=True)), reads, names[1:], moved)


def _visited(array: Array, first: int, sizes: Shape, strides: Shape) -> Array:
    """Elements of a C-contiguous array that loops visit from element `first` on."""
    steps = [stride * array.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(array.reshape(-1)[first:], sizes, steps)


def _rims(op: Op) -> Sequence[tuple[int, int]]:
    """What is put before and after each dimension of a sample; its gradient cuts that away again."""
    pads: Sequence[tuple[int, int]] = op.attributes["pads"]
    return pads if op.step == "FW" else [(-before, -after) for before, after in pads]


class ShiftLowering(LeadingBoxes):
    """A tensor laid into another: y[i] = x[i - before] where there is one, else a constant.

    Tiles are boxes of the result; where nothing of x reaches a tile it reads one element, since every tile
    has an input.
    """

    placed = True

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Of x those that lie in the tile."""
        axes = super().axes_of(op, tensors, role)
        return axes if role in op.writes else tuple(f"{name} of x" for name in axes)

    def maps(self, op: Op, tensors: Tensors) -> Mapping[str, Index]:
        """Those of x, so much further."""
        shifts = (0, *(before for before, _ in _rims(op)))
        sides = zip(LEADING, tensors[op.inputs[0]].shape, shifts, strict=False)
        indices = (Index(f"{name} of x", size, (Term(name),), -shift) for name, size, shift in sides)
        return {index.axis: index for index in indices}

    def meeting(self, op: Op, tensors: Tensors) -> Sequence[tuple[str, ...]]:
        """All, unless x is everywhere: whether anything of it reaches a tile depends on each of them."""
        return () if self._is_cropped(op, tensors) else (tuple(self.extents(op, tensors)),)

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """All, if x is everywhere."""
        return self.extents(op, tensors) if self._is_cropped(op, tensors) else ()

    def _is_cropped(self, op: Op, tensors: Tensors) -> bool:
        """Whether the result is a part of x."""
        form = self.form(op, tensors)
        spans = (index.span(form.whole) for index in form.inexact)
        return all(max(span.before, span.after) <= 0 for span in spans)

    def area(self, op: Op, tensors: Tensors, ranges: Ranges) -> Area:
        """With one element of x if nothing of it lies in the tile."""
        area = super().area(op, tensors, ranges)
        spans = (index.span(area.extents) for index in area.form.inexact)
        if any(min(span.before, span.after) < 0 for span in spans):
            for axis in area.axes(op.reads[0]):
                start = area.extents[axis][0] if axis.startswith(BATCH) else 0
                area.extents[axis] = start, start + 1
        return area

    def kernels(self, form: Form) -> Sequence[Copy]:
        """A fill unless x is everything, then a copy."""
        return (Copy(form.op.writes[0], form.op.reads, form.op.attributes.get("value", 0.0)),)


def _shifted(op: Op, values: Values) -> Values:
    array, widths = values[op.reads[0]], [(0, 0), *_rims(op)]
    kept = (
        slice(max(-before, 0), size - max(-after, 0))
        for size, (before, after) in zip(array.shape, widths, strict=True)
    )
    added = [(max(before, 0), max(after, 0)) for before, after in widths]
    return {op.writes[0]: np.pad(array[tuple(kept)], added, constant_values=op.attributes.get("value", 0.0))}


SHIFTED = Step.of("FW", "x -> y", _shifted, ShiftLowering())
SHIFTED_BACK = Step.of("IG", "dy -> dx", _shifted, ShiftLowering())
"""`pads` (before, after) of a `value` around each dimension of a sample; what is negative is cut away."""

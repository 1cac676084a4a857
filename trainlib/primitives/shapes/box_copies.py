# SPDX-License-Identifier: Apache-2.0
"""Kernel calls that move boxes between buffers: copies with strides, transpositions, zeros around a box.

Every call is one fork. The dimension with the most elements is split over the cores; the last of the others
is the inner loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from configs.errors import ShapeError
from configs.values import Struct, replace
from trainlib.ir.graph import Op
from trainlib.ir.steps import Array, Ranges, Region, Tensors
from trainlib.primitives.definition import Shape, Step, Values
from trainlib.primitives.lowering.axes import Area, Axes, LeadingBoxes
from trainlib.primitives.lowering.boxes import row_major, sizes_of
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


def check_rank(shape: Shape, where: str) -> None:
    """ShapeError for samples of more than `LARGEST_RANK` dimensions."""
    if len(shape) - 1 > LARGEST_RANK:
        raise ShapeError(
            f"the samples have {len(shape) - 1} dimensions, but a strided copy takes {LARGEST_RANK}",
            where=where,
            cure=f"reshape to {LARGEST_RANK} dimensions or fewer",
        )


def run_walk(
    build: TileBuilder,
    walk: Walk,
    pieces: tuple[Piece, Piece],
    compute: Callable[..., Array],
    *,
    reads: Sequence[str] = (),
    dimensions: int = 0,
    matrix: str = "transpose_matrix",
) -> None:
    """The loops of a walk between two buffers; `dimensions` > 0 for a transposition of so many.

    `reads` are the source, if nothing else is said; `matrix` is the nest of a transposition of one matrix.
    """
    nest, sizes, *strides = _loops(walk.merged(), dimensions, matrix)
    source, target = (replace(piece, strides=each) for piece, each in zip(pieces, strides, strict=True))
    arrays = {"X": source, "Y": target}
    build.run(nest, arrays, reads or (source.name,), (target.name,), compute, **sizes)


def _loops(plain: Walk, dimensions: int, matrix: str) -> tuple[str, dict[str, int], Shape, Shape]:
    """The nest of a merged walk, its sizes, and the strides of its arrays."""
    count = len(plain.sizes)
    if count == 1:
        return "copy", {"elements": plain.sizes[0]}, plain.source, plain.target
    if dimensions and plain.is_matrix:
        sizes = {"N": plain.sizes[0], "M": plain.sizes[1]}
        return matrix, sizes, plain.source, (plain.target[1], plain.target[0])
    ordered = in_loops(count, int(np.argmax(plain.sizes)))
    sizes = dict(zip(LOOPS, ordered(plain.sizes, 1), strict=True))
    if dimensions:
        sizes["dims"] = dimensions
    nest = "permute_nd" if dimensions else "copy_nd"
    return nest, sizes, ordered(plain.source, 0), ordered(plain.target, 0)


def copy_box(
    build: TileBuilder,
    source: tuple[str, Shape, Region],
    target: tuple[str, Shape, Region],
    *,
    first: bool,
) -> None:
    """Copy a box of the buffer `source` to a box of `target`; each is (name, shape of the buffer, box).

    Unless this call is the `first` to write the target, the rest of the target stays as it is.
    """
    (name, shape, taken), (result, whole, given) = source, target
    covers = sizes_of(given) == whole

    def compute(values: Array, *before: Array) -> Array:
        box = values[tuple(slice(*extent) for extent in taken)]
        if covers:
            return box.reshape(whole)
        after = np.zeros(whole, np.float32) if first else before[0].copy()
        after[tuple(slice(*extent) for extent in given)] = box
        return after

    offsets = [
        sum(start * stride for (start, _), stride in zip(region, row_major(of), strict=True))
        for region, of in ((taken, shape), (given, whole))
    ]
    walk = Walk(sizes_of(taken), row_major(shape), row_major(whole))
    pieces = (Piece(name, first=offsets[0]), Piece(result, first=offsets[1]))
    run_walk(build, walk, pieces, compute, reads=(name,) if covers or first else (name, result))


@dataclass(frozen=True)
class ShiftLowering(LeadingBoxes):
    """A tensor laid into another at an offset: y[i] = x[i - offset] where there is one, else `value`.

    `offset(op)` has one entry per dimension of a sample; a negative one cuts away (cropping). Tiles are boxes
    of the result; where nothing of x reaches a tile it reads one element, since every tile has an input.
    """

    offset: Callable[[Op], Sequence[int]]
    value: Callable[[Op], float]
    placed = True

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """Of x those that lie in the tile."""
        axes = super().axes_of(op, tensors, role)
        return axes if role in op.writes else tuple(f"{name} of x" for name in axes)

    def meeting(self, op: Op, tensors: Tensors) -> Sequence[tuple[str, ...]]:
        """All, unless x is everywhere: whether anything of it reaches a tile depends on each of them."""
        return () if self._is_cropped(op, tensors) else (tuple(self.extents(op, tensors)),)

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """All, if x is everywhere."""
        return self.extents(op, tensors) if self._is_cropped(op, tensors) else ()

    def _is_cropped(self, op: Op, tensors: Tensors) -> bool:
        """Whether the result is a part of x."""
        (_, *before), (_, *after) = (tensors[name].shape for name in (op[op.reads[0]], op.outputs[0]))
        sides = zip(before, after, self.offset(op), strict=True)
        return all(shift <= 0 and size + shift >= result for size, result, shift in sides)

    def area(self, op: Op, tensors: Tensors, ranges: Ranges) -> Area:
        """With what of x lies in the tile."""
        area, (source,) = super().area(op, tensors, ranges), op.reads
        samples, *region = area.region(op.writes[0])
        taken = [
            (max(start - shift, 0), min(stop - shift, size))
            for (start, stop), size, shift in zip(
                region, tensors[op[source]].shape[1:], self.offset(op), strict=True
            )
        ]
        if any(last <= first for first, last in taken):
            samples, taken = (samples[0], samples[0] + 1), [(0, 1)] * len(taken)
        area.extents.update(zip(area.axes(source), (samples, *taken), strict=True))
        return area

    def compute(self, area: Area, build: TileBuilder) -> None:
        """A fill unless x is everything, then a copy."""
        op, (source,), (target,) = area.op, area.op.reads, area.op.writes
        whole, shape = area.sizes(target), area.sizes(source)
        regions = zip(area.region(source)[1:], area.region(target)[1:], self.offset(op), strict=True)
        starts = (0, *(first + shift - start for (first, _), (start, _), shift in regions))
        given = tuple((start, start + size) for start, size in zip(starts, shape, strict=True))
        inside = all(start >= 0 and stop <= size for (start, stop), size in zip(given, whole, strict=True))
        fills = shape != whole or not inside
        if fills:
            build.fill(target, whole, self.value(op))
        if inside:
            taken = tuple((0, size) for size in shape)
            copy_box(build, (source, shape, taken), (target, whole, given), first=not fills)


def shifting(
    name: str,
    moves: str,
    pads: Callable[[Op], Iterable[tuple[int, int]]],
    value: Callable[[Op], float] = lambda op: 0.0,
    *,
    back: bool = False,
) -> Step:
    """The step that puts `pads` (before, after) of a `value` around each dimension of a sample, or cuts it.

    Negative ones cut away; `back` turns both round.
    """

    def rims(op: Op) -> list[tuple[int, int]]:
        return [(-before, -after) if back else (before, after) for before, after in pads(op)]

    def reference(op: Op, values: Values) -> Values:
        array, widths = values[op.reads[0]], [(0, 0), *rims(op)]
        kept = (
            slice(max(-before, 0), size - max(-after, 0))
            for size, (before, after) in zip(array.shape, widths, strict=True)
        )
        added = [(max(before, 0), max(after, 0)) for before, after in widths]
        return {op.writes[0]: np.pad(array[tuple(kept)], added, constant_values=value(op))}

    return Step.of(
        name, moves, reference, ShiftLowering(lambda op: [before for before, _ in rims(op)], value)
    )

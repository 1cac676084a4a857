# SPDX-License-Identifier: Apache-2.0
"""Kernel calls that move boxes between buffers: copies with strides, transpositions, zeros around a box.

Every call is one fork. The dimension with the most elements is split over the cores; the last of the others
is the inner loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from configs.dtypes import DType
from configs.errors import ShapeError
from configs.values import Struct, replace
from trainlib.ir.graph import Op
from trainlib.ir.steps import (
    Array,
    Function,
    KernelCall,
    KernelChoice,
    LateTask,
    Ranges,
    Region,
    Tensors,
    TileTask,
)
from trainlib.primitives.definition import Shape
from trainlib.primitives.lowering.boxes import LeadingBoxes, leading_region, row_major, sizes_of
from trainlib.primitives.lowering.calls import box
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call

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
            f"samples of {len(shape) - 1} dimensions are too many for a strided copy: the limit is "
            f"{LARGEST_RANK}",
            where=where,
            cure=f"reshape to {LARGEST_RANK} dimensions or fewer",
        )


def walk_call(
    choice: KernelChoice,
    walk: Walk,
    pieces: tuple[Piece, Piece],
    reads: Sequence[str],
    writes: Sequence[str],
    function: Function,
    dtype: DType,
    *,
    dimensions: int = 0,
    matrix: str = "transpose_matrix",
) -> KernelCall:
    """The loops of a walk between two buffers; `dimensions` > 0 for a transposition of so many.

    `matrix` is the nest of a transposition that turns one matrix.
    """
    nest, sizes, source, target = _loops(walk.merged(), dimensions, matrix)
    strides = {"X": source, "Y": target}
    arrays = {name: replace(piece, strides=strides[name]) for name, piece in zip("XY", pieces, strict=True)}
    return kernel_call(choice, nest, sizes, arrays, reads, writes, function, dtype)


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


def fill_call(choice: KernelChoice, target: str, shape: Shape, value: float, dtype: DType) -> KernelCall:
    """All of a buffer set to a value."""
    return kernel_call(
        choice,
        "set_to_value",
        {"elements": prod(shape)},
        {"Y": target},
        (),
        (target,),
        lambda arrays: (np.full(shape, value, np.float32),),
        dtype,
        details={"value": value},
    )


def box_copy_call(
    choice: KernelChoice,
    *,
    source: tuple[str, Shape, Region],
    target: tuple[str, Shape, Region],
    dtype: DType,
    first: bool,
) -> KernelCall:
    """Copy a box of the buffer `source` to a box of `target`; each is (name, shape of the buffer, box).

    Unless this call is the `first` to write the target, the rest of the target stays as it is.
    """
    (name, shape, taken), (result, whole, given) = source, target
    covers = sizes_of(given) == whole

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        values = arrays[0][tuple(slice(*extent) for extent in taken)]
        if covers:
            return (values.reshape(whole),)
        after = np.zeros(whole, np.float32) if first else arrays[1].copy()
        after[tuple(slice(*extent) for extent in given)] = values
        return (after,)

    offsets = [
        sum(start * stride for (start, _), stride in zip(region, row_major(of), strict=True))
        for region, of in ((taken, shape), (given, whole))
    ]
    walk = Walk(sizes_of(taken), row_major(shape), row_major(whole))
    pieces = (Piece(name, first=offsets[0]), Piece(result, first=offsets[1]))
    reads = (name,) if covers or first else (name, result)
    return walk_call(choice, walk, pieces, reads, (result,), function, dtype)


@dataclass(frozen=True, slots=True)
class ShiftLowering(LeadingBoxes):
    """A tensor laid into another at an offset: y[i] = x[i - offset] where there is one, else `value`.

    `offset(op)` has one entry per dimension of a sample; a negative one cuts away (cropping). Tiles are boxes
    of the result; where nothing of x reaches a tile it reads one element, since every tile has an input.
    """

    offset: Callable[[Op], Sequence[int]]
    value: Callable[[Op], float]

    def meeting(self, op: Op, tensors: Tensors) -> Sequence[tuple[str, ...]]:
        """All: whether anything of x reaches a tile depends on each of them."""
        return (tuple(self.extents(op, tensors)),)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """What of x lies in the tile; a fill unless that is everything, then a copy."""
        (source,), (target,) = op.reads, op.writes
        before, after = tensors[op[source]], tensors[op[target]]
        region = leading_region(after.shape, ranges)
        whole = sizes_of(region)
        taken, given = [region[0]], [(0, whole[0])]
        for (start, stop), size, shift in zip(region[1:], before.shape[1:], self.offset(op), strict=True):
            first, last = max(start, shift), min(stop, size + shift)
            taken.append((first - shift, last - shift))
            given.append((first - start, last - start))
        empty = any(last <= first for first, last in taken)
        if empty:
            taken = [(extent[0], extent[0] + 1) for extent in (region[0], *((0, 1),) * (len(taken) - 1))]
        shape = sizes_of(tuple(taken))

        def calls() -> list[KernelCall]:
            made: list[KernelCall] = []
            if sizes_of(tuple(given)) != whole or empty:
                made.append(fill_call(choice, target, whole, self.value(op), after.dtype))
            if not empty:
                inside = (source, shape, tuple((0, size) for size in shape))
                into = (target, whole, tuple(given))
                made.append(
                    box_copy_call(choice, source=inside, target=into, dtype=after.dtype, first=not made)
                )
            return made

        return LateTask((box(op, source, *taken),), (box(op, target, *region),), (), calls)

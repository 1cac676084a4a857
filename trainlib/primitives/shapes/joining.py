# SPDX-License-Identifier: Apache-2.0
"""Lowerings of concat and split: many tensors side by side along an axis of one, copied either way.

Tiles cut the batch and up to two dimensions other than that axis, so a tile has all pieces of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from trainlib.ir.graph import Op
from trainlib.ir.steps import KernelCall, KernelChoice, Ranges, Region, Tensors, TileTask
from trainlib.primitives.definition import Shape
from trainlib.primitives.lowering.boxes import leading_extents, leading_region, sizes_of
from trainlib.primitives.lowering.calls import NoMatmul, box
from trainlib.primitives.shapes.box_copies import box_copy_call, fill_call


def piece_number(role: str) -> int:
    """Number of a piece by its role: x is 0, x1 is 1, dy2 is 2."""
    return int(role.lstrip("dxy") or 0)


def piece_offsets(sizes: Sequence[int]) -> list[int]:
    """Where each piece begins along the axis."""
    return [0, *accumulate(sizes)][:-1]


class _Joining(NoMatmul):
    """What both directions share; ops carry ``axis`` (of a sample) and ``sizes`` of the pieces."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """``n`` and dimensions other than the axis."""
        shape = tensors[op.outputs[0]].shape
        axes = [axis for axis in range(len(shape) - 1) if axis != op.attributes["axis"]]
        return leading_extents(shape, axes)

    def regions(self, op: Op, tensors: Tensors, roles: Sequence[str], ranges: Ranges) -> dict[str, Region]:
        """The box of each role in a tile."""
        return {role: leading_region(tensors[op[role]].shape, ranges) for role in roles}


def _within(shape: Shape, axis: int, first: int, size: int) -> Region:
    """The box of a piece inside the whole of this shape."""
    return tuple(
        (first, first + size) if dimension == 1 + axis else (0, extent)
        for dimension, extent in enumerate(shape)
    )


class Join(_Joining):
    """Pieces into one: a copy per piece; pieces that do not exist (a gradient nobody has) are zeros."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Rows of every piece, the same rows of the whole."""
        (target,) = op.writes
        regions = self.regions(op, tensors, (*op.reads, target), ranges)
        axis, sizes = op.attributes["axis"], op.attributes["sizes"]
        dtype, whole = tensors[op[target]].dtype, sizes_of(regions[target])
        calls: list[KernelCall] = []
        if len(op.reads) < len(sizes):
            calls.append(fill_call(choice, target, whole, 0.0, dtype))
        for role in op.reads:
            number, shape = piece_number(role), sizes_of(regions[role])
            inside = _within(whole, axis, piece_offsets(sizes)[number], sizes[number])
            calls.append(
                box_copy_call(
                    choice,
                    source=(role, shape, tuple((0, size) for size in shape)),
                    target=(target, whole, inside),
                    dtype=dtype,
                    first=not calls,
                )
            )
        inputs = tuple(box(op, role, *regions[role]) for role in op.reads)
        return TileTask(inputs, (box(op, target, *regions[target]),), (), tuple(calls))


class Split(_Joining):
    """One into pieces: a copy per piece that is needed."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Rows of the whole, the same rows of every piece."""
        (source,) = op.reads
        regions = self.regions(op, tensors, (source, *op.writes), ranges)
        axis, sizes = op.attributes["axis"], op.attributes["sizes"]
        dtype, whole = tensors[op[source]].dtype, sizes_of(regions[source])
        calls = []
        for role in op.writes:
            number, shape = piece_number(role), sizes_of(regions[role])
            inside = _within(whole, axis, piece_offsets(sizes)[number], sizes[number])
            calls.append(
                box_copy_call(
                    choice,
                    source=(source, whole, inside),
                    target=(role, shape, tuple((0, size) for size in shape)),
                    dtype=dtype,
                    first=True,
                )
            )
        outputs = tuple(box(op, role, *regions[role]) for role in op.writes)
        return TileTask((box(op, source, *regions[source]),), outputs, (), tuple(calls))

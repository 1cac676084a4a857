# SPDX-License-Identifier: Apache-2.0
"""Lowerings of concat and split: many tensors side by side along an axis of one, copied either way.

Tiles cut the batch and up to two dimensions other than that axis, so a tile has all pieces of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from trainlib.ir.graph import Op
from trainlib.ir.steps import KernelCall, KernelChoice, Ranges, StepLowering, Tensors, TileTask
from trainlib.primitives.lowering.boxes import leading_extents, leading_region, sizes_of
from trainlib.primitives.lowering.calls import box
from trainlib.primitives.shapes.box_copies import box_copy_call, fill_call


def piece_number(role: str) -> int:
    """Number of a piece by its role: x is 0, x1 is 1, dy2 is 2."""
    return int(role.lstrip("dxy") or 0)


def piece_offsets(sizes: Sequence[int]) -> list[int]:
    """Where each piece begins along the axis."""
    return [0, *accumulate(sizes)][:-1]


class _Joining(StepLowering):
    """Both directions; ops carry ``axis`` (of a sample) and ``sizes`` of the pieces."""

    joins: bool

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """``n`` and dimensions other than the axis."""
        shape = tensors[op.outputs[0]].shape
        axes = [axis for axis in range(len(shape) - 1) if axis != op.attributes["axis"]]
        return leading_extents(shape, axes)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Rows of the whole, the same rows of every piece: a copy for each."""
        pieces, (whole,) = (op.reads, op.writes) if self.joins else (op.writes, op.reads)
        regions = {role: leading_region(tensors[op[role]].shape, ranges) for role in op.roles}
        first, sizes, shape = 1 + op.attributes["axis"], op.attributes["sizes"], sizes_of(regions[whole])
        dtype, calls = tensors[op[whole]].dtype, list[KernelCall]()
        if self.joins and len(pieces) < len(sizes):
            calls.append(fill_call(choice, whole, shape, 0.0, dtype))
        for role in pieces:
            number, part = piece_number(role), sizes_of(regions[role])
            start = piece_offsets(sizes)[number]
            inside = [(0, size) for size in shape]
            inside[first] = (start, start + sizes[number])
            sides = (role, part, tuple((0, size) for size in part)), (whole, shape, tuple(inside))
            source, target = sides if self.joins else sides[::-1]
            is_first = not self.joins or not calls
            calls.append(box_copy_call(choice, source=source, target=target, dtype=dtype, first=is_first))
        inputs, outputs = (
            tuple(box(op, role, *regions[role]) for role in side) for side in (op.reads, op.writes)
        )
        return TileTask(inputs, outputs, (), tuple(calls))


class Join(_Joining):
    """Pieces into one; pieces that do not exist (a gradient nobody has) are zeros."""

    joins = True


class Split(_Joining):
    """One into pieces, those that are needed."""

    joins = False

# SPDX-License-Identifier: Apache-2.0
"""Buffers of single tiles of an op, and which of its dimensions decide on them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from scheduler.tiles.tiling import Tiler, interval
from trainlib.ir.steps import Extent, Operand, TileTask

PROBED_FIRST, PROBED_LAST = 8, 3
"""Of more pieces than both together only the first and the last ones are looked at.

What a halo adds repeats with the stride, so that the first 8 show every case of strides up to 8.
"""

Key = tuple[str, str]
"""Role (in, out, scratch) and name of a buffer."""


class Shape(NamedTuple):
    """Extents of a buffer's box and of the tensor around it, its bytes, and what tells two boxes apart."""

    extents: tuple[int, ...]
    whole: tuple[int, ...]
    size_bytes: int
    box: Operand | None


class TileProbes:
    """Tiles of one op cut along some of its dimensions (by number, in the order of `tiler.dims`)."""

    def __init__(self, tiler: Tiler) -> None:
        self._tiler = tiler
        self._dims = tuple(tiler.dims)
        self._whole = tuple((0, extent) for extent in tiler.dims.values())
        self._meeting = tiler.lowering.meeting(tiler.op, tiler.tensors)
        alone = frozenset(self._dims).difference(*self._meeting)
        self._even = alone.intersection(tiler.lowering.even(tiler.op, tiler.tensors))
        self._known: dict[tuple[Extent, ...], dict[Key, Shape]] = {}

    def blocks(self) -> list[tuple[int, ...]]:
        """The dimensions by number, those together that decide together on a box."""
        block_of = list(range(len(self._dims)))
        for met in self._meeting:
            numbers = [self._dims.index(name) for name in met if name in self._dims]
            joined = {block_of[number] for number in numbers}
            block_of = [min(joined) if block in joined else block for block in block_of]
        return [
            tuple(number for number, other in enumerate(block_of) if other == block)
            for block in sorted(set(block_of))
        ]

    def tiles(self, block: Sequence[int], sizes: Sequence[int]) -> list[dict[Key, Shape]]:
        """The tiles cut to these sizes along the dimensions of a block, or the first and last of many."""
        if len(block) == 1:
            pieces, _ = self.pieces(block[0], sizes[0])
            shapes = {piece: self.shapes({block[0]: piece}) for piece in dict.fromkeys(pieces)}
            return [shapes[piece] for piece in pieces]
        found = [self.pieces(number, size)[0] for number, size in zip(block, sizes, strict=True)]
        return [self.shapes(dict(zip(block, pieces, strict=True))) for pieces in product(*found)]

    def pieces(self, number: int, size: int) -> tuple[list[Extent], float]:
        """The pieces of a dimension that are looked at, and for how many each of them stands.

        Where it does not matter where a piece lies, the first of its size does.
        """
        extent = self._tiler.dims[self._dims[number]]
        count = -(-extent // size)
        last = max(0, min(count - PROBED_FIRST, PROBED_LAST))
        looked_at = [*range(min(count, PROBED_FIRST)), *range(count - last, count)]
        scale = count / len(looked_at)
        if self._dims[number] in self._even:
            return [(0, size)] * (len(looked_at) - 1) + [(0, extent - size * (count - 1))], scale
        return [interval(extent, size, piece) for piece in looked_at], scale

    def even_pair(self, number: int) -> tuple[dict[Key, Shape], dict[Key, Shape]] | None:
        """Two pieces along a dimension that is cut evenly: others differ as these do. None along others."""
        if self._dims[number] not in self._even or self._whole[number][1] < 2:
            return None
        return self.shapes({number: (0, 1)}), self.shapes({number: (1, 2)})

    def shapes(self, pieces: Mapping[int, Extent]) -> dict[Key, Shape]:
        """The buffers of the tile that is cut to these pieces, by number of the dimension, and whole else."""
        ranges = tuple(pieces.get(number, whole) for number, whole in enumerate(self._whole))
        known = self._known.get(ranges)
        if known is None:
            task = self._tiler.task(dict(zip(self._dims, ranges, strict=True)))
            known = self._known[ranges] = self._of_task(task)
        return known

    def _of_task(self, task: TileTask) -> dict[Key, Shape]:
        shapes: dict[Key, Shape] = {}
        for role, operands in (("in", task.inputs), ("out", task.outputs)):
            for operand in operands:
                size_bytes = self._tiler.operand_bytes(operand)
                extents, around = _extents_of(operand, self._tiler.tensors[operand.tensor].shape)
                shapes[role, operand.name] = Shape(extents, around, size_bytes, operand)
        for scratch in task.scratch:
            size_bytes = prod(scratch.shape) * scratch.dtype.bytes
            shapes["scratch", scratch.name] = Shape((), (), size_bytes, None)
        return shapes


def _extents_of(operand: Operand, tensor: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents of an operand's box and of the tensor around it.

    Many boxes have one more axis per dimension in front, with how many there are, and two axes behind those
    that count as cut: no line and no command goes from one box to the next.
    """
    if not operand.pieces:
        return operand.shape, tensor
    counts = tuple(len(along) for along in operand.pieces)
    largest = tuple(max(stop - start for start, stop in along) for along in operand.pieces)
    return (*counts, 1, 1, *largest), (*counts, 2, 2, *tensor)


def bytes_of(shape: Shape | None) -> int:
    """Bytes of a buffer, 0 where a tile has none."""
    return shape.size_bytes if shape is not None else 0

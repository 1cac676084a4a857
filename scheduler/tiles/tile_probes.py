"""Buffers of single tiles of an op, and which of its dimensions depend on each other there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from math import prod
from typing import NamedTuple

import numpy as np

from scheduler.tiles.tiling import Tiler, interval, intervals
from trainlib.steps import Extent, Operand, TileTask

PROBED_FIRST, PROBED_LAST = 8, 3
"""Of more pieces than both together only the first and the last ones are looked at.

What a halo adds repeats with the stride, so that the first 8 show every case of strides up to 8.
"""

CHECKED_TILES = 6
"""Tiles cut along two dimensions on which it is checked that the two do not depend on each other."""

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
        self._known: dict[tuple[Extent, ...], dict[Key, Shape]] = {}

    def interacting(self, tried: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        """The dimensions in blocks: those whose common tiles are not what each alone makes of them."""
        block_of = list(range(len(self._dims)))
        generator = np.random.default_rng(0)
        for one, other in combinations(range(len(self._dims)), 2):
            if not all(self._independent(one, other, tried, generator) for _ in range(CHECKED_TILES)):
                joined, old = sorted((block_of[one], block_of[other]))
                block_of = [joined if block == old else block for block in block_of]
        return [
            tuple(number for number, own in enumerate(block_of) if own == block)
            for block in sorted(set(block_of))
        ]

    def _independent(
        self, one: int, other: int, tried: Sequence[Sequence[int]], generator: np.random.Generator
    ) -> bool:
        pieces = []
        for number in (one, other):
            small = tried[number][len(tried[number]) // 2 :]
            extent, size = self._tiler.dims[self._dims[number]], int(generator.choice(np.array(small)))
            pieces.append(interval(extent, size, int(generator.integers(-(-extent // size)))))
        whole, both = self.shapes({}), self.shapes({one: pieces[0], other: pieces[1]})
        first, second = self.shapes({one: pieces[0]}), self.shapes({other: pieces[1]})
        return all(
            bytes_of(both.get(key)) * bytes_of(whole.get(key))
            == bytes_of(first.get(key)) * bytes_of(second.get(key))
            and (bytes_of(whole.get(key)) > 0 or bytes_of(both.get(key)) == 0)
            for key in {*whole, *both, *first, *second}
        )

    def tiles(self, block: Sequence[int], sizes: Sequence[int]) -> list[dict[Key, Shape]]:
        """The tiles cut to these sizes along the dimensions of a block, or the first and last of many."""
        found = [self.pieces(number, size)[0] for number, size in zip(block, sizes, strict=True)]
        return [self.shapes(dict(zip(block, pieces, strict=True))) for pieces in product(*found)]

    def pieces(self, number: int, size: int) -> tuple[list[Extent], float]:
        """The pieces of a dimension that are looked at, and for how many each of them stands."""
        extent = self._tiler.dims[self._dims[number]]
        count = -(-extent // size)
        if count <= PROBED_FIRST + PROBED_LAST:
            return intervals(extent, size), 1.0
        looked_at = (*range(PROBED_FIRST), *range(count - PROBED_LAST, count))
        return [interval(extent, size, piece) for piece in looked_at], count / len(looked_at)

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
            size_bytes = prod(scratch.shape) * np.dtype(scratch.dtype).itemsize
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

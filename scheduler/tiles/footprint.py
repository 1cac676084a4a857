# SPDX-License-Identifier: Apache-2.0
"""What the tiles of an op take and move, for arrays of candidates, from tiles cut along one dimension each.

A lowering is asked for tiles that are cut along one dimension and whole in all others. A box or a scratch
buffer whose size is a product of what the single dimensions make of it is then known for every combination
of sizes. Dimensions of which that is not true (the channels of a grouped convolution) are cut together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from scheduler.addresses.allocation import ALIGNMENT_BYTES
from scheduler.tiles.partial_sums import SUM
from scheduler.tiles.tile_probes import PROBED_FIRST, PROBED_LAST, Key, Shape, TileProbes, bytes_of
from scheduler.tiles.tiling import BufferDepths, Tiler

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_PROBES = 60_000
"""Tiles that are looked at to learn what sizes that depend on each other make of the buffers."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Dimensions that are cut together, and what each buffer makes of each combination of their sizes.

    Arrays are [buffer, combination], `extents` [axis, buffer, combination].
    """

    dims: tuple[int, ...]
    largest: Floats
    """Bytes of the largest box over those of the whole."""
    mean: Floats
    """The same, mean over the boxes."""
    extents: Integers


@dataclass(frozen=True, slots=True)
class _Turns:
    """How a loop over one dimension changes each buffer: arrays [buffer, combination of the block]."""

    dims: tuple[int, ...]
    """Those of the dimension's block."""
    distinct: Integers
    """Different boxes one after another."""
    present: Integers
    """Pieces in which the buffer exists at all."""


@dataclass(frozen=True, slots=True)
class BoxShape:
    """What moving one box of a buffer takes, by row of the sizes: bytes, lines, commands.

    `pieces` are the boxes that one load gathers.
    """

    size_bytes: Floats
    lines: Integers
    commands: Integers
    pieces: Integers


class Footprint:
    """Buffers of the tiles of one op as functions of the tile sizes; `tried` are the sizes per dimension.

    All combinations of sizes are the rows of `sizes`, those with the fewest tiles first; of equals the
    innermost dimension is kept whole. Arrays per buffer are [buffer, row], in the order of `keys`.
    """

    def __init__(self, tiler: Tiler, tried: Sequence[Sequence[int]]) -> None:
        self._tiler = tiler
        self._dims = tuple(tiler.dims)
        self._probes = TileProbes(tiler)
        blocks = self._probes.blocks()
        self.tried = tried = _affordable(tuple(tiler.dims.values()), blocks, tried)
        """Sizes per dimension; fewer than asked for where dimensions depend on each other."""
        probes = {
            block: [
                self._probes.tiles(block, sizes) for sizes in product(*(tried[number] for number in block))
            ]
            for block in blocks
        }
        whole = self._probes.shapes({})
        probed = [shapes for along in probes.values() for pieces in along for shapes in pieces]
        self.keys = tuple(dict.fromkeys(key for shapes in (whole, *probed) for key in shapes))
        self.moved = tuple(column for column, (role, _) in enumerate(self.keys) if role != "scratch")
        """The buffers of operands, by number."""
        self.tensors = {
            key: shape.box.tensor
            for shapes in (whole, *probed)
            for key, shape in shapes.items()
            if shape.box is not None
        }
        self._base = np.maximum(np.array([bytes_of(whole.get(key)) for key in self.keys], np.float64), 1.0)
        self._shape = self._tensor_shapes(probed, whole)
        self._counting = self._counting_axes(probed, whole)
        self._blocks = [self._block(block, probes[block]) for block in blocks]
        self._turns = [
            self._turns_of(number, next(block for block in blocks if number in block))
            for number in range(len(self._dims))
        ]

    @cached_property
    def _rows(self) -> tuple[list[Integers], Integers]:
        """By row: per dimension the number of its size among those tried, and how many tiles there are."""
        counts = [len(sizes) for sizes in reversed(self.tried)]
        places = list(np.indices(counts, np.int64).reshape(len(counts), prod(counts)))[::-1]
        tiles = np.ones(prod(counts), np.int64)
        for extent, sizes, place in zip(self._tiler.dims.values(), self.tried, places, strict=True):
            tiles *= np.array([-(-extent // size) for size in sizes], np.int64)[place]
        rank = np.argsort(tiles, kind="stable")
        return [place[rank] for place in places], tiles[rank]

    @property
    def tiles(self) -> Integers:
        """Number of tiles, by row."""
        return self._rows[1]

    @cached_property
    def sizes(self) -> Integers:
        """Size per dimension, [row, dimension]."""
        sizes = np.zeros((len(self.tiles), len(self._dims)), np.int64)
        for number, place in enumerate(self._rows[0]):
            sizes[:, number] = np.array(self.tried[number], np.int64)[place]
        return sizes

    @cached_property
    def largest_bytes(self) -> Integers:
        """Bytes of the largest box."""
        factors = np.ones((len(self.keys), len(self.tiles)))
        for block in self._blocks:
            factors *= block.largest[:, self._combinations(block.dims)]
        return np.rint(self._base[:, None] * factors).astype(np.int64)

    @cached_property
    def distinct(self) -> Integers:
        """Different boxes."""
        return self._product([(loop.dims, loop.distinct) for loop in self._turns])

    @cached_property
    def present(self) -> Integers:
        """Tiles that have a box at all."""
        return self._product([(loop.dims, loop.present) for loop in self._turns])

    def _product(self, loops: Sequence[tuple[tuple[int, ...], Integers]]) -> Integers:
        result = np.ones((len(self.keys), len(self.tiles)), np.int64)
        for dims, along in loops:
            result *= along[:, self._combinations(dims)]
        return result

    def _combinations(self, dims: Sequence[int]) -> Integers:
        """Place in the arrays of a block, by row."""
        found = np.zeros(len(self.tiles), np.int64)
        for number in dims:
            found = found * len(self.tried[number]) + self._rows[0][number]
        return found

    def signature(self, order: Sequence[str]) -> object:
        """What a loop order (of cut dimensions) loads: per buffer the loops from its innermost outwards."""
        numbers = [self._dims.index(name) for name in order]
        result = []
        for column in self.moved:
            varying = [
                place
                for place, number in enumerate(numbers)
                if self._turns[number].distinct[column].max() > 1
            ]
            result.append(frozenset(numbers[: varying[-1] + 1]) if varying else frozenset())
        return tuple(result)

    def changes(self, rows: Integers, orders: Sequence[Sequence[str]]) -> Iterator[Integers]:
        """[buffer, row] for one loop order after another: how often another box comes, for some rows."""
        along: dict[str, tuple[Integers, Integers]] = {}
        for name, loop in zip(self._dims, self._turns, strict=True):
            combinations = self._combinations(loop.dims)[rows]
            along[name] = loop.distinct[:, combinations], loop.present[:, combinations]
        cut = [name for name, loop in along.items() if any((turns > 1).any() for turns in loop)]
        for order in orders:
            running = np.ones((len(self.keys), len(rows)), np.int64)
            last = running
            for name in order:
                if name in cut:
                    changing, turns = along[name]
                    # A loop outside the innermost one that changes the box repeats all its changes.
                    last = np.where(changing > 1, running * changing, last)
                    running = running * turns
            yield last

    def l1_bytes(self, rows: Integers, changes: Integers, depths: BufferDepths) -> Integers:
        """Bytes of all buffers with all their slots, per candidate: its row and its `changes`."""
        total = np.zeros(len(rows), np.int64)
        for column, (role, name) in enumerate(self.keys):
            slot_bytes = self._slot_bytes(column, depths)[rows]
            if role == "scratch":
                total += slot_bytes
                continue
            resident = self.tensors[role, name] in self._tiler.resident
            if not resident:
                total += slot_bytes * np.minimum(depths.of(role, name), changes[column])
            if role == "out" and self._tiler.reductions:
                total += slot_bytes * (self.present[column][rows] > changes[column])
                if resident:
                    continue
                reloads = np.maximum(changes[column] - self.distinct[column][rows], 0)
                total += slot_bytes * np.minimum(depths.of("in", name + SUM), reloads)
        return total

    def least_l1_bytes(self, depths: BufferDepths) -> Integers:
        """By row: no loop order takes less (`l1_bytes`), as a box changes at least as often as it differs."""
        total = np.zeros(len(self.tiles), np.int64)
        for column, (role, name) in enumerate(self.keys):
            slot_bytes = self._slot_bytes(column, depths)
            if role == "scratch":
                total += slot_bytes
            elif self.tensors[role, name] not in self._tiler.resident:
                total += slot_bytes * np.minimum(depths.of(role, name), self.distinct[column])
        return total

    def _slot_bytes(self, column: int, depths: BufferDepths) -> Integers:
        largest_bytes = self.largest_bytes[column]
        aligned = -(-largest_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return np.asarray(aligned + depths.gap_bytes)

    def box(self, column: int) -> BoxShape:
        """The boxes of one buffer."""
        mean = np.ones(len(self.tiles))
        extents: Integers | None = None
        for block in self._blocks:
            combinations = self._combinations(block.dims)
            mean *= block.mean[column][combinations]
            along = block.extents[:, column][:, combinations]
            extents = along if extents is None else np.minimum(extents, along)
        whole = self._shape[column]
        if extents is None:
            extents = np.repeat(whole[:, None], len(self.tiles), axis=1)
        lines = np.ones(len(self.tiles), np.int64)
        commands, before, before_that, pieces = (np.ones_like(lines) for _ in range(4))
        for axis, extent in enumerate(extents):
            if axis < self._counting[column]:
                pieces = pieces * extent
            is_cut = extent < whole[axis]
            lines = np.where(is_cut, before, lines)
            commands = np.where(is_cut, before_that, commands)
            before_that = before
            before = before * extent
        return BoxShape(self._base[column] * mean, lines, commands, pieces)

    def _tensor_shapes(self, probed: Sequence[Mapping[Key, Shape]], whole: Mapping[Key, Shape]) -> Integers:
        """Extents of the tensor behind each buffer, [buffer, axis], 1 for axes it has not."""
        tensors: dict[Key, tuple[int, ...]] = {}
        for shapes in (whole, *probed):
            for key, shape in shapes.items():
                tensors.setdefault(key, shape.whole)
        axes = max([1, *(len(shape) for shape in tensors.values())])
        result = np.ones((len(self.keys), axes), np.int64)
        for row, key in enumerate(self.keys):
            shape_of = tensors.get(key, ())
            result[row, : len(shape_of)] = shape_of
        return result

    def _counting_axes(self, found: Sequence[Mapping[Key, Shape]], whole: Mapping[Key, Shape]) -> Integers:
        """[buffer]: how many axes of `_shape` count boxes, 0 for a buffer of one box."""
        axes = dict.fromkeys(self.keys, 0)
        for shapes in (whole, *found):
            axes |= {key: len(shape.box.pieces) for key, shape in shapes.items() if shape.box is not None}
        return np.array([axes[key] for key in self.keys], np.int64)

    def _block(self, dims: tuple[int, ...], probes: Sequence[Sequence[Mapping[Key, Shape]]]) -> _Block:
        shape = (len(self.keys), len(probes))
        largest, mean = np.zeros(shape), np.zeros(shape)
        extents = np.ones((self._shape.shape[1], *shape), np.int64)
        for row, pieces in enumerate(probes):
            for column, key in enumerate(self.keys):
                boxes = [piece[key] for piece in pieces if key in piece]
                if not boxes:
                    continue
                found_bytes = [box.size_bytes for box in boxes]
                largest[column, row] = max(found_bytes) / self._base[column]
                mean[column, row] = sum(found_bytes) / len(boxes) / self._base[column]
                for axis in range(len(boxes[0].extents)):
                    extents[axis, column, row] = max(box.extents[axis] for box in boxes)
        return _Block(dims, largest, mean, extents)

    def _turns_of(self, number: int, dims: tuple[int, ...]) -> _Turns:
        """Changes along one dimension of a block, the other ones at the first piece of their sizes."""
        combined = list(product(*(self.tried[other] for other in dims)))
        shape = (len(self.keys), len(combined))
        distinct, present = np.ones(shape, np.int64), np.ones(shape, np.int64)
        for row, sizes in enumerate(combined):
            first = {other: (0, size) for other, size in zip(dims, sizes, strict=True)}
            pieces, scale = self._probes.pieces(number, first[number][1])
            standing_in = len(pieces) - len(set(pieces))
            probed = [self._probes.shapes({**first, number: piece}) for piece in pieces]
            for column, key in enumerate(self.keys):
                boxes = [shapes[key].box for shapes in probed if key in shapes]
                if boxes:
                    changed = 1 + sum(one != other for one, other in pairwise(boxes))
                    if standing_in and key in probed[1] and probed[1][key].box != probed[2][key].box:
                        changed += standing_in
                    distinct[column, row] = _scaled(changed, scale)
                    present[column, row] = _scaled(len(boxes), scale)
        return _Turns(dims, distinct, present)


def _affordable(
    extents: Sequence[int], blocks: Sequence[Sequence[int]], tried: Sequence[Sequence[int]]
) -> list[Sequence[int]]:
    """The sizes, thinned out where looking at the tiles of a block would take more than `MOST_PROBES`."""
    kept = list(tried)
    for block in blocks:
        while prod(_pieces_of(extents[number], kept[number]) for number in block) > MOST_PROBES:
            longest = max(block, key=lambda number: len(kept[number]))
            if len(kept[longest]) <= 2:
                break
            kept[longest] = thinned(kept[longest])
    return kept


def _pieces_of(extent: int, sizes: Sequence[int]) -> int:
    """Tiles that are looked at along a dimension."""
    return sum(min(-(-extent // size), PROBED_FIRST + PROBED_LAST) for size in sizes)


def thinned(sizes: Sequence[int]) -> list[int]:
    """Every other size, the largest and the smallest among them."""
    return [*sizes[:-1:2], sizes[-1]]


def _scaled(count: int, scale: float) -> int:
    """What is counted on some of the pieces, for all of them; one stays one."""
    return count if count <= 1 else round(count * scale)

# SPDX-License-Identifier: Apache-2.0
"""What the tiles of an op take and move, for arrays of candidates, from tiles cut along one dimension each.

A lowering is asked for tiles that are cut along one dimension and whole in all others. A box or a scratch
buffer whose size is a product of what the single dimensions make of it is then known for every combination
of sizes. Dimensions of which that is not true (the channels of a grouped convolution) are cut together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

LARGEST_TABLE = 1_000_000
"""Largest size up to which sizes are looked up in a table with an entry for every integer."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Dimensions that are cut together, and what each buffer makes of each combination of their sizes.

    Arrays are [combination, buffer], `extents` [combination, buffer, axis].
    """

    dims: tuple[int, ...]
    largest: Floats
    """Bytes of the largest box over those of the whole."""
    mean: Floats
    """The same, mean over the boxes."""
    extents: Integers


@dataclass(frozen=True, slots=True)
class _Turns:
    """How a loop over one dimension changes each buffer: arrays [combination of the block, buffer]."""

    dims: tuple[int, ...]
    """Those of the dimension's block."""
    distinct: Integers
    """Different boxes one after another."""
    present: Integers
    """Pieces in which the buffer exists at all."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Arrays [candidate, buffer]: how large the boxes of a buffer are, and how often another one comes."""

    largest_bytes: Integers
    changes: Integers
    """Boxes one after another, in the loop order of the candidate."""
    distinct: Integers
    """Different ones among them."""
    present: Integers
    """Tiles that have one at all."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Per candidate and moved buffer (columns are `keys`): boxes moved, and a box's bytes, lines, commands.

    An input is moved `boxes` times into L1, an output out of it. Of an output that is a cut sum, `reloads` of
    the boxes come back before that, and `additions` tiles add to a sum. Of channels that are cut across
    groups, boxes that happen to repeat are counted as if they changed.
    """

    keys: tuple[Key, ...]
    boxes: Integers
    box_bytes: Floats
    lines: Integers
    commands: Integers
    pieces: Integers
    """Boxes that one load gathers."""
    reloads: Integers
    additions: Integers


class Footprint:
    """Buffers of the tiles of one op as functions of the tile sizes; `tried` are the sizes per dimension."""

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
        self._index = [_lookup(sizes) for sizes in tried]
        whole = self._probes.shapes({})
        found = [shapes for along in probes.values() for pieces in along for shapes in pieces]
        self.keys = tuple(dict.fromkeys(key for shapes in (whole, *found) for key in shapes))
        self.tensors = {
            key: shape.box.tensor
            for shapes in (whole, *found)
            for key, shape in shapes.items()
            if shape.box is not None
        }
        self._whole_bytes = np.array([bytes_of(whole.get(key)) for key in self.keys], np.float64)
        self._base = np.maximum(self._whole_bytes, 1.0)
        self._shape = self._tensor_shapes(found, whole)
        self._counting = self._counting_axes(found, whole)
        self._blocks = [self._block(block, probes[block]) for block in blocks]
        self._turns = [
            self._turns_of(number, next(block for block in blocks if number in block))
            for number in range(len(self._dims))
        ]

    def pieces(self, sizes: Integers) -> Integers:
        """Number of pieces per dimension, [candidate, dimension]."""
        whole = np.array([self._tiler.dims[name] for name in self._dims], np.int64)
        return -(-whole // np.maximum(sizes, 1))

    def signature(self, order: Sequence[str]) -> object:
        """What a loop order (of cut dimensions) loads: per buffer the loops from its innermost outwards."""
        numbers = [self._dims.index(name) for name in order]
        result = []
        for column, (role, _) in enumerate(self.keys):
            if role == "scratch":
                continue
            own = [
                place
                for place, number in enumerate(numbers)
                if self._turns[number].distinct[:, column].max() > 1
            ]
            result.append(frozenset(numbers[: own[-1] + 1]) if own else frozenset())
        return tuple(result)

    def box_bytes(self, sizes: Integers) -> Integers:
        """Bytes of the largest box per candidate and buffer."""
        factors = np.ones((len(sizes), len(self.keys)))
        for block in self._blocks:
            factors *= block.largest[self._rows(block.dims, sizes)]
        return np.rint(self._base * factors).astype(np.int64)

    def boxes(self, sizes: Integers, order: Integers, orders: Sequence[Sequence[str]]) -> Boxes:
        """The boxes of candidates with these sizes and loop orders (`order` are indices into `orders`)."""
        return Boxes(self.box_bytes(sizes), *self._changes(sizes, order, orders))

    def l1_bytes(self, boxes: Boxes, depths: BufferDepths) -> Integers:
        """Bytes of all buffers with all their slots, per candidate."""
        slot_bytes = -(-boxes.largest_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES + depths.gap_bytes
        changes, distinct, present = boxes.changes, boxes.distinct, boxes.present
        total = np.zeros(len(slot_bytes), np.int64)
        for column, (role, name) in enumerate(self.keys):
            if role == "scratch":
                total += slot_bytes[:, column]
                continue
            resident = self.tensors[role, name] in self._tiler.resident
            if not resident:
                total += slot_bytes[:, column] * np.minimum(depths.of(role, name), changes[:, column])
            if role == "out" and self._tiler.reductions:
                total += slot_bytes[:, column] * (present[:, column] > changes[:, column])
                if resident:
                    continue
                reloads = np.maximum(changes[:, column] - distinct[:, column], 0)
                total += slot_bytes[:, column] * np.minimum(depths.of("in", name + SUM), reloads)
        return total

    def loads(self, sizes: Integers, boxes: Boxes) -> Loads:
        """What moves how often, for candidates of these sizes."""
        columns = [column for column, (role, _) in enumerate(self.keys) if role != "scratch"]
        changes, distinct, present = boxes.changes, boxes.distinct, boxes.present
        mean = np.ones((len(sizes), len(self.keys)))
        extents: Integers | None = None
        for block in self._blocks:
            rows = self._rows(block.dims, sizes)
            mean *= block.mean[rows]
            along = block.extents[rows]
            extents = along if extents is None else np.minimum(extents, along)
        if extents is None:
            extents = np.broadcast_to(self._shape, (len(sizes), *self._shape.shape))
        lines = np.ones((len(sizes), len(self.keys)), np.int64)
        commands = np.ones_like(lines)
        before = np.ones_like(lines)
        before_that = np.ones_like(lines)
        pieces = np.ones_like(lines)
        for axis in range(self._shape.shape[1]):
            pieces = np.where(axis < self._counting, pieces * extents[:, :, axis], pieces)
            is_cut = extents[:, :, axis] < self._shape[:, axis]
            lines = np.where(is_cut, before, lines)
            commands = np.where(is_cut, before_that, commands)
            before_that = before
            before = before * extents[:, :, axis]
        is_out = np.array([role == "out" for role, _ in self.keys])
        return Loads(
            tuple(self.keys[column] for column in columns),
            changes[:, columns],
            (self._base * mean)[:, columns],
            lines[:, columns],
            commands[:, columns],
            pieces[:, columns],
            (np.maximum(changes - distinct, 0) * is_out)[:, columns],
            (np.maximum(present - distinct, 0) * is_out)[:, columns],
        )

    def _rows(self, dims: Sequence[int], sizes: Integers) -> Integers:
        """Row of each candidate in the arrays of a block."""
        rows = np.zeros(len(sizes), np.int64)
        for number in dims:
            rows = rows * len(self.tried[number]) + self._index[number](sizes[:, number])
        return rows

    def _changes(
        self, sizes: Integers, order: Integers, orders: Sequence[Sequence[str]]
    ) -> tuple[Integers, Integers, Integers]:
        """[candidate, buffer]: how often another box comes, how many different ones, tiles that have one."""
        shape = (len(sizes), len(self.keys))
        changes = np.ones(shape, np.int64)
        distinct = np.ones(shape, np.int64)
        present = np.ones(shape, np.int64)
        for index in np.flatnonzero(np.bincount(order)):
            members = np.flatnonzero(order == index)
            running = np.ones((len(members), len(self.keys)), np.int64)
            last = np.ones_like(running)
            for name in orders[int(index)]:
                number = self._dims.index(name)
                loop = self._turns[number]
                rows = self._rows(loop.dims, sizes[members])
                own, turns = loop.distinct[rows], loop.present[rows]
                # A loop outside the innermost one that changes the box repeats all its changes.
                last = np.where(own > 1, running * own, last)
                running = running * turns
                distinct[members] *= own
                present[members] *= turns
            changes[members] = last
        return changes, distinct, present

    def _tensor_shapes(self, found: Sequence[Mapping[Key, Shape]], whole: Mapping[Key, Shape]) -> Integers:
        """Extents of the tensor behind each buffer, [buffer, axis], 1 for axes it has not."""
        tensors: dict[Key, tuple[int, ...]] = {}
        for shapes in (whole, *found):
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
        shape = (len(probes), len(self.keys))
        largest, mean = np.zeros(shape), np.zeros(shape)
        extents = np.ones((*shape, self._shape.shape[1]), np.int64)
        for row, pieces in enumerate(probes):
            for column, key in enumerate(self.keys):
                boxes = [piece[key] for piece in pieces if key in piece]
                if not boxes:
                    continue
                found_bytes = [box.size_bytes for box in boxes]
                largest[row, column] = max(found_bytes) / self._base[column]
                mean[row, column] = sum(found_bytes) / len(boxes) / self._base[column]
                for axis in range(len(boxes[0].extents)):
                    extents[row, column, axis] = max(box.extents[axis] for box in boxes)
        return _Block(dims, largest, mean, extents)

    def _turns_of(self, number: int, dims: tuple[int, ...]) -> _Turns:
        """Changes along one dimension of a block, the other ones at the first piece of their sizes."""
        combined = list(product(*(self.tried[other] for other in dims)))
        shape = (len(combined), len(self.keys))
        distinct, present = np.ones(shape, np.int64), np.ones(shape, np.int64)
        for row, sizes in enumerate(combined):
            first = {other: (0, size) for other, size in zip(dims, sizes, strict=True)}
            pieces, scale = self._probes.pieces(number, first[number][1])
            found = [self._probes.shapes({**first, number: piece}) for piece in pieces]
            for column, key in enumerate(self.keys):
                boxes = [shapes[key].box for shapes in found if key in shapes]
                if boxes:
                    changed = 1 + sum(one != other for one, other in pairwise(boxes))
                    distinct[row, column] = _scaled(changed, scale)
                    present[row, column] = _scaled(len(boxes), scale)
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


def _lookup(sizes: Sequence[int]) -> Callable[[Integers], Integers]:
    """Size -> its number in `sizes`: by a table while that is small, which is faster than a search."""
    largest = max(sizes)
    if largest <= LARGEST_TABLE:
        table = np.zeros(largest + 1, np.int64)
        table[np.array(sizes, np.int64)] = np.arange(len(sizes))
        return lambda asked: table[asked]
    order = np.argsort(np.array(sizes, np.int64))
    ascending = np.array(sizes, np.int64)[order]
    return lambda asked: order[np.searchsorted(ascending, asked)]

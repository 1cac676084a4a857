# SPDX-License-Identifier: Apache-2.0
"""What the tiles of an op take and move, for arrays of candidates, from tiles cut along one dimension each.

A lowering is asked for tiles that are cut along one dimension and whole in all others. A box or a scratch
buffer whose size is a product of what the single dimensions make of it is then known for every combination
of sizes. Dimensions of which that is not true (the channels of a grouped convolution) are cut together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from configs.values import Struct
from scheduler.addresses.allocation import ALIGNMENT_BYTES
from scheduler.tiles.partial_sums import SUM
from scheduler.tiles.tile_probes import PROBED_FIRST, PROBED_LAST, Key, Shape, TileProbes, bytes_of
from scheduler.tiles.tiling import BufferDepths, Tiler
from trainlib.ir.steps import Operand

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_PROBES = 60_000
"""Tiles that are looked at to learn what sizes that depend on each other make of the buffers."""


class _Block(Struct, frozen=True):
    """Dimensions that are cut together, and what each buffer makes of each combination of their sizes.

    Arrays are [buffer, combination], `extents` [axis, buffer, combination].
    """

    dims: tuple[int, ...]
    largest: Floats
    """Bytes of the largest box over those of the whole."""
    mean: Floats
    """The same, mean over the boxes."""
    extents: Integers


class _Turns(Struct, frozen=True):
    """How a loop over one dimension changes each buffer: arrays [buffer, combination of the block]."""

    dims: tuple[int, ...]
    """Those of the dimension's block."""
    distinct: Integers
    """Different boxes one after another."""
    present: Integers
    """Pieces in which the buffer exists at all."""


class _Looked:
    """Tiles that were looked at as arrays [buffer, tile], by their place in `tiles`.

    `size_bytes` are -1 and `extents` [axis, buffer, tile] 0 where a tile has no such buffer; equal boxes have
    equal numbers in `boxes`.
    """

    def __init__(self, tiles: Iterable[Mapping[Key, Shape]]) -> None:
        self.tiles = list({id(tile): tile for tile in tiles}.values())
        self.keys = tuple(dict.fromkeys(key for tile in self.tiles for key in tile))
        self._place = {id(tile): number for number, tile in enumerate(self.tiles)}
        axes = max([1, *(len(shape.extents) for tile in self.tiles for shape in tile.values())])
        numbers: dict[Operand | None, int] = {}
        rows: list[list[int]] = []
        for key in self.keys:
            for tile in self.tiles:
                shape = tile.get(key)
                if shape is None:
                    rows.append([-1, -1, *[0] * axes])
                else:
                    box = numbers.setdefault(shape.box, len(numbers))
                    rows.append([shape.size_bytes, box, *shape.extents, *[1] * (axes - len(shape.extents))])
        table = np.array(rows, np.int64).reshape(len(self.keys), len(self.tiles), 2 + axes)
        self.size_bytes, self.boxes = table[:, :, 0], table[:, :, 1]
        self.extents = np.moveaxis(table[:, :, 2:], 2, 0)

    def places(self, tiles: Iterable[Mapping[Key, Shape]]) -> Integers:
        """Where some of them are."""
        return np.array([self._place[id(tile)] for tile in tiles], np.int64)


class BoxShape(Struct, frozen=True):
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
        probed = (shapes for along in probes.values() for pieces in along for shapes in pieces)
        self._looked = _Looked([whole, *probed])
        self.keys = self._looked.keys
        self.moved = tuple(column for column, (role, _) in enumerate(self.keys) if role != "scratch")
        """The buffers of operands, by number."""
        self.tensors = {
            key: shape.box.tensor
            for shapes in self._looked.tiles
            for key, shape in shapes.items()
            if shape.box is not None
        }
        self._base = np.maximum(np.array([bytes_of(whole.get(key)) for key in self.keys], np.float64), 1.0)
        self._shape = self._tensor_shapes()
        self._counting = self._counting_axes()
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

    @cached_property
    def _varying(self) -> list[list[bool]]:
        """[buffer][dimension]: whether a loop over the dimension changes the buffer's box."""
        most = [loop.distinct.max(axis=1).tolist() for loop in self._turns]
        return [[turns > 1 for turns in along] for along in zip(*most, strict=True)]

    def signature(self, order: Sequence[str]) -> object:
        """What a loop order (of cut dimensions) loads: per buffer the loops from its innermost outwards."""
        numbers = [self._dims.index(name) for name in order]
        result = []
        for column in self.moved:
            varying = [place for place, number in enumerate(numbers) if self._varying[column][number]]
            result.append(frozenset(numbers[: varying[-1] + 1]) if varying else frozenset())
        return tuple(result)

    def changes(self, rows: Integers, orders: Sequence[Sequence[str]]) -> Iterator[Integers]:
        """[buffer, row] for one loop order after another: how often another box comes, for some rows."""
        along: dict[str, tuple[Integers, Integers]] = {}
        for name, loop in zip(self._dims, self._turns, strict=True):
            combinations = self._combinations(loop.dims)[rows]
            along[name] = loop.distinct[:, combinations], loop.present[:, combinations]
        moving = {name: changing > 1 for name, (changing, _) in along.items()}
        cut = [name for name, (_, turns) in along.items() if moving[name].any() or (turns > 1).any()]
        one = np.ones((len(self.keys), len(rows)), np.int64)
        # Loop orders that begin alike share what their outer loops make of it.
        running: dict[frozenset[str], Integers] = {frozenset(): one}
        last: dict[tuple[str, ...], Integers] = {(): one}
        for order in orders:
            outer: tuple[str, ...] = ()
            for name in order:
                if name not in cut:
                    continue
                inner = (*outer, name)
                if inner not in last:
                    changing, turns = along[name]
                    turned = running[frozenset(outer)]
                    # A loop outside the innermost one that changes the box repeats all its changes.
                    last[inner] = np.where(moving[name], turned * changing, last[outer])
                    if len(inner) < len(cut) and frozenset(inner) not in running:
                        running[frozenset(inner)] = turned * turns
                outer = inner
            yield last[outer]

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

    def _tensor_shapes(self) -> Integers:
        """Extents of the tensor behind each buffer, [buffer, axis], 1 for axes it has not."""
        tensors: dict[Key, tuple[int, ...]] = {}
        for shapes in self._looked.tiles:
            for key, shape in shapes.items():
                tensors.setdefault(key, shape.whole)
        axes = max([1, *(len(shape) for shape in tensors.values())])
        result = np.ones((len(self.keys), axes), np.int64)
        for row, key in enumerate(self.keys):
            shape_of = tensors.get(key, ())
            result[row, : len(shape_of)] = shape_of
        return result

    def _counting_axes(self) -> Integers:
        """[buffer]: how many axes of `_shape` count boxes, 0 for a buffer of one box."""
        axes = dict.fromkeys(self.keys, 0)
        for shapes in self._looked.tiles:
            axes |= {key: len(shape.box.pieces) for key, shape in shapes.items() if shape.box is not None}
        return np.array([axes[key] for key in self.keys], np.int64)

    def _block(self, dims: tuple[int, ...], probes: Sequence[Sequence[Mapping[Key, Shape]]]) -> _Block:
        looked, first = self._looked, _starts([len(pieces) for pieces in probes])
        places = looked.places(shapes for pieces in probes for shapes in pieces)
        size_bytes = looked.size_bytes[:, places]
        present = np.add.reduceat(size_bytes >= 0, first, axis=1, dtype=np.int64)
        largest = np.maximum(np.maximum.reduceat(size_bytes, first, axis=1), 0)
        total = np.add.reduceat(np.maximum(size_bytes, 0), first, axis=1)
        extents = np.maximum.reduceat(looked.extents[:, :, places], first, axis=2)
        extents[:, present == 0] = 1
        base = self._base[:, None]
        return _Block(dims, largest / base, total / np.maximum(present, 1) / base, extents)

    def _turns_of(self, number: int, dims: tuple[int, ...]) -> _Turns:
        """Changes along one dimension of a block, the other ones at the first piece of their sizes."""
        looked, probes = self._looked, self._probes
        tiles: list[Mapping[Key, Shape]] = []
        counts, scales = list[int](), list[float]()
        for sizes in product(*(self.tried[other] for other in dims)):
            first = {other: (0, size) for other, size in zip(dims, sizes, strict=True)}
            pieces, scale = probes.pieces(number, first[number][1])
            shapes = {piece: probes.shapes({**first, number: piece}) for piece in dict.fromkeys(pieces)}
            tiles += [shapes[piece] for piece in pieces]
            counts.append(len(pieces))
            scales.append(scale)
        boxes, starts = looked.boxes[:, looked.places(tiles)], _starts(counts)
        present = np.add.reduceat(boxes >= 0, starts, axis=1, dtype=np.int64)
        pair = probes.even_pair(number)
        if pair is not None:
            differ = [
                (one := pair[0].get(key)) is not None and one.box != pair[1][key].box for key in self.keys
            ]
            changed = np.where(np.array(differ, np.bool_)[:, None], present, np.minimum(present, 1))
        else:
            changed = _changes(boxes, starts)
        distinct = np.where(present > 0, _scaled(changed, np.array(scales)), 1)
        return _Turns(dims, distinct, np.where(present > 0, _scaled(present, np.array(scales)), 1))


def _starts(counts: Sequence[int]) -> Integers:
    """Where each of some runs begins that lie one behind the other."""
    return np.cumsum(counts) - np.array(counts, np.int64)


def _changes(boxes: Integers, starts: Integers) -> Integers:
    """[buffer, run]: different boxes one after another, those apart that a tile has not; at least one."""
    inner = np.ones(boxes.shape[1], np.bool_)
    inner[starts] = False
    before = boxes.copy()
    before[:, 1:] = boxes[:, :-1]
    if (boxes < 0).any():
        # The last box there was: numbers of places, those without a box giving way to the ones before them.
        place = np.where((boxes >= 0) | ~inner, np.arange(boxes.shape[1]), 0)
        place = np.maximum.accumulate(place, axis=1)
        before[:, 1:] = np.take_along_axis(boxes, place, axis=1)[:, :-1]
    changing = inner & (boxes >= 0) & (before >= 0) & (boxes != before)
    return np.asarray(1 + np.add.reduceat(changing, starts, axis=1, dtype=np.int64))


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


def _scaled(counts: Integers, scales: Floats) -> Integers:
    """What is counted on some of the pieces, for all of them; one stays one."""
    return np.where(counts <= 1, counts, np.rint(counts * scales).astype(np.int64))

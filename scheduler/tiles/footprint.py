# SPDX-License-Identifier: Apache-2.0
"""What the tiles of an op take and move, for arrays of candidates, from tiles cut along one dimension each.

A lowering is asked for tiles that are cut along one dimension and whole in all others. A box or a scratch
buffer whose size is a product of what the single dimensions make of it is then known for every combination
of sizes. Dimensions of which that is not true (the channels of a grouped convolution) are cut together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from configs.values import Struct
from scheduler.addresses.allocation import ALIGNMENT_BYTES
from scheduler.tiles.l2_slots import Key
from scheduler.tiles.partial_sums import SUM
from scheduler.tiles.tiling import BufferDepths, Tiler, interval
from trainlib.ir.steps import Extent, Operand, TileTask

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

PROBED_FIRST, PROBED_LAST = 8, 3
"""Of more pieces than both together only the first and the last ones are looked at.

What a halo adds repeats with the stride, so that the first 8 show every case of strides up to 8.
"""

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
    """Tiles of an op that were looked at, each by a number."""

    def __init__(self, tiler: Tiler) -> None:
        self._tiler = tiler
        self._whole = [(0, extent) for extent in tiler.dims.values()]
        self._numbers: dict[tuple[Extent, ...], int] = {}
        self._boxes: dict[Operand | None, int] = {None: 0}
        self._tiles: list[dict[Key, tuple[int, ...]]] = []
        """What each has of a buffer: bytes, number of the box (equal ones have equal numbers), extents."""
        self.around: dict[Key, tuple[int, ...]] = {}
        """Extents of the tensor around a box."""
        self.counting: dict[Key, int] = {}
        """How many of the extents count boxes, 0 for a buffer of one box."""
        self.tensors: dict[Key, str] = {}
        self.number = cache(self._number)
        self.whole = self.number((), ())

    def _number(self, dims: tuple[int, ...], pieces: tuple[Extent, ...]) -> int:
        """The tile that is cut to these pieces along dimensions by number, and whole along all others."""
        cut = dict(zip(dims, pieces, strict=True))
        ranges = tuple([cut.get(number, whole) for number, whole in enumerate(self._whole)])
        known = self._numbers.get(ranges)
        if known is None:
            known = self._numbers[ranges] = len(self._tiles)
            task = self._tiler.task(dict(zip(self._tiler.dims, ranges, strict=True)))
            self._tiles.append(self._of_task(task))
        return known

    def _of_task(self, task: TileTask) -> dict[Key, tuple[int, ...]]:
        tile: dict[Key, tuple[int, ...]] = {}
        for role, operands in (("in", task.inputs), ("out", task.outputs)):
            for operand in operands:
                extents, around = _extents_of(operand, self._tiler.tensors[operand.tensor].shape)
                key = role, operand.name
                self.around.setdefault(key, around)
                self.counting[key], self.tensors[key] = len(operand.pieces), operand.tensor
                number = self._boxes.setdefault(operand, len(self._boxes))
                tile[key] = (self._tiler.operand_bytes(operand), number, *extents)
        for scratch in task.scratch:
            self.around.setdefault(("scratch", scratch.name), ())
            tile["scratch", scratch.name] = (prod(scratch.shape) * scratch.dtype.bytes, 0)
        return tile

    def table(self) -> tuple[Integers, Integers, Integers]:
        """Bytes and numbers of the boxes [buffer, tile], extents [axis, buffer, tile].

        Bytes and numbers are -1 and extents 0 where a tile has no such buffer.
        """
        width = 2 + max([1, *map(len, self.around.values())])
        none = (-1, -1, *[0] * (width - 2))
        rows = [tile.get(key, none) for key in self.around for tile in self._tiles]
        cells = [row + (1,) * (width - len(row)) for row in rows]
        table = np.array(cells, np.int64).reshape(len(self.around), len(self._tiles), width)
        return table[:, :, 0], table[:, :, 1], np.moveaxis(table[:, :, 2:], 2, 0)


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
        meeting = tiler.lowering.meeting(tiler.op, tiler.tensors)
        alone = frozenset(self._dims).difference(*meeting)
        self._even = alone.intersection(tiler.lowering.even(tiler.op, tiler.tensors))
        blocks = _blocks(self._dims, meeting)
        self.tried = tried = _affordable(tuple(tiler.dims.values()), blocks, tried)
        """Sizes per dimension; fewer than asked for where dimensions depend on each other."""
        looked = _Looked(tiler)
        probes = [(block, self._probes(looked, block)) for block in blocks]
        loops = [(number, self._loop(looked, block, number)) for block in blocks for number in block]
        size_bytes, boxes, extents = looked.table()
        self.keys = tuple(looked.around)
        self.moved = tuple(column for column, (role, _) in enumerate(self.keys) if role != "scratch")
        """The buffers of operands, by number."""
        self.tensors = looked.tensors
        self._counting = [looked.counting.get(key, 0) for key in self.keys]
        around = ([*shape, *[1] * (len(extents) - len(shape))] for shape in looked.around.values())
        self._shape = np.array(list(around), np.int64)
        """Extents of the tensor behind each buffer, [buffer, axis], 1 for axes it has not."""
        self._base = np.maximum(size_bytes[:, looked.whole], 1).astype(np.float64)
        self._blocks = [self._block(block, tiles, size_bytes, extents) for block, tiles in probes]
        turns = {number: _turns(boxes, *loop) for number, loop in loops}
        self._turns = [turns[number] for number in range(len(self._dims))]

    def _pieces(self, number: int, size: int) -> tuple[list[Extent], float]:
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

    def _probes(self, looked: _Looked, block: tuple[int, ...]) -> list[list[int]]:
        """By sizes of a block the tiles cut along its dimensions: of many the first and the last ones."""
        along = [[self._pieces(number, size)[0] for size in self.tried[number]] for number in block]
        return [[looked.number(block, pieces) for pieces in product(*some)] for some in product(*along)]

    def _loop(
        self, looked: _Looked, block: tuple[int, ...], number: int
    ) -> tuple[tuple[int, ...], list[list[int]], list[float], tuple[int, int] | None]:
        """Tiles along one dimension, the other ones of its block at the first piece of their sizes.

        And for how many each stands; two pieces along a dimension that is cut evenly: others differ as these.
        """
        runs, scales, place = [], [], block.index(number)
        for sizes in product(*(self.tried[other] for other in block)):
            first = tuple([(0, size) for size in sizes])
            pieces, scale = self._pieces(number, sizes[place])
            before, behind = first[:place], first[place + 1 :]
            runs.append([looked.number(block, (*before, piece, *behind)) for piece in pieces])
            scales.append(scale)
        name, pair = self._dims[number], None
        if name in self._even and self._tiler.dims[name] > 1:
            pair = looked.number((number,), ((0, 1),)), looked.number((number,), ((1, 2),))
        return block, runs, scales, pair

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

    def _block(
        self, dims: tuple[int, ...], probes: list[list[int]], size_bytes: Integers, extents: Integers
    ) -> _Block:
        places, first = np.concatenate(probes), _starts(probes)
        size_bytes, base = size_bytes[:, places], self._base[:, None]
        present = np.add.reduceat(size_bytes >= 0, first, axis=1, dtype=np.int64)
        largest = np.maximum(np.maximum.reduceat(size_bytes, first, axis=1), 0)
        total = np.add.reduceat(np.maximum(size_bytes, 0), first, axis=1)
        extents = np.maximum.reduceat(extents[:, :, places], first, axis=2)
        extents[:, present == 0] = 1
        return _Block(dims, largest / base, total / np.maximum(present, 1) / base, extents)


def _turns(
    boxes: Integers,
    dims: tuple[int, ...],
    runs: list[list[int]],
    scales: list[float],
    pair: tuple[int, int] | None,
) -> _Turns:
    """Changes along one dimension of a block."""
    along, starts = boxes[:, np.concatenate(runs)], _starts(runs)
    present = np.add.reduceat(along >= 0, starts, axis=1, dtype=np.int64)
    if pair is not None:
        one, other = boxes[:, pair[0]], boxes[:, pair[1]]
        changed = np.where(((one >= 0) & (one != other))[:, None], present, np.minimum(present, 1))
    else:
        changed = _changes(along, starts)
    distinct = np.where(present > 0, _scaled(changed, np.array(scales)), 1)
    return _Turns(dims, distinct, np.where(present > 0, _scaled(present, np.array(scales)), 1))


def _blocks(dims: Sequence[str], meeting: Sequence[Sequence[str]]) -> list[tuple[int, ...]]:
    """The dimensions by number, those together that decide together on a box."""
    block_of = list(range(len(dims)))
    for met in meeting:
        joined = {block_of[dims.index(name)] for name in met if name in dims}
        block_of = [min(joined) if block in joined else block for block in block_of]
    return [
        tuple(number for number, other in enumerate(block_of) if other == block)
        for block in sorted(set(block_of))
    ]


def _starts(runs: Sequence[Sequence[int]]) -> Integers:
    """Where each of some runs begins that lie one behind the other."""
    counts = np.array([len(run) for run in runs], np.int64)
    return np.cumsum(counts) - counts


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

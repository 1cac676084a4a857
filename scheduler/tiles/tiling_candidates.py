# SPDX-License-Identifier: Apache-2.0
"""Every way of cutting an op that fits L1: sizes of all dimensions and loop orders, enumerated as arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import permutations
from math import factorial, isqrt, prod
from operator import add

import numpy as np
from msgspec.structs import astuple

from configs.values import Struct, replace
from scheduler.tiles.footprint import Footprint, Integers, thinned
from scheduler.tiles.tiling import BufferDepths, Tiler, Tiling

MOST_CANDIDATES = 400_000
"""Pairs of sizes and loop order one enumeration looks at: no op of the model zoo has a fifth of it.

Of more, sizes are left out (`thinned`). A number and not a time, so that results are the same everywhere.
"""

MOST_SIZES = 1000
"""Sizes of one dimension that are tried; extents up to 250,000 have fewer nearly equal parts."""


def balanced_sizes(extent: int) -> list[int]:
    """Tile sizes that cut `extent` into 1, 2, 3 ... nearly equal parts, largest first."""
    root = isqrt(extent)
    few_parts = {-(-extent // parts) for parts in range(1, root + 1)}
    # Every size up to the root is that of some number of parts, as are those the few parts give.
    return sorted(few_parts | set(range(1, -(-extent // (root + 1)) + 1)), reverse=True)


class Counts(Struct, frozen=True):
    """How many pairs of sizes and loop order there are, and how many each rule removed.

    `total` counts every integer size of every dimension in every loop order. total = pruned_by_size +
    pruned_by_loop_order + pruned_by_l1 + estimated.
    """

    total: int
    pruned_by_size: int
    """Sizes that are not balanced."""
    pruned_by_loop_order: int
    """Loop orders whose tiles come in the same order, or that load and store the same."""
    pruned_by_l1: int
    """Buffers larger than L1."""
    estimated: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(add, astuple(self), astuple(other)))

    def __str__(self) -> str:
        return (
            f"{self.total} candidates: {self.pruned_by_size} removed because of their sizes, "
            f"{self.pruned_by_loop_order} because another loop order does the same, "
            f"{self.pruned_by_l1} by L1, {self.estimated} left"
        )


NO_COUNTS = Counts(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class TilingCandidates:
    """Candidates of one op that fit L1, fewest tiles first, as arrays [candidate].

    `tiling` builds one of them. `changes`, `of_sum` and `footprint` say what moves how often, without
    building any. Of channels that are cut across groups, boxes that happen to repeat are counted as if they
    changed.
    """

    tiler: Tiler
    dims: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]
    rows: Integers
    """Index into `footprint.sizes`."""
    order: Integers
    """Index into `orders`."""
    changes: Integers
    """How often another box comes, [buffer, candidate]: so often an input is moved, and an output."""
    l1_bytes: Integers
    counts: Counts
    footprint: Footprint
    fewest_tiles_single: int
    """Tiles of the largest tiles that would fit with one buffer per operand; 0 if none would."""
    note: str = ""
    """That sizes were left out because there are too many, and how many of how many."""

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def sizes(self) -> Integers:
        """Size per dimension, [candidate, dimension]."""
        return self.footprint.sizes[self.rows]

    @cached_property
    def tiles(self) -> Integers:
        """Number of tiles per candidate."""
        return self.footprint.tiles[self.rows]

    def of_sum(self, column: int) -> tuple[Integers, Integers]:
        """Of a buffer, if it is a result: boxes of a cut sum that come back, and tiles that add to one."""
        if self.footprint.keys[column][0] != "out":
            return np.zeros_like(self.rows), np.zeros_like(self.rows)
        distinct, present = (
            found[column][self.rows] for found in (self.footprint.distinct, self.footprint.present)
        )
        return np.maximum(self.changes[column] - distinct, 0), np.maximum(present - distinct, 0)

    def at(self, rows: Integers) -> TilingCandidates:
        """Some of them."""
        return replace(
            self,
            rows=self.rows[rows],
            order=self.order[rows],
            changes=self.changes[:, rows],
            l1_bytes=self.l1_bytes[rows],
        )

    def sizes_at(self, index: int) -> dict[str, int]:
        """Tile size per dimension of one candidate."""
        return dict(zip(self.dims, self.footprint.sizes[self.rows[index]].tolist(), strict=True))

    def order_at(self, index: int) -> tuple[str, ...]:
        """Loop order of one candidate."""
        return self.orders[self.order[index]]

    def tiling(self, index: int) -> Tiling:
        """One candidate with all its tiles."""
        return self.tiler.build(self.sizes_at(index), self.order_at(index))


def enumerate_tilings(
    tiler: Tiler,
    available_bytes: int,
    *,
    sizes_of: Callable[[int], Sequence[int]] = balanced_sizes,
    every_order: bool = False,
) -> TilingCandidates:
    """All tilings of an op that fit `available_bytes` of L1, of the sizes of each dimension, largest first.

    Of loop orders that load and store every buffer equally often one is tried, unless all are asked for. Of
    more than `MOST_CANDIDATES` pairs sizes are left out, and the `note` says so. There may be no candidate.
    """
    dims = tuple(tiler.dims)
    asked = [sizes_of(extent) for extent in tiler.dims.values()]
    footprint, kept_orders, note = _bounded(tiler, asked, every_order=every_order)
    orders = tuple(permutations(dims))
    order_of_name = {order: index for index, order in enumerate(orders)}
    cut = footprint.sizes < np.array([tiler.dims[name] for name in dims], np.int64)
    masks = cut @ (1 << np.arange(len(dims), dtype=np.int64))
    kept = [
        sorted(order_of_name[order] for order in kept_orders(mask)) if count else []
        for mask, count in enumerate(np.bincount(masks).tolist())
    ]
    orders_of = np.array([len(numbers) for numbers in kept], np.int64)[masks]
    pairs = int(orders_of.sum())
    # No loop order of the other sizes fits, not even with single buffers.
    may_fit = footprint.least_l1_bytes(tiler.depths) <= available_bytes
    may_fit |= footprint.least_l1_bytes(BufferDepths(1)) <= available_bytes
    orders_of[~may_fit] = 0
    alike = [np.flatnonzero(may_fit & (masks == mask)) for mask in range(len(kept))]
    rows, order, changes = _pairs(footprint, orders, orders_of, list(zip(kept, alike, strict=True)))
    l1_bytes = footprint.l1_bytes(rows, changes, tiler.depths)
    fits = l1_bytes <= available_bytes
    alone = footprint.tiles[rows[footprint.l1_bytes(rows, changes, BufferDepths(1)) <= available_bytes]]
    every = prod(tiler.dims.values()) * factorial(len(dims))
    counts = Counts(
        total=every,
        pruned_by_size=every - len(masks) * factorial(len(dims)),
        pruned_by_loop_order=len(masks) * factorial(len(dims)) - pairs,
        pruned_by_l1=pairs - int(fits.sum()),
        estimated=int(fits.sum()),
    )
    return TilingCandidates(
        tiler,
        dims,
        orders,
        rows[fits],
        order[fits],
        changes[:, fits],
        l1_bytes[fits],
        counts,
        footprint,
        int(alone.min()) if len(alone) else 0,
        note,
    )


def _pairs(
    footprint: Footprint,
    orders: Sequence[tuple[str, ...]],
    orders_of: Integers,
    kept: Sequence[tuple[Sequence[int], Integers]],
) -> tuple[Integers, Integers, Integers]:
    """(row of the sizes, number of the order, changes of each buffer) of all sizes with all of their orders.

    `orders_of` counts the orders of each row; `kept` has numbers of orders and the rows that have these.
    """
    rows, first = np.repeat(np.arange(len(orders_of)), orders_of), np.cumsum(orders_of) - orders_of
    order = np.zeros(len(rows), np.int64)
    changes = np.ones((len(footprint.keys), len(rows)), np.int64)
    for numbers, members in kept:
        changing = footprint.changes(members, [orders[number] for number in numbers])
        for place, (number, along) in enumerate(zip(numbers, changing, strict=True)):
            order[first[members] + place] = number
            changes[:, first[members] + place] = along
    return rows, order, changes


_KeptOrders = Callable[[int], list[tuple[str, ...]]]
"""Loop orders that are tried, by the dimensions that are cut (a bit each)."""


def _bounded(
    tiler: Tiler, asked: Sequence[Sequence[int]], *, every_order: bool
) -> tuple[Footprint, _KeptOrders, str]:
    """Sizes thinned out until there are no more than `MOST_CANDIDATES` pairs, and what says so.

    The dimension with the most sizes is thinned first. Which loop orders are tried may depend on the sizes.
    """
    dims = tuple(tiler.dims)
    tried = list(asked)
    while True:
        while any(len(sizes) > MOST_SIZES for sizes in tried) or _grid(tried) > MOST_CANDIDATES:
            _thin_longest(tried)
        footprint = Footprint(tiler, tried)
        tried = list(footprint.tried)

        @cache
        def orders_of(mask: int, footprint: Footprint = footprint) -> list[tuple[str, ...]]:
            loops = [name for number, name in enumerate(dims) if mask >> number & 1]
            return _orders(loops, dims, footprint, every_order=every_order)

        pairs = 0
        for mask in range(1 << len(dims)):
            counts = [
                sum((size < extent) == bool(mask >> number & 1) for size in tried[number])
                for number, extent in enumerate(tiler.dims.values())
            ]
            members = prod(counts)
            pairs += members * len(orders_of(mask)) if members else 0
        if pairs <= MOST_CANDIDATES or max(map(len, tried)) <= 2:
            break
        _thin_longest(tried)
    note = ""
    if _grid(tried) < _grid(asked):
        note = f"too many tile sizes to try all: {_grid(tried):,} of {_grid(asked):,} combinations were tried"
    return footprint, orders_of, note


def _thin_longest(tried: list[Sequence[int]]) -> None:
    longest = max(range(len(tried)), key=lambda number: len(tried[number]))
    tried[longest] = thinned(tried[longest])


def _grid(tried: Sequence[Sequence[int]]) -> int:
    return prod(len(sizes) for sizes in tried)


def _orders(
    loops: Sequence[str], dims: Sequence[str], footprint: Footprint, *, every_order: bool
) -> list[tuple[str, ...]]:
    """Loop orders of the dimensions that are cut, the uncut ones behind them in their default order.

    One of those that load and store every buffer equally often is taken: the first in the default order.
    """
    rest = tuple(name for name in dims if name not in loops)
    found: dict[object, tuple[str, ...]] = {}
    for order in permutations(loops):
        signature = order if every_order else footprint.signature(order)
        found.setdefault(signature, (*order, *rest))
    return list(found.values())

# SPDX-License-Identifier: Apache-2.0
"""Every way of cutting an op that fits L1: sizes of all dimensions and loop orders, enumerated as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations
from math import factorial, isqrt, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.errors import InputError
from scheduler.tiles.footprint import Boxes, Footprint, Loads, thinned
from scheduler.tiles.tiling import BufferDepths, Tiler, Tiling

Integers = NDArray[np.int64]

SIZE_RULES = ("balanced", "divisors", "all")
"""Which tile sizes of a dimension are tried: nearly equal pieces, exactly equal ones, every integer."""

ORDER_RULES = ("stationary", "all")
"""Which loop orders are tried: those that load differently, or all that differ in the order of tiles."""

MOST_CANDIDATES = 400_000
"""Pairs of sizes and loop order one enumeration looks at: no op of the model zoo has a fifth of it.

Of more, sizes are left out (`thinned`). A number and not a time, so that results are the same everywhere.
"""

LOOKED_AT_TOGETHER = 1 << 14
"""Candidates whose boxes are worked out at a time: all boxes of all candidates take hundreds of MiB."""

MOST_SIZES = 1000
"""Sizes of one dimension that are tried; extents up to 250,000 have fewer nearly equal parts."""


def balanced_sizes(extent: int) -> list[int]:
    """Tile sizes that cut `extent` into 1, 2, 3 ... nearly equal parts, largest first."""
    root = isqrt(extent)
    few_parts = {-(-extent // parts) for parts in range(1, root + 1)}
    # Every size up to the root is that of some number of parts, as are those the few parts give.
    return sorted(few_parts | set(range(1, -(-extent // (root + 1)) + 1)), reverse=True)


def sizes_of(extent: int, rule: str) -> list[int]:
    """Tile sizes of a dimension by one of `SIZE_RULES`, largest first."""
    if rule == "balanced":
        return balanced_sizes(extent)
    if rule == "all":
        step = -(-extent // MOST_SIZES)  # more would be thinned out again
        return sorted({*range(extent, 0, -step), 1}, reverse=True)
    small = [size for size in range(1, isqrt(extent) + 1) if extent % size == 0]
    return sorted({*small, *(extent // size for size in small)}, reverse=True)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many pairs of sizes and loop order there are, and how many each rule removed.

    `total` counts every integer size of every dimension in every loop order. total = by_size_rule +
    by_equal_loops + by_l1 + kept.
    """

    total: int
    by_size_rule: int
    """Sizes that are not balanced (or no divisors)."""
    by_equal_loops: int
    """Loop orders whose tiles come in the same order, or that load and store the same."""
    by_l1: int
    """Buffers larger than L1."""
    kept: int

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.total + other.total,
            self.by_size_rule + other.by_size_rule,
            self.by_equal_loops + other.by_equal_loops,
            self.by_l1 + other.by_l1,
            self.kept + other.kept,
        )

    def __str__(self) -> str:
        return (
            f"{self.total} candidates: {self.by_size_rule} removed by their sizes, {self.by_equal_loops} "
            f"because another loop order does the same, {self.by_l1} by L1, {self.kept} kept"
        )


NO_COUNTS = Counts(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class TilingCandidates:
    """Candidates of one op that fit L1, fewest tiles first, as arrays [candidate] or [candidate, dimension].

    `tiling` builds one of them. `boxes` and `loads` say what moves how often, without building any; of many
    candidates they are large, so ask the `parts`.
    """

    tiler: Tiler
    dims: tuple[str, ...]
    orders: tuple[tuple[str, ...], ...]
    sizes: Integers
    order: Integers
    """Index into `orders`."""
    l1_bytes: Integers
    counts: Counts
    footprint: Footprint
    fewest_tiles_single: int
    """Tiles of the largest tiles that would fit with one buffer per operand; 0 if none would."""
    note: str = ""
    """That sizes were left out because there are too many, and how many of how many."""

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def tiles(self) -> Integers:
        """Number of tiles per candidate."""
        return np.asarray(np.prod(self.footprint.pieces(self.sizes), axis=1, dtype=np.int64))

    @cached_property
    def boxes(self) -> Boxes:
        """How large the boxes of each buffer and candidate are, and how often another one comes."""
        return self.footprint.boxes(self.sizes, self.order, self.orders)

    @cached_property
    def loads(self) -> Loads:
        """Boxes moved per buffer and candidate."""
        return self.footprint.loads(self.sizes, self.boxes)

    def parts(self) -> Iterator[tuple[slice, TilingCandidates]]:
        """All candidates, some at a time: which ones, and these alone."""
        for rows in _some_at_a_time(len(self)):
            some = replace(self, sizes=self.sizes[rows], order=self.order[rows], l1_bytes=self.l1_bytes[rows])
            yield rows, some

    def sizes_at(self, index: int) -> dict[str, int]:
        """Tile size per dimension of one candidate."""
        return dict(zip(self.dims, (int(size) for size in self.sizes[index]), strict=True))

    def tiling(self, index: int) -> Tiling:
        """One candidate with all its tiles."""
        return self.tiler.build(self.sizes_at(index), self.orders[self.order[index]])


def enumerate_tilings(
    tiler: Tiler,
    available_bytes: int,
    *,
    sizes: str = "balanced",
    loop_orders: str = "stationary",
    reductions: bool = True,
) -> TilingCandidates:
    """All tilings of an op that fit `available_bytes` of L1, by a rule for sizes and one for loop orders.

    With `reductions` False no sum is cut. Of more than `MOST_CANDIDATES` pairs sizes are left out, and the
    `note` says so. Raises `InputError` for an unknown rule. There may be no candidate at all.
    """
    for word, known in ((sizes, SIZE_RULES), (loop_orders, ORDER_RULES)):
        if word not in known:
            raise InputError(f"unknown rule {word!r}", where=tiler.op.name, cure=f"one of {', '.join(known)}")
    dims = tuple(tiler.dims)
    asked = [
        sizes_of(extent, sizes) if reductions or name in tiler.extents else [extent]
        for name, extent in tiler.dims.items()
    ]
    footprint, tried, kept_orders, note = _bounded(tiler, asked, loop_orders)
    all_sizes = np.zeros((1, 0), np.int64)
    if dims:
        all_sizes = np.array(np.meshgrid(*tried, indexing="ij"), dtype=np.int64).reshape(len(dims), -1).T
    orders = tuple(permutations(dims))
    order_of_name = {order: index for index, order in enumerate(orders)}
    rows: list[Integers] = []
    chosen: list[Integers] = []
    cut = all_sizes < np.array([tiler.dims[name] for name in dims], dtype=np.int64)
    masks = cut @ (1 << np.arange(len(dims), dtype=np.int64))
    pairs = 0
    for mask in np.flatnonzero(np.bincount(masks)):
        members = np.flatnonzero(masks == mask)
        kept = [order_of_name[order] for order in kept_orders(int(mask))]
        pairs += len(members) * len(kept)
        rows.append(np.repeat(members, len(kept)))
        chosen.append(np.tile(np.array(kept, np.int64), len(members)))
    pair_rows, pair_order = np.concatenate(rows), np.concatenate(chosen)
    kept_pairs: list[Integers] = []
    kept_bytes: list[Integers] = []
    fewest_alone: list[int] = []
    for some in _some_at_a_time(pairs):
        some_sizes = all_sizes[pair_rows[some]]
        boxes = footprint.boxes(some_sizes, pair_order[some], orders)
        l1_bytes = footprint.l1_bytes(boxes, tiler.depths)
        fits = np.flatnonzero(l1_bytes <= available_bytes)
        kept_pairs.append(fits + some.start)
        kept_bytes.append(l1_bytes[fits])
        alone = some_sizes[footprint.l1_bytes(boxes, BufferDepths(1)) <= available_bytes]
        if len(alone):
            fewest_alone.append(int(np.prod(footprint.pieces(alone), axis=1).min()))
    fitting = np.concatenate(kept_pairs)
    every = prod(tiler.dims.values()) * factorial(len(dims))
    counts = Counts(
        total=every,
        by_size_rule=every - len(all_sizes) * factorial(len(dims)),
        by_equal_loops=len(all_sizes) * factorial(len(dims)) - pairs,
        by_l1=pairs - len(fitting),
        kept=len(fitting),
    )
    found = TilingCandidates(
        tiler,
        dims,
        orders,
        all_sizes[pair_rows[fitting]],
        pair_order[fitting],
        np.concatenate(kept_bytes),
        counts,
        footprint,
        min(fewest_alone, default=0),
        note,
    )
    return _fewest_first(found)


def _some_at_a_time(candidates: int) -> Iterator[slice]:
    """`LOOKED_AT_TOGETHER` candidates after the other, one empty slice if there are none."""
    for first in range(0, max(candidates, 1), LOOKED_AT_TOGETHER):
        yield slice(first, min(first + LOOKED_AT_TOGETHER, candidates))


_KeptOrders = Callable[[int], list[tuple[str, ...]]]
"""Loop orders that are tried, by the dimensions that are cut (a bit each)."""


def _bounded(
    tiler: Tiler, asked: Sequence[Sequence[int]], rule: str
) -> tuple[Footprint, Sequence[Sequence[int]], _KeptOrders, str]:
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
        known: dict[int, list[tuple[str, ...]]] = {}

        def kept_orders(mask: int, footprint: Footprint = footprint, known: Any = known) -> Any:
            if mask not in known:
                loops = [name for number, name in enumerate(dims) if mask >> number & 1]
                known[mask] = _orders(loops, dims, footprint, rule)
            return known[mask]

        pairs = 0
        for mask in range(1 << len(dims)):
            counts = [
                sum((size < extent) == bool(mask >> number & 1) for size in tried[number])
                for number, extent in enumerate(tiler.dims.values())
            ]
            members = prod(counts)
            pairs += members * len(kept_orders(mask)) if members else 0
        if pairs <= MOST_CANDIDATES or max(map(len, tried)) <= 2:
            break
        _thin_longest(tried)
    note = ""
    if _grid(tried) < _grid(asked):
        note = (
            f"{tiler.op.name}: too many tile sizes to try all: {_grid(tried):,} of {_grid(asked):,} "
            f"combinations were looked at"
        )
    return footprint, tried, kept_orders, note


def _thin_longest(tried: list[Sequence[int]]) -> None:
    longest = max(range(len(tried)), key=lambda number: len(tried[number]))
    tried[longest] = thinned(tried[longest])


def _grid(tried: Sequence[Sequence[int]]) -> int:
    return prod(len(sizes) for sizes in tried)


def _fewest_first(found: TilingCandidates) -> TilingCandidates:
    """Fewest tiles first; of equals the innermost dimension is kept whole, the default order comes first."""
    keys: list[Any] = [found.order]
    keys += [-found.sizes[:, column] for column in range(len(found.dims))]
    keys.append(found.tiles)
    rank = np.lexsort(keys)
    return replace(found, sizes=found.sizes[rank], order=found.order[rank], l1_bytes=found.l1_bytes[rank])


def _orders(
    loops: Sequence[str], dims: Sequence[str], footprint: Footprint, rule: str
) -> list[tuple[str, ...]]:
    """Loop orders of the dimensions that are cut, the uncut ones behind them in their default order.

    By the rule ``stationary`` one of those that load and store every buffer equally often is taken: the first
    in the default order.
    """
    rest = tuple(name for name in dims if name not in loops)
    found: dict[object, tuple[str, ...]] = {}
    for order in permutations(loops):
        signature = order if rule == "all" else footprint.signature(order)
        found.setdefault(signature, (*order, *rest))
    return list(found.values())

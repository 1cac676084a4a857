# SPDX-License-Identifier: Apache-2.0
"""Addresses for requests of one memory level: first fit, best fit, and the best of a few orders."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Literal, get_args

from configs.suggest import check_known
from scheduler.addresses.allocation import (
    Allocation,
    Interval,
    align,
    live_bytes,
    lower_bound_bytes,
    peak_bytes,
)

Strategy = Literal["first-fit", "best-fit", "optimal"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)

ORDERS: Mapping[str, Callable[[Interval, Callable[[Interval], int]], tuple[Any, ...]]] = {
    "size": lambda item, most: (-item.size_bytes, item.first_op, item.name),
    "lifetime": lambda item, most: (item.first_op - item.last_op, -item.size_bytes, item.first_op, item.name),
    "first use": lambda item, most: (item.first_op, -item.size_bytes, item.name),
    "peak, size": lambda item, most: (-most(item), -item.size_bytes, item.name),
    "peak, lifetime": lambda item, most: (
        -most(item),
        item.first_op - item.last_op,
        -item.size_bytes,
        item.name,
    ),
    "last use": lambda item, most: (-item.last_op, -item.size_bytes, item.name),
}
"""Orders in which requests are placed, by the request and what says the most bytes live at once during its
life; every one is total, so a plan is the same in every run."""

FROM_ABOVE = ("peak, lifetime", "last use")
"""Orders of which what lives to the end lies below the bound instead, each below what began before it.

Weight gradients then grow towards activations that end, and leave no holes between these
(mobilenet-v1: 1.4 % before, 0 now)."""

BEAT_BYTES = 8
"""Of the cluster DMA."""


def in_order(requests: Iterable[Interval], order: str, around: Sequence[Allocation] = ()) -> list[Interval]:
    """The requests in one of `ORDERS`; live are those `around` them, too."""
    items = list(requests)
    live = live_bytes([*items, *around])
    begins, sizes = list(live), list(live.values())

    def most(item: Interval) -> int:
        return max(sizes[bisect_left(begins, item.first_op) : bisect_right(begins, item.last_op)], default=0)

    return sorted(items, key=lambda item: ORDERS[order](item, most))


def parse_placement(text: str) -> str:
    """A strategy by name. Raises `InputError` for another one."""
    check_known(text, STRATEGIES, f"unknown placement {text!r}", "--placement")
    return text


def place(
    requests: Iterable[Interval], level: str, strategy: str, around: Sequence[Allocation] = ()
) -> dict[str, Allocation]:
    """Place requests by first-fit or best-fit in each of `ORDERS` and keep the lowest peak.

    What is to stay `around` them has its addresses already. A tie goes to the order that comes first. For the
    optimum see `scheduler.addresses.optimal_placement`.
    """
    items = list(requests)
    bound_bytes = max(lower_bound_bytes([*items, *around]), peak_bytes(around))
    best: dict[str, Allocation] = {}
    padding_bytes = max((align(item.size_bytes) - item.size_bytes for item in items), default=0)
    enough_bytes: float = inf  # with whole words, from where an order is not better than the best one
    for number, order in enumerate(ORDERS):
        if order in FROM_ABOVE and not around:
            above = _from_above(items, level, bound_bytes)
            others = [item for item in items if item.name not in above]
            placed = above | fit(others, level, order, tuple(above.values()), strategy, enough_bytes)
        else:
            placed = fit(items, level, order, around, strategy, enough_bytes)
        if number == 0 or peak_bytes(placed.values()) < peak_bytes(best.values()):
            best = placed
            enough_bytes = peak_bytes(best.values()) + padding_bytes
        if align(peak_bytes(best.values())) <= bound_bytes:
            break
    return best


def _from_above(items: Sequence[Interval], level: str, bound_bytes: int) -> dict[str, Allocation]:
    """What lives to the last op, stacked from the bound downwards in the order of first uses.

    What is no whole number of beats of the DMA (the loss) comes first, or all below it would begin amid one.
    """
    after, address = max((item.last_op for item in items), default=0), bound_bytes
    placed: dict[str, Allocation] = {}
    ordered = in_order((item for item in items if item.last_op == after), "first use")
    for item in sorted(ordered, key=lambda item: item.size_bytes % BEAT_BYTES == 0):
        address -= align(item.size_bytes)
        placed[item.name] = item.at(level, address)
    return placed


def fit(
    requests: Iterable[Interval],
    level: str,
    order: str = "size",
    around: Sequence[Allocation] = (),
    strategy: str = "first-fit",
    enough_bytes: float = inf,
) -> dict[str, Allocation]:
    """Place requests at the lowest address free during their life, or (``best-fit``) in the tightest gap.

    The first that ends at `enough_bytes` or above is the last that is placed; those after it get address 0.
    """
    items = in_order(requests, order, around)
    taken = [(item.address, align(item.end_address), item.first_op, item.last_op) for item in around]
    addresses = fit_addresses(
        [(align(item.size_bytes), item.first_op, item.last_op) for item in items],
        range(len(items)),
        sorted(taken),
        tightest=strategy == "best-fit",
        enough_bytes=enough_bytes,
    )
    return {item.name: item.at(level, address) for item, address in zip(items, addresses, strict=True)}


Span = tuple[int, int, int]
"""Bytes (whole words), first op, last op."""


def fit_addresses(
    spans: Sequence[Span],
    order: Sequence[int],
    around: Iterable[tuple[int, int, int, int]] = (),
    *,
    tightest: bool = False,
    enough_bytes: float = inf,
) -> list[int]:
    """Addresses free during a whole life, for one request after another in this order.

    It is the lowest one, or that of the `tightest` gap; the open end counts as loosest. `around` them lies
    what is sorted by (address, end, first op, last op). The first request that ends at `enough_bytes` or
    above is the last that is placed: those after it have address 0.
    """
    # Plain tuples and no function calls: this is the planner's hot loop.
    addresses = [0] * len(spans)
    taken = [*around]
    for index in order:
        size_bytes, first_op, last_op = spans[index]
        address, gap_bytes, found = 0, 0, -1
        for begin, end, first, last in taken:
            if first <= last_op and first_op <= last:
                if address + size_bytes <= begin:
                    if not tightest:
                        break
                    if found < 0 or begin - address < gap_bytes:
                        gap_bytes, found = begin - address, address
                if end > address:  # noqa: PLR1730  max() is a third of the time
                    address = end
        addresses[index] = address = address if found < 0 else found
        if address + size_bytes >= enough_bytes:
            break
        insort(taken, (address, address + size_bytes, first_op, last_op))
    return addresses

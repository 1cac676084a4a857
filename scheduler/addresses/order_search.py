# SPDX-License-Identifier: Apache-2.0
"""A lower peak by first fit in better orders: what lies too high is moved forward, again and again.

Some order gives first fit the lowest peak there is: that of the addresses in an optimal plan. A search over
orders needs no solver and is fast where a plan that is good enough to reach its lower bound is not rare.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from scheduler.addresses.allocation import Interval, align
from scheduler.addresses.placement import Span, fit_addresses, in_order

STEPS = 1500
"""Orders tried from each start, about a millisecond each for a network of 400 buffers."""

FULLY_SEARCHED = 400
"""Requests up to which so many are tried; of more, fewer, as trying one takes the square of their number."""

STARTS = ("first use", "size", "lifetime")
"""Orders (`scheduler.addresses.placement.ORDERS`) the search begins with, one after the other."""


def search_orders(items: Sequence[Interval], enough_bytes: int, *, steps: int = STEPS) -> dict[str, int]:
    """Addresses of the lowest peak found, by name; ends at once when that is `enough_bytes`.

    From each of `STARTS` one of the requests that end above `enough_bytes` is moved to an earlier place in
    the order, drawn at random, and the move is kept unless it makes the peak, or else the bytes above,
    larger. The same result in every run.
    """
    steps = steps * FULLY_SEARCHED**2 // max(len(items), FULLY_SEARCHED) ** 2
    spans = [(align(item.size_bytes), item.first_op, item.last_op) for item in items]
    best: tuple[int, list[int]] | None = None
    for start in STARTS:
        places = {item.name: index for index, item in enumerate(items)}
        order = [places[item.name] for item in in_order(items, start)]
        peak, addresses = _search(spans, order, enough_bytes, steps)
        if best is None or peak < best[0]:
            best = peak, addresses
        if best[0] <= enough_bytes:
            break
    assert best is not None
    return {item.name: address for item, address in zip(items, best[1], strict=True)}


def _search(spans: Sequence[Span], order: list[int], enough_bytes: int, steps: int) -> tuple[int, list[int]]:
    generator = random.Random(0)
    addresses = fit_addresses(spans, order)
    score = _score(spans, addresses, enough_bytes)
    for _ in range(steps):
        if score[0] <= enough_bytes:
            break
        high = [index for index, address in enumerate(addresses) if address + spans[index][0] > enough_bytes]
        moved = generator.choice(high)
        place = order.index(moved)
        tried = [*order[:place], *order[place + 1 :]]
        tried.insert(generator.randrange(place) if place else 0, moved)
        addresses_tried = fit_addresses(spans, tried, enough_bytes=score[0] + 1)
        found_score = _score(spans, addresses_tried, enough_bytes)
        if found_score <= score:
            order, addresses, score = tried, addresses_tried, found_score
    return score[0], addresses


def _score(spans: Sequence[Span], addresses: Sequence[int], enough_bytes: int) -> tuple[int, int]:
    """(peak, bytes by which requests end above `enough_bytes`, summed over them)."""
    ends = [address + span[0] for address, span in zip(addresses, spans, strict=True)]
    return max(ends, default=0), sum(end - enough_bytes for end in ends if end > enough_bytes)

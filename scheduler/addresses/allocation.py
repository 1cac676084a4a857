# SPDX-License-Identifier: Apache-2.0
"""What a memory plan is made of: bytes wanted, bytes placed, and the proof that live bytes never overlap."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from configs.errors import InputError
from configs.values import Struct

ALIGNMENT_BYTES = 4
"""Every allocation starts on a word: the DMA moves aligned words and an L1 bank is one word wide."""


class Interval(Struct, frozen=True):
    """`size_bytes` wanted from op number `first_op` to `last_op` inclusive; an `Allocation` has an address.

    `tensor` names the tensor that lies there (empty for buffers that hold none), `kind` says what the bytes
    are for (`scheduler.addresses.lifetimes.kind_of`; ``scratch``: an L1 buffer that holds no tensor,
    ``stack``: what stacks take of L1), `staged` marks the L2 copy of a tensor whose home is L3.
    """

    name: str
    size_bytes: int
    first_op: int
    last_op: int
    kind: str = ""
    tensor: str = ""
    staged: bool = False

    def at(self, level: str, address: int) -> Allocation:
        """The allocation of these bytes at an address."""
        life = self.name, self.size_bytes, self.first_op, self.last_op
        return Allocation(*life, self.kind, self.tensor, self.staged, level=level, address=address)


class Allocation(Interval, frozen=True, kw_only=True):
    """Bytes at `address` of `level`."""

    level: str
    address: int

    @property
    def end_address(self) -> int:
        """First byte after the allocation."""
        return self.address + self.size_bytes


class PlanError(InputError):
    """A memory plan, or a program that should follow it, uses bytes it must not use."""


class OverlapError(PlanError):
    """A plan gives two buffers that live at the same time the same bytes."""


def align(size_bytes: int) -> int:
    """The size rounded up to whole words."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def peak_bytes(allocations: Iterable[Allocation]) -> int:
    """Highest address any allocation reaches, 0 without one."""
    return max((item.end_address for item in allocations), default=0)


def live_bytes(requests: Iterable[Interval]) -> dict[int, int]:
    """Bytes live during each op at which something begins, whole words each.

    The largest of them is a lower bound of the peak of any placement.
    """
    items = list(requests)
    begins = sorted({item.first_op for item in items})
    changes = sorted(
        [(item.first_op, 1, align(item.size_bytes)) for item in items]
        + [(item.last_op + 1, 0, -align(item.size_bytes)) for item in items]
    )
    totals: dict[int, int] = {}
    total = at = 0
    for op in begins:
        while at < len(changes) and changes[at][0] <= op:
            total += changes[at][2]
            at += 1
        totals[op] = total
    return totals


def lower_bound_bytes(requests: Iterable[Interval]) -> int:
    """Most bytes live at the same time: no placement needs less."""
    return max(live_bytes(requests).values(), default=0)


def check_no_overlap(allocations: Iterable[Allocation]) -> None:
    """Prove that no two allocations of a level share a byte while both are live.

    A sweep over the ops keeps the live allocations of each level sorted by address; a new one is compared
    with its two neighbours only. Raises `OverlapError` that names both.
    """
    levels: dict[str, list[Allocation]] = {}
    for item in allocations:
        if item.size_bytes > 0:
            levels.setdefault(item.level, []).append(item)
    for items in levels.values():
        _sweep(items)


def _sweep(items: list[Allocation]) -> None:
    # Ends before begins of the same op + 1, so that bytes freed after an op may be taken by the next one.
    events = sorted(
        [(item.first_op, 1, index) for index, item in enumerate(items)]
        + [(item.last_op + 1, 0, index) for index, item in enumerate(items)]
    )
    live: list[tuple[int, int]] = []
    for _, begins, index in events:
        item = items[index]
        key = (item.address, index)
        if not begins:
            place = bisect_left(live, key)
            if place < len(live) and live[place] == key:
                del live[place]
            continue
        if item.last_op < item.first_op:
            raise OverlapError(f"{item.name} ends (op {item.last_op}) before it begins (op {item.first_op})")
        place = bisect_left(live, key)
        for _, other in live[max(place - 1, 0) : place + 1]:
            if items[other].address < item.end_address and item.address < items[other].end_address:
                raise _overlap(item, items[other])
        insort(live, key)


def _overlap(one: Allocation, other: Allocation) -> OverlapError:
    def text(item: Allocation) -> str:
        return (
            f"{item.name} (bytes {item.address} to {item.end_address}, ops {item.first_op} to {item.last_op})"
        )

    return OverlapError(
        f"buffers {text(other)} and {text(one)} overlap in address and lifetime",
        where=f"memory plan, {one.level}",
        cure="use another address or lifetime for one of the two",
    )

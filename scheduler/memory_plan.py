"""Where everything lives: a level, an address and a lifetime for every tensor and buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from configs.errors import Contributor, DoesNotFitError
from trainlib.graph import GIVEN_KINDS, TrainingGraph

ALIGNMENT_BYTES = 4
"""Every allocation starts on a word: the DMA moves aligned words and an L1 bank is one word wide."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """`size_bytes` at `address` of `level`, live from op number `first_op` to `last_op` inclusive."""

    name: str
    level: str
    address: int
    size_bytes: int
    first_op: int
    last_op: int

    @property
    def end_address(self) -> int:
        """First byte after the allocation."""
        return self.address + self.size_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes wanted for a span of ops, before they have an address."""

    name: str
    size_bytes: int
    first_op: int
    last_op: int


def align(size_bytes: int) -> int:
    """The size rounded up to whole words."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def first_fit(requests: Iterable[Request], level: str) -> dict[str, Allocation]:
    """Place requests at the lowest address free during their whole lifetime, largest first (ties by name)."""
    placed: list[Allocation] = []
    for request in sorted(requests, key=lambda item: (-item.size_bytes, item.first_op, item.name)):
        neighbours = sorted(
            (item for item in placed if _live_together(item, request)), key=lambda item: item.address
        )
        address = 0
        for item in neighbours:
            if address + request.size_bytes <= item.address:
                break
            address = max(address, align(item.end_address))
        placed.append(
            Allocation(request.name, level, address, request.size_bytes, request.first_op, request.last_op)
        )
    return {item.name: item for item in placed}


def _live_together(one: Allocation | Request, other: Allocation | Request) -> bool:
    return one.first_op <= other.last_op and other.first_op <= one.last_op


def check_no_overlap(allocations: Iterable[Allocation]) -> None:
    """Prove that no two allocations of a level share a byte while both are live; `ValueError` otherwise."""
    items = list(allocations)
    for index, one in enumerate(items):
        for other in items[index + 1 :]:
            shares_bytes = one.address < other.end_address and other.address < one.end_address
            if one.level == other.level and shares_bytes and _live_together(one, other):
                raise ValueError(f"{one} and {other} overlap")


def tensor_lifetimes(graph: TrainingGraph) -> dict[str, Request]:
    """Lifetime of each stored tensor in op numbers.

    Op numbers run from 0; the number of ops stands for "after the iteration". Given tensors (inputs, labels,
    random numbers, weights, buffers, optimizer states) live from 0 until after it, the graph's results (loss,
    output, weight gradients) from their first use until after it, so that they can be read; the rest from
    first write to last read. An alias has no storage of its own: its uses lengthen the life of its target.
    """
    after = len(graph.ops)
    uses: dict[str, list[int]] = {}
    for number, op in enumerate(graph.ops):
        for name in (*op.inputs, *op.outputs):
            uses.setdefault(graph.storage_of(name), []).append(number)
    kept_after = {graph.storage_of(name) for name in graph.results}
    lifetimes: dict[str, Request] = {}
    for name, tensor in graph.tensors.items():
        if tensor.alias_of is not None:
            continue
        numbers = uses.get(name, [])
        permanent = tensor.kind in GIVEN_KINDS
        if not numbers and not permanent:
            continue
        first = 0 if permanent else min(numbers)
        last = after if permanent or name in kept_after else max(numbers)
        lifetimes[name] = Request(name, tensor.size_bytes, first, last)
    return lifetimes


def plan_home(graph: TrainingGraph, level: str, available_bytes: int) -> Mapping[str, Allocation]:
    """Addresses of all tensors in their home memory (L2 so far), reusing bytes whose lifetimes do not meet.

    Raises `DoesNotFitError` with the largest tensors when the level is too small.
    """
    plan = first_fit(tensor_lifetimes(graph).values(), level)
    required_bytes = max((item.end_address for item in plan.values()), default=0)
    if required_bytes > available_bytes:
        raise DoesNotFitError(
            level,
            required_bytes,
            available_bytes,
            where=f"tensors of {graph.name}",
            contributors=tuple(Contributor(item.name, item.size_bytes) for item in plan.values()),
            cure=f"--{level} {-(-required_bytes // 1024)}KiB or a smaller model",
        )
    check_no_overlap(plan.values())
    return plan

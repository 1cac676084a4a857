# SPDX-License-Identifier: Apache-2.0
"""Instruction-cache stalls: a capacity rule on the loops of a nest, and what the first call costs more.

Both caches are set-associative with pseudo-random replacement that does not prefer an empty way. Of `k` lines
walked cyclically through a set of `w` ways, a line survives the misses of the others between two uses of it
with probability (1 - 1/w)^((k - 1) m), so the share m that misses in a pass follows from the share of the
pass before: m' = 1 - (1 - 1/w)^((k - 1) m), from 1 in the first pass to a fixed point, which is 0 if the
lines fit their ways. `arch.pricing.fetch_oracle` walks the caches line by line.
"""

from __future__ import annotations

import math
from functools import lru_cache

from arch.pricing.code_refills import refill_stall_cycles_of_call, shares_the_cache
from arch.pricing.scoreboard import CodeBlock, CoreNest, LoopNode
from arch.spec.isa import CoreWork, Instruction, Loop, Skeleton
from arch.spec.timing import IcacheTiming

BYTES_PER_INSTRUCTION = 4
"""Size of an uncompressed RISC-V instruction, used where a `CoreWork` does not give its code size."""

_STEADY_PASSES = 200


def icache_stall_cycles(nest: CoreNest, icache: IcacheTiming) -> int:
    """Instruction-cache stalls of one core in a warm kernel, in cycles.

    Where other code runs between two calls they are those of
    `arch.pricing.code_refills`. Otherwise all code of a kernel is where its last call left it, and a loop
    whose lines fit the private cache costs nothing. One that does not, refetches lines in every iteration;
    lines of a nested loop that is itself too large are counted there. A refill from the shared cache costs
    `private_refill_stall_cycles`; the same rule, applied to the shared cache, gives the share that costs
    `shared_refill_stall_cycles` instead. Cold misses are charged where the kernel is called, see
    `arch.pricing.code_caches`.
    """
    size = _mean_bytes(nest.code_bytes, nest.shape.instructions)
    if shares_the_cache(icache):
        lines = math.ceil(nest.shape.instructions * size / icache.line_bytes)
        beyond = refill_stall_cycles(lines, icache) / max(1, icache.private_refill_stall_cycles)
        return round(refill_stall_cycles_of_call(nest, icache, size) * beyond)
    total = 0.0

    def walk(nodes: tuple[CodeBlock | LoopNode, ...], executions: int) -> float:
        """Lines of `nodes` that no nested loop refetches already."""
        nonlocal total
        own = 0.0
        for node in nodes:
            if isinstance(node, CodeBlock):
                own += len(node.steps) * size / icache.line_bytes
                continue
            repeats = executions * nest.trips[node.index]
            if repeats <= 0:
                continue
            lines = walk(node.body, repeats)
            body_lines = math.ceil(_executed(nest, node.body) * size / icache.line_bytes)
            share = private_miss_share(body_lines, icache)
            if share:
                total += repeats * lines * share * refill_stall_cycles(body_lines, icache)
            else:
                own += lines
        return own

    walk(nest.shape.body, 1)
    return round(total)


def code_lines(work: CoreWork | Skeleton, icache: IcacheTiming) -> int:
    """Lines of code one core executes at all in `work`: loops of no trips are never fetched."""

    def count(body: tuple[Instruction | Loop, ...], *, all_of_it: bool) -> int:
        total = 0
        for node in body:
            if isinstance(node, Instruction):
                total += 1
            elif all_of_it or node.trips > 0:
                total += count(node.body, all_of_it=all_of_it)
        return total

    size = _mean_bytes(work.code_bytes, count(work.body, all_of_it=True))
    return math.ceil(count(work.body, all_of_it=False) * size / icache.line_bytes)


def private_miss_share(lines: int, icache: IcacheTiming) -> float:
    """Share of `lines` that a loop over them misses in the private cache once it has settled."""
    sets = icache.private_bytes // (icache.line_bytes * icache.private_ways)
    return _settled(lines, max(1, sets), icache.private_ways)


def shared_miss_share(lines: int, icache: IcacheTiming) -> float:
    """The same share in the shared cache."""
    sets = icache.shared_bytes // (icache.line_bytes * icache.shared_ways)
    return _settled(lines, max(1, sets), icache.shared_ways)


def refill_stall_cycles(lines: int, icache: IcacheTiming) -> float:
    """Mean stall of a private miss while a loop over `lines` has settled, in cycles."""
    share = shared_miss_share(lines, icache)
    return icache.private_refill_stall_cycles * (1 - share) + icache.shared_refill_stall_cycles * share


@lru_cache(maxsize=4096)
def _settled(lines: int, sets: int, ways: int) -> float:
    """Fixed point of the miss share; lines lie in consecutive sets, some of which hold one more."""
    low, more = divmod(lines, sets)
    missing = 0.0
    for in_set, count in ((low, sets - more), (low + 1, more)):
        if in_set > ways and count:
            missing += in_set * count * _fixed_point(in_set, ways)
    return missing / lines if lines else 0.0


def _fixed_point(in_set: int, ways: int) -> float:
    survive = math.log1p(-1 / ways) if ways > 1 else -math.inf
    share = 1.0
    for _ in range(_STEADY_PASSES):
        share = 1.0 - math.exp(survive * (in_set - 1) * share)
    return share


def _mean_bytes(code_bytes: int, instructions: int) -> float:
    """Mean bytes of an instruction of a nest; less than 4 only if all its code is smaller than that.

    `code_bytes` may include versions and leftovers that the nest does not execute, so more than 4 bytes an
    instruction says nothing.
    """
    if code_bytes > 0 and instructions > 0:
        return min(float(BYTES_PER_INSTRUCTION), code_bytes / instructions)
    return float(BYTES_PER_INSTRUCTION)


def _executed(nest: CoreNest, nodes: tuple[CodeBlock | LoopNode, ...]) -> int:
    """Instructions of `nodes` that are executed at all: loops of no trips are never fetched."""
    total = 0
    for node in nodes:
        if isinstance(node, CodeBlock):
            total += len(node.steps)
        elif nest.trips[node.index] > 0:
            total += _executed(nest, node.body)
    return total

"""Instruction-cache stalls of a warm kernel: a capacity rule on the loops of a nest."""

from __future__ import annotations

import math

from arch.scoreboard import Block, LoopNode, Nest
from arch.timing import IcacheTiming

BYTES_PER_INSTRUCTION = 4
"""Size of an uncompressed RISC-V instruction, used where a `CoreWork` does not give its code size."""


def icache_stall_cycles(nest: Nest, icache: IcacheTiming) -> int:
    """Instruction-cache stalls of one core in a warm kernel, in cycles.

    A loop whose code fits the private cache costs nothing. One that does not, refetches lines in every
    iteration; lines of a nested loop that is itself too large are counted there. With random replacement
    and `n` lines walked cyclically through a cache of `c`, a line survives the `n m` misses between two uses
    of it with probability (1 - 1/c)^(n m), so the miss share m solves m = 1 - (1 - 1/c)^(n m). A refill
    from the shared cache costs `private_refill_stall_cycles`; the same rule, applied to the shared cache,
    gives the share that costs `shared_refill_stall_cycles` instead. Cold misses are not charged.
    """
    size = _instruction_bytes(nest)
    total = 0.0

    def walk(nodes: tuple[Block | LoopNode, ...], executions: int) -> float:
        """Lines of `nodes` that no nested loop refetches already."""
        nonlocal total
        own = 0.0
        for node in nodes:
            if isinstance(node, Block):
                own += len(node.steps) * size / icache.line_bytes
                continue
            repeats = executions * nest.trips[node.index]
            if repeats <= 0:
                continue
            lines = walk(node.body, repeats)
            body_bytes = _executed(nest, node.body) * size
            if body_bytes > icache.private_bytes:
                private_share = miss_share(body_bytes, icache.private_bytes, icache.line_bytes)
                shared_share = miss_share(body_bytes, icache.shared_bytes, icache.line_bytes)
                refill = icache.private_refill_stall_cycles * (1 - shared_share)
                refill += icache.shared_refill_stall_cycles * shared_share
                total += repeats * lines * private_share * refill
            else:
                own += lines
        return own

    walk(nest.shape.body, 1)
    return round(total)


def miss_share(code_bytes: float, cache_bytes: int, line_bytes: int) -> float:
    """Share of cyclically walked lines that miss in a randomly replaced cache (0 if they fit)."""
    if code_bytes <= cache_bytes:
        return 0.0
    lines = code_bytes / line_bytes
    survive = math.log1p(-line_bytes / cache_bytes) if cache_bytes > line_bytes else -math.inf
    share = 1.0
    for _ in range(200):
        share = 1.0 - math.exp(survive * lines * share)
    return share


def _instruction_bytes(nest: Nest) -> float:
    """Mean bytes of an instruction of `nest`; less than 4 only if all its code is smaller than that.

    `code_bytes` may include versions and leftovers that this nest does not execute, so more than 4 bytes an
    instruction says nothing.
    """
    if nest.code_bytes > 0 and nest.shape.instructions > 0:
        return min(float(BYTES_PER_INSTRUCTION), nest.code_bytes / nest.shape.instructions)
    return float(BYTES_PER_INSTRUCTION)


def _executed(nest: Nest, nodes: tuple[Block | LoopNode, ...]) -> int:
    """Instructions of `nodes` that are executed at all: loops of no trips are never fetched."""
    total = 0
    for node in nodes:
        if isinstance(node, Block):
            total += len(node.steps)
        elif nest.trips[node.index] > 0:
            total += _executed(nest, node.body)
    return total

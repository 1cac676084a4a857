# SPDX-License-Identifier: Apache-2.0
"""Instruction caches line by line: the yardstick of `code_fetch`, for code of a few thousand lines.

Replacement is that of GVSoC's caches (gvsoc/gvsoc-core 14342ab, cache_impl.cpp) and of the class of register
the hardware has (pulp-platform/hier-icache 7243834, DOC/icache_hier.pdf): an 8-bit shift register with
inverted feedback moves on at every refill and names the way, whether another one is empty or not. What it
holds when a kernel starts depends on everything fetched before, so a figure to compare is a mean over seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

from arch.spec.timing import IcacheTiming

_FEEDBACK_BITS = (7, 3, 2, 1)


class Cache:
    """One set-associative cache of instruction lines."""

    def __init__(self, sets: int, ways: int, seed: int) -> None:
        self._ways = ways
        self._lines: list[list[int]] = [[-1] * ways for _ in range(sets)]
        self._register = seed & 0xFF

    def fetch(self, line: int) -> bool:
        """Whether `line` is there; it is afterwards."""
        ways = self._lines[line % len(self._lines)]
        if line in ways:
            return True
        parity = sum(self._register >> bit for bit in _FEEDBACK_BITS) & 1
        self._register = (self._register << 1 | (1 - parity)) & 0xFF
        ways[(self._register >> 1) % self._ways] = line
        return False


def pass_stall_cycles(
    passes: Sequence[Sequence[int]], icache: IcacheTiming, seed: int = 0, shared_banks: int = 2
) -> list[int]:
    """Stalls of one core in each of `passes` (lines in the order they are executed) from empty caches.

    `shared_banks` caches, interleaved by line, make up the shared one.
    """
    private = Cache(
        icache.private_bytes // (icache.line_bytes * icache.private_ways), icache.private_ways, seed
    )
    sets = icache.shared_bytes // (icache.line_bytes * icache.shared_ways * shared_banks)
    shared = [Cache(sets, icache.shared_ways, seed * (7 + 6 * bank)) for bank in range(shared_banks)]
    stalls = []
    for lines in passes:
        stalled = 0
        for line in lines:
            if not private.fetch(line):
                found = shared[line % shared_banks].fetch(line // shared_banks)
                stalled += icache.private_refill_stall_cycles if found else icache.shared_refill_stall_cycles
        stalls.append(stalled)
    return stalls

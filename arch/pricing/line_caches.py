# SPDX-License-Identifier: Apache-2.0
"""Code on its way from L2 through the instruction caches to a core, line by line, as an expectation.

A line lies in a cache with a probability. It is missing in the private cache, and then in the shared one,
with what is left of these; a line that is fetched puts out another of its set. Ways are replaced
pseudo-randomly, so a fetch takes from each line of the set the same share of its probability: of `ways`
lines, or, where the missing one is only perhaps missing, of the others that then fill the set. So the
probabilities of a full set always sum to its ways.

When a line is missing the core waits until it has come: the line after one that began at a cycle begins
`line_from_l2_cycles` (`line_from_shared_cycles`) later, or when the instructions before it are done; one that
is jumped to `jump_from_l2_cycles` (`jump_from_shared_cycles`) after the jump. What comes from L2 comes behind
the reads that the DMA has asked for before (`arch.blocks.dma_channel.DmaChannel.queued_cycles`).

Sources: rows of `measured/rtl-refill.csv.gz` (`pulptrain validate refill`), which name each parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from arch.spec.timing import IcacheTiming

THERE = 1e-6
"""A probability to be missing up to this is none."""

SMALLEST_FACTOR = 1e-200
"""A set whose factor becomes smaller starts anew."""

Queue = Callable[[float], float]
"""Cycles a line from L2 waits behind other reads if it is asked for at a cycle."""


class LineCache:
    """The probabilities with which lines are in a cache of `sets` sets of `ways` ways.

    A line is there with its share times the factor of its set: a fetch makes the factor smaller, and so all
    lines of the set at once. With `empty_first` a way that is empty is taken before any other.
    """

    def __init__(self, size_bytes: int, line_bytes: int, ways: int, *, empty_first: bool) -> None:
        self._sets = max(1, size_bytes // (line_bytes * ways))
        self._ways = ways
        self._empty_first = empty_first
        self._share: dict[int, float] = {}
        self._factor = [1.0] * self._sets
        self._filled = [0.0] * self._sets
        self._known = [0] * self._sets

    def missing(self, line: int) -> float:
        """With what probability a line is not there."""
        share = self._share.get(line)
        return 1.0 if share is None else max(0.0, 1.0 - share * self._factor[line % self._sets])

    def fetch(self, line: int, missing: float) -> None:
        """A line that was missing with this probability is there now."""
        number = line % self._sets
        if line not in self._share:
            self._known[number] += 1
        ways, taken = self._ways, missing
        if self._empty_first:
            filled = self._filled[number]
            taken = missing - min(missing, ways - filled)
            self._filled[number] = filled + missing - taken
        factor = self._factor[number]
        if taken:
            # Of a set that is full when the line is missing the others have all ways, else each its own.
            factor *= 1.0 - taken / (ways - 1 + missing if self._known[number] > ways else ways)
        if factor < SMALLEST_FACTOR:
            for other in [known for known in self._share if known % self._sets == number]:
                self._share[other] *= factor
            factor = 1.0
        self._factor[number] = factor
        self._share[line] = 1.0 / factor if factor else 0.0


class CodePath:
    """One core's way through code: its private cache, the shared one, and L2 behind them."""

    def __init__(self, icache: IcacheTiming, queue: Queue) -> None:
        self._icache = icache
        self._queue = queue
        self._private = _private(icache)
        self._shared = LineCache(
            icache.shared_bytes, icache.line_bytes, icache.shared_ways, empty_first=False
        )
        self.lines_from_l2 = 0.0
        """Expected lines asked from L2 so far."""

    def walk(self, lines: Iterable[int], cycles: float, now: float, *, near: bool = True) -> float:
        """Execute lines that are jumped to at `now`, each in so many `cycles`: what it waits for them.

        Without `near` what a refill from the shared cache takes is left out: it is in the price of the code.
        """
        begun, before = now, -1.0
        waits = 0.0
        for line in lines:
            if self._private.missing(line) > THERE:
                waits += self._fetched(line, before, begun + waits, near=near)
            before = cycles
            begun += cycles
        return waits

    def leave_private(self) -> None:
        """Nothing is in the private cache any more."""
        self._private = _private(self._icache)

    def _fetched(self, line: int, before: float, begun: float, *, near: bool) -> float:
        """What the core waits for a line, fallen into after `before` cycles, or jumped to if that is < 0."""
        icache, missing = self._icache, self._private.missing(line)
        far = missing * self._shared.missing(line)
        if before < 0:
            asked = begun
            near_cycles = max(0.0, icache.jump_from_shared_cycles - icache.jump_cycles)
            far_cycles = max(0.0, icache.jump_from_l2_cycles - icache.jump_cycles)
        else:
            asked = begun - before
            near_cycles = max(0.0, icache.line_from_shared_cycles - before)
            far_cycles = max(0.0, icache.line_from_l2_cycles - before)
        waits = (missing - far) * near_cycles if near else -far * near_cycles
        if far > THERE:
            waits += far * (far_cycles + self._queue(asked))
            self.lines_from_l2 += far
            self._shared.fetch(line, far)
        self._private.fetch(line, missing)
        return waits


def _private(icache: IcacheTiming) -> LineCache:
    return LineCache(icache.private_bytes, icache.line_bytes, icache.private_ways, empty_first=True)

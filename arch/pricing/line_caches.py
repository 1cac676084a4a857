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
the reads that the DMA has asked for before (`arch.blocks.dma_channel.DmaChannel.reads_ahead`).

Sources: rows of `measured/rtl-refill.csv.gz` (`pulptrain validate refill`), which name each parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from arch.pricing.line_engine import NEVER, THERE
from arch.pricing.window import PLAIN, PROCESS, Engine, EngineChoice
from arch.spec.timing import IcacheTiming
from configs.values import Struct

Reads = tuple[float, float]
"""What a line asked from L2 waits for reads that were asked for before: until a cycle, and at most so many
cycles."""

NO_READS = (0.0, 0.0)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class LineCache:
    """The probabilities with which lines are in a cache of sets of `ways` ways.

    A line is there with its share times the factor of its set: a fetch makes the factor smaller, and so all
    lines of the set at once. With `empty_first` a way that is empty is taken before any other.
    """

    def __init__(self, size_bytes: int, line_bytes: int, ways: int, *, empty_first: bool) -> None:
        sets = max(1, size_bytes // (line_bytes * ways))
        self.shape = sets, ways, int(empty_first)
        self._table: Any = [1.0] * sets + [0.0] * (2 * sets)

    def table(self, lines: int, engine: Engine) -> Any:
        """What `arch.pricing.line_engine.visit_lines` has of it, for so many lines, as `engine` takes it."""
        more = 3 * self.shape[0] + lines - len(self._table)
        if more > 0 or isinstance(self._table, list) != (engine is PLAIN):
            self._table = engine.floats([*self._table, *[NEVER] * more])
        return self._table


class Walks(Struct, frozen=True, eq=False):
    """Stretches of code that are executed one after the other, and what a core waits in each.

    `waits` are those without reads before it. Of the lines that may come from L2, `far` is with what
    probability they do and `ahead` when they are asked for, in cycles from the begin of the walk; those of a
    walk begin at its entry in `first`.
    """

    waits: Sequence[float]
    first: Sequence[int]
    far: Sequence[float]
    ahead: Sequence[float]

    def cycles(self, number: int, now: float, reads: Callable[[], Reads]) -> float:
        """What a core waits in a walk that begins at `now`, `reads` saying what its lines come behind."""
        start, end = self.first[number], self.first[number + 1]
        queued = 0.0
        if start < end:
            until, most = reads()
            for place in range(start, end) if until > now else ():
                left = until - now - self.ahead[place] - queued
                if left > 0:
                    queued += self.far[place] * min(left, most)
        return self.waits[number] + queued


class CodePath:
    """One core's way through code: its private cache, the shared one, and L2 behind them."""

    def __init__(self, icache: IcacheTiming, engine: EngineChoice = PROCESS) -> None:
        self._icache = icache
        self._engine = engine
        self._shared = LineCache(
            icache.shared_bytes, icache.line_bytes, icache.shared_ways, empty_first=False
        )
        self.leave_private()
        self.lines_from_l2 = 0.0
        """Expected lines asked from L2 so far."""

    def leave_private(self) -> None:
        """Nothing is in the private cache any more."""
        icache = self._icache
        self._private = LineCache(
            icache.private_bytes, icache.line_bytes, icache.private_ways, empty_first=True
        )

    def walk(self, lines: Sequence[int], cycles: float, now: float, reads: Reads = NO_READS) -> float:
        """Execute lines that are jumped to at `now`, each in so many `cycles`: what it waits for them."""
        misses = self.visit([(line, 1) for line in lines])
        one = np.array([len(lines)]), np.array([cycles]), np.array([True]), np.array([0])
        return self.walks(misses, *one, 1).cycles(0, now, lambda: reads)

    def visit(self, stretches: ArrayLike) -> Floats:
        """Execute stretches of code, each a first line and a number of lines.

        Of every line the probabilities, in two rows, that it is not in the private cache, and in neither.
        """
        table = np.asarray(stretches, np.int64).reshape(-1, 2)
        visits, lines = int(table[:, 1].sum()), int(table.sum(axis=1).max(initial=0))
        engine = self._engine.take(visits)
        misses = engine.floats([0.0] * (2 * visits))
        engine.visit_lines(
            engine.ints(table.ravel().tolist()),
            engine.ints([*self._private.shape, *self._shared.shape]),
            self._private.table(lines, engine),
            self._shared.table(lines, engine),
            misses,
        )
        found: Floats = np.asarray(misses, np.float64).reshape(-1, 2).T
        self.lines_from_l2 += float(found[1].sum())
        return found

    def walks(
        self,
        misses: Floats,
        counts: Ints,
        cycles: Floats,
        near: NDArray[np.bool_],
        walk_of: Ints,
        walks: int,
    ) -> Walks:
        """What a core waits in stretches of code whose lines had these `misses`, by walk.

        Of every stretch, which is jumped to, the number of its lines, the `cycles` of each, and the walk it
        belongs to, in order. Where it is not `near`, what a refill from the shared cache takes is left out:
        it is in the price of the code.
        """
        icache, of_line = self._icache, np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(of_line)) - (np.cumsum(counts) - counts)[of_line]
        own = cycles[of_line]
        near_cycles, far_cycles = (
            np.maximum(0.0, np.where(place > 0, line - own, jump - icache.jump_cycles))
            for line, jump in (
                (icache.line_from_shared_cycles, icache.jump_from_shared_cycles),
                (icache.line_from_l2_cycles, icache.jump_from_l2_cycles),
            )
        )
        missing, far = misses
        may_be_far = far > THERE
        waits = np.where(near[of_line], missing - far, -far) * near_cycles
        waits += np.where(may_be_far, far * far_cycles, 0.0)
        walk = walk_of[of_line]
        before = np.cumsum(waits) - waits
        borders = np.searchsorted(walk, np.arange(walks + 1))
        ahead = before - np.append(before, 0.0)[borders[walk]] + np.maximum(0, place - 1) * own
        return Walks(
            np.bincount(walk, waits, walks).tolist(),
            np.searchsorted(walk[may_be_far], np.arange(walks + 1)).tolist(),
            far[may_be_far].tolist(),
            ahead[may_be_far].tolist(),
        )

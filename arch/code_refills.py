# SPDX-License-Identifier: Apache-2.0
"""What a core waits for lines of its kernel in its private instruction cache, as an expectation.

The replacement register of the cache is pseudo-random, so a line is there with a probability. A refill puts
any line of its set out with probability 1 / ways: every refill multiplies the probabilities of the other
lines of the set by 1 - (probability that it happened) / ways, and the line it fetched is there afterwards. A
walk of the nest along the lines of its code, loop by loop, gives the expected refills of a call. A loop is
walked until it has settled; the turns left out are multiplied.

Between two calls of a kernel the core fetches other code (`IcacheTiming.between_calls_lines`: fork and join,
transfers, the loop around), which puts lines of the kernel out in the same way.

The core's prefetcher runs ahead of straight code: while a line is executed, the next one is asked for as soon
as all words of the line are fetched (`IcacheTiming.fetch_bytes_per_cycle`). Compressed instructions leave it
more time than its words need, and so much of a refill is hidden. Behind a jump nothing was asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

from arch.scoreboard import CodeBlock, CoreNest, LoopNode
from arch.timing import IcacheTiming

MOST_PASSES = 4
"""Turns of a loop that are walked; the others are like the last, or free if its lines fit the cache."""

SETTLED_SHARE = 0.05
"""A loop has settled when a turn differs from the turn before by no more than this share."""

SETTLED_CYCLES = 0.05
"""Expected stalls of a turn, in cycles, that count as none in a loop whose lines fit the cache."""

KNOWN_ENTRIES = 4_000
"""Walks kept, by nest and trip counts up to `MOST_PASSES`; all are dropped when there are more."""

_Parts = dict[tuple[tuple[int, int], ...], float]
"""Expected cycles: a factor by the loops it is multiplied with, each (loop, turns that were walked)."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """Straight code: (line, instructions executed of it), in order."""

    lines: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Turns:
    """A loop; `steady` if no line of it can put another out, `fits` if in time no refill is left."""

    index: int
    body: tuple[_Lines | _Turns, ...]
    steady: bool
    fits: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Code:
    """A nest along its lines, which are numbered in the order of their first use."""

    nodes: tuple[_Lines | _Turns, ...]
    line_of: tuple[int, ...]
    rivals: tuple[tuple[int, ...], ...]
    """The other lines in the set of a line."""


_known: dict[tuple[object, ...], _Parts] = {}
_codes: dict[tuple[object, ...], _Code] = {}


def refill_stall_cycles_of_call(nest: CoreNest, icache: IcacheTiming, instruction_bytes: float) -> float:
    """Expected stalls of one core in one of many calls of `nest`, in cycles; refills from the shared cache.

    `instruction_bytes` is the mean size of an instruction of `nest` if it has no layout.
    """
    capped = tuple([min(trips, MOST_PASSES) for trips in nest.trips])
    key = (nest.shape, nest.layout, nest.code_bytes, icache, capped)
    parts = _known.get(key)
    if parts is None:
        if len(_known) >= KNOWN_ENTRIES:
            _known.clear()
        code = _codes.get(key[:4])
        if code is None:
            if len(_codes) >= KNOWN_ENTRIES:
                _codes.clear()
            code = _codes[key[:4]] = _Reader(nest, icache, instruction_bytes).code()
        parts = _known[key] = _Walk(code, icache, capped).stalls()
    total = 0.0
    for loops, cycles in parts.items():
        total += cycles * prod([nest.trips[loop] - walked for loop, walked in loops])
    return total


def _sets(icache: IcacheTiming) -> int:
    return max(1, icache.private_bytes // (icache.line_bytes * icache.private_ways))


def surviving_share(icache: IcacheTiming) -> float:
    """Share of the lines of a kernel in a private cache that what runs between two calls leaves there."""
    return float((1 - 1 / icache.private_ways) ** (icache.between_calls_lines / _sets(icache)))


class _Reader:
    """Reads a nest line by line."""

    def __init__(self, nest: CoreNest, icache: IcacheTiming, instruction_bytes: float) -> None:
        self._body = nest.shape.body
        self._sets = _sets(icache)
        self._ways = icache.private_ways
        self._numbers: dict[int, int] = {}
        self._lines = _lines_of(nest, icache.line_bytes, instruction_bytes)
        self._next = 0

    def code(self) -> _Code:
        nodes = self._read(self._body)
        members: dict[int, list[int]] = {}
        for line, number in self._numbers.items():
            members.setdefault(line % self._sets, []).append(number)
        rivals = tuple(
            tuple(other for other in members[line % self._sets] if other != number)
            for line, number in self._numbers.items()
        )
        return _Code(nodes, tuple(self._numbers), rivals)

    def _read(self, nodes: tuple[CodeBlock | LoopNode, ...]) -> tuple[_Lines | _Turns, ...]:
        found: list[_Lines | _Turns] = []
        for node in nodes:
            start = self._next
            if isinstance(node, CodeBlock):
                self._next += len(node.steps)
                found.append(self._straight(self._lines[start : self._next]))
                continue
            body = self._read(node.body)
            crowd: dict[int, int] = {}
            for line in {line for pair in self._lines[start : self._next] for line in pair}:
                crowd[line % self._sets] = crowd.get(line % self._sets, 0) + 1
            most = max(crowd.values(), default=0)
            found.append(_Turns(node.index, body, most <= 1, most <= self._ways))
        return tuple(found)

    def _straight(self, instructions: list[tuple[int, int]]) -> _Lines:
        lines: list[tuple[int, int]] = []
        current, executed = -1, 0
        for pair in instructions:
            for line in pair:
                if line != current:
                    if current >= 0:
                        lines.append((self._number(current), executed))
                    current, executed = line, 0
            executed += 1
        lines.append((self._number(current), executed))
        return _Lines(tuple(lines))

    def _number(self, line: int) -> int:
        return self._numbers.setdefault(line, len(self._numbers))


class _Walk:
    """Executes the lines of a nest, and knows with what probability each of them is in the cache."""

    def __init__(self, code: _Code, icache: IcacheTiming, capped_trips: tuple[int, ...]) -> None:
        self._nodes = code.nodes
        self._line_of = code.line_of
        self._rivals = code.rivals
        self._trips = capped_trips
        self._ways = icache.private_ways
        self._refill_cycles = icache.private_refill_stall_cycles
        fetch = icache.fetch_bytes_per_cycle
        # Without a prefetcher as many cycles as instructions can ever take: it never gets ahead.
        self._fetch_cycles = icache.line_bytes // fetch if fetch else icache.line_bytes
        self._survive = surviving_share(icache)
        self._there = [self._survive] * len(code.line_of)
        self._before = (-1, 0)

    def stalls(self) -> _Parts:
        """Those of the second of two calls; the first brings the lines into the state calls leave them in.

        Two turns of a loop show which lines stay.
        """
        trips, self._trips = self._trips, tuple([min(count, 2) for count in self._trips])
        self._pass(self._nodes)
        self._trips = trips
        self._there = [probability * self._survive for probability in self._there]
        self._before = (-1, 0)
        return self._pass(self._nodes)

    def _pass(self, nodes: tuple[_Lines | _Turns, ...]) -> _Parts:
        """Execute `nodes` once: what they wait for code."""
        cycles = 0.0
        parts: _Parts = {}
        there, rivals, line_of = self._there, self._rivals, self._line_of
        before, executed = self._before
        for node in nodes:
            if isinstance(node, _Lines):
                for number, count in node.lines:
                    if number == before:
                        executed += count
                        continue
                    missing = 1.0 - there[number]
                    if missing > 0.0:
                        ahead = 0
                        if before >= 0 and line_of[before] + 1 == line_of[number]:
                            ahead = max(0, executed - self._fetch_cycles)
                        cycles += missing * max(0, self._refill_cycles - ahead)
                        there[number] = 1.0
                        left = 1.0 - missing / self._ways
                        for rival in rivals[number]:
                            there[rival] *= left
                    before, executed = number, count
                continue
            self._before = before, executed
            for loops, value in self._loop(node).items():
                parts[loops] = parts.get(loops, 0.0) + value
            before, executed = self._before
        self._before = before, executed
        parts[()] = parts.get((), 0.0) + cycles
        return parts

    def _loop(self, loop: _Turns) -> _Parts:
        trips = self._trips[loop.index]
        parts: _Parts = {}
        earlier = -1.0
        for walked in range(1, trips + 1):
            turn = self._pass(loop.body)
            self._before = self._before[0], 0  # the way back is a jump
            for loops, value in turn.items():
                parts[loops] = parts.get(loops, 0.0) + value
            cycles = turn[()]
            if len(turn) == 1 and (loop.steady or (loop.fits and cycles <= SETTLED_CYCLES)):
                break
            if walked == MOST_PASSES and len(turn) == 1 and loop.fits:
                break
            settled = earlier >= 0 and abs(cycles - earlier) <= SETTLED_SHARE * cycles
            if walked == MOST_PASSES or settled:
                for loops, value in turn.items():
                    key = (*loops, (loop.index, walked))
                    parts[key] = parts.get(key, 0.0) + value
                break
            earlier = cycles
        return parts


def _lines_of(nest: CoreNest, line_bytes: int, instruction_bytes: float) -> list[tuple[int, int]]:
    """First and last line of every instruction of `nest`, in the order of the body."""
    layout = nest.layout
    if layout is None or sum(run[1] for run in layout.runs) != nest.shape.instructions:
        runs: tuple[tuple[int, int], ...] = ((0, nest.shape.instructions),)
    else:
        runs = layout.runs
        instruction_bytes = nest.code_bytes / layout.instructions
    lines = []
    for first, count in runs:
        starts = [int(place * instruction_bytes) for place in range(first, first + count + 1)]
        lines += [(start // line_bytes, (end - 1) // line_bytes) for start, end in pairwise(starts)]
    return lines

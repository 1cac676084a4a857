# SPDX-License-Identifier: Apache-2.0
"""What a core waits for lines of its kernel in its private instruction cache, as an expectation.

The replacement register of the cache is pseudo-random, so a line is there with a probability. A refill puts
any line of its set out with probability 1 / ways: every refill multiplies the probabilities of the other
lines of the set by 1 - (probability that it happened) / ways, and the line it fetched is there afterwards. A
walk of the nest along the lines of its code, loop by loop, gives the expected refills of a call. A loop is
walked until it has settled; the turns left out are multiplied.

Kernel and the code around it take turns in the cache: between two calls the core executes code of the
program (`IcacheTiming.between_calls_lines`: transfers, the loop around) and of fork and join (`call_lines`).
They put each other's lines out, and what is missing of fork and join is part of what the call waits for.
Small kernels and the code around them fit the cache together; a large one leaves nothing of it. A price is
that of the second call from empty caches, as measured: the replacement does not prefer an empty way, so that
the first call does not leave all lines there even where they fit.

The core's prefetcher runs ahead of straight code: while a line is executed, the next one is asked for as soon
as all words of the line are fetched (`IcacheTiming.fetch_bytes_per_cycle`). Compressed instructions leave it
more time than its words need, and so much of a refill is hidden. Behind a jump nothing was asked for.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import prod

from msgspec import field

from arch.pricing.scoreboard import CodeBlock, CoreNest, LoopNode
from arch.spec.timing import IcacheTiming
from configs.values import Struct

MOST_PASSES = 4
"""Turns of a loop that are walked; the others are like the last, or free if its lines fit the cache."""

SETTLED_SHARE = 0.05
"""A loop has settled when a turn differs from the turn before by no more than this share."""

SETTLED_CYCLES = 0.05
"""Expected stalls of a turn, in cycles, that count as none in a loop whose lines fit the cache."""

THERE = 1e-9
"""A probability to be missing up to this is none; what is left of it is rounding."""

SMALLEST_FACTOR = 1e-200
"""A set whose factor becomes smaller starts anew."""

KNOWN_ENTRIES = 4_000
"""Nests kept, and walks of each; all are dropped when there are more."""

_Parts = dict[tuple[tuple[int, int], ...], float]
"""Expected cycles: a factor by the loops it is multiplied with, each (loop, turns that were walked)."""


class _Lines(Struct, frozen=True):
    """Straight code: (line, instructions executed of it), in order."""

    lines: tuple[tuple[int, int], ...]


class _Turns(Struct, frozen=True):
    """A loop; `steady` if no line of it can put another out, `fits` if in time no refill is left."""

    index: int
    body: tuple[_Lines | _Turns, ...]
    steady: bool
    fits: bool


class _Code(Struct, frozen=True, eq=False):
    """A nest along its lines, numbered in the order of their first use, and where each of them lies.

    `passes` are the turns of every loop after which all are like the last. `walks` is what walks came to, by
    trip counts up to these.
    """

    nodes: tuple[_Lines | _Turns, ...]
    place: tuple[int, ...]
    passes: tuple[int, ...] = ()
    walks: dict[tuple[int, ...], _Parts] = field(default_factory=dict)


_codes: dict[tuple[object, ...], _Code] = {}


def refill_stall_cycles_of_call(nest: CoreNest, icache: IcacheTiming, instruction_bytes: float) -> float:
    """Expected stalls of one core in one of many calls of `nest`, in cycles; refills from the shared cache.

    `instruction_bytes` is the mean size of an instruction of `nest` if it has no layout.
    """
    key = (nest.shape, nest.layout, nest.code_bytes, icache)
    code = _codes.get(key)
    if code is None:
        if len(_codes) >= KNOWN_ENTRIES:
            _codes.clear()
        code = _codes[key] = _Reader(nest, icache, instruction_bytes).code()
    capped = tuple(map(min, nest.trips, code.passes))
    parts = code.walks.get(capped)
    if parts is None:
        if len(code.walks) >= KNOWN_ENTRIES:
            code.walks.clear()
        parts = code.walks[capped] = _Walk(code, icache, capped).stalls()
    total = 0.0
    for loops, cycles in parts.items():
        total += cycles * prod([nest.trips[loop] - walked for loop, walked in loops])
    return total


def _sets(icache: IcacheTiming) -> int:
    return max(1, icache.private_bytes // (icache.line_bytes * icache.private_ways))


def shares_the_cache(icache: IcacheTiming) -> bool:
    """Whether a kernel shares the private cache with code between its calls."""
    return icache.between_calls_lines + icache.call_lines > 0


@lru_cache(maxsize=KNOWN_ENTRIES)
def surviving_share(lines: int, icache: IcacheTiming) -> float:
    """Share of so many lines of straight code that the second of two calls finds in a private cache."""
    if not lines or not shares_the_cache(icache):
        return 1.0
    straight = tuple([(line, 0) for line in range(lines)])
    return 1.0 - _Walk(_Code((_Lines(straight),), tuple(range(lines))), icache, ()).entry_refills() / lines


class _Reader:
    """Reads a nest line by line."""

    def __init__(self, nest: CoreNest, icache: IcacheTiming, instruction_bytes: float) -> None:
        self._body = nest.shape.body
        self._sets = _sets(icache)
        self._ways = icache.private_ways
        self._numbers: dict[int, int] = {}
        self._lines = _lines_of(nest, icache.line_bytes, instruction_bytes)
        self._next = 0
        self._passes: dict[int, int] = {}

    def code(self) -> _Code:
        nodes = self._read(self._body)
        return _Code(
            nodes, tuple(self._numbers), tuple([self._passes[loop] for loop in sorted(self._passes)])
        )

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
            # The lines of a steady loop are steady in the loops inside it too.
            self._passes[node.index] = 1 if most <= 1 else MOST_PASSES
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
    """Executes the lines of a nest, and knows with what probability each of them is in the cache.

    A line is there with its share times the factor of its set: a refill makes the factor smaller, and so all
    lines of the set at once.
    """

    def __init__(self, code: _Code, icache: IcacheTiming, capped_trips: tuple[int, ...]) -> None:
        self._nodes = code.nodes
        self._trips = capped_trips
        self._ways = icache.private_ways
        self._refill_cycles = icache.private_refill_stall_cycles
        fetch = icache.fetch_bytes_per_cycle
        # Without a prefetcher as many cycles as instructions can ever take: it never gets ahead.
        self._fetch_cycles = icache.line_bytes // fetch if fetch else icache.line_bytes
        sets, own_lines = _sets(icache), len(code.place)
        # Where the code around lies is not known: in consecutive lines, from the first set on.
        self._between = range(own_lines, own_lines + icache.between_calls_lines)
        self._around = range(self._between.stop, self._between.stop + icache.call_lines)
        others = range(len(self._between) + len(self._around))
        self._place = code.place
        self._set = [line % sets for lines in (code.place, others) for line in lines]
        self._share = [0.0] * len(self._set)
        self._factor = [1.0] * sets
        self._before = (-1, 0)

    def stalls(self) -> _Parts:
        """Those of the second of two calls, fork and join included.

        Two turns of a loop show which lines the first leaves there.
        """
        trips, self._trips = self._trips, tuple([min(count, 2) for count in self._trips])
        self._refills(self._between)
        self._refills(self._around)
        self._pass(self._nodes)
        self._trips = trips
        self._refills(self._between)
        around = self._refills(self._around)
        self._before = (-1, 0)
        parts = self._pass(self._nodes)
        parts[()] += around * self._refill_cycles
        return parts

    def entry_refills(self) -> float:
        """Expected refills of a nest without loops in the second of two calls."""
        lines = range(len(self._place))
        for numbers in (self._between, self._around, lines, self._between, self._around):
            self._refills(numbers)
        return self._refills(lines)

    def _refills(self, numbers: range) -> float:
        """Execute lines one after the other: how many of them were missing."""
        refills = 0.0
        for number in numbers:
            line_set = self._set[number]
            missing = 1.0 - self._share[number] * self._factor[line_set]
            if missing > THERE:
                refills += missing
                self._fetch(number, line_set, missing)
        return refills

    def _fetch(self, number: int, line_set: int, missing: float) -> None:
        """Line `number` of set `line_set` is fetched if it is missing, and takes any way there."""
        left = self._factor[line_set] * (1.0 - missing / self._ways)
        if left < SMALLEST_FACTOR:
            for other, place in enumerate(self._set):
                if place == line_set:
                    self._share[other] *= left
            left = 1.0
        self._factor[line_set] = left
        self._share[number] = 1.0 / left

    def _pass(self, nodes: tuple[_Lines | _Turns, ...]) -> _Parts:
        """Execute `nodes` once: what they wait for code."""
        cycles = 0.0
        parts: _Parts = {}
        share, factor, set_of, place = self._share, self._factor, self._set, self._place
        fetch_cycles, refill_cycles, fetch = self._fetch_cycles, self._refill_cycles, self._fetch
        before, executed = self._before
        for node in nodes:
            if isinstance(node, _Lines):
                for number, count in node.lines:
                    if number == before:
                        executed += count
                        continue
                    line_set = set_of[number]
                    missing = 1.0 - share[number] * factor[line_set]
                    if missing > THERE:
                        if before >= 0 and executed > fetch_cycles and place[before] + 1 == place[number]:
                            cycles += missing * max(0, refill_cycles - (executed - fetch_cycles))
                        else:
                            cycles += missing * refill_cycles
                        fetch(number, line_set, missing)
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

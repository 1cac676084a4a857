# SPDX-License-Identifier: Apache-2.0
"""A small peak without a solver: what is done again is changed one group at a time, as long as that helps.

CP-SAT takes minutes to get as far on a network of dozens of layers: what is found here is its hint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from scheduler.fit.problem import Decisions, Outcome, Problem, evaluate, lives_of, named

STEP = 0.02
"""Share of the peak by which the next descents try to make it smaller."""


def descended(problem: Problem, *, enough_bytes: int = 0, ends: float = math.inf) -> Decisions:
    """The groups done again of the smallest peak that descents from none and from all groups find.

    The first with at most `enough_bytes` is taken, before the others one that saves most bytes for its cost;
    groups that are not needed for that are left out. The clock (`time.perf_counter`) `ends` the search.
    """
    none, every = frozenset[int](), frozenset(range(len(problem.groups)))
    best = evaluate(problem, Decisions()), none

    def better(begin: frozenset[int], most_bytes: int | None, *, by_cost: bool = False) -> bool:
        nonlocal best
        if best[0].peak_bytes <= enough_bytes or time.perf_counter() >= ends:
            return False
        found = _descent(problem, begin, most_bytes, ends, by_cost=by_cost)
        before_bytes = best[0].peak_bytes
        best = min(best, found, key=lambda one: one[0].peak_bytes)
        return best[0].peak_bytes < before_bytes

    if enough_bytes:
        better(none, enough_bytes, by_cost=True)
        better(every, enough_bytes)
    for begin in (every, none):
        going_on = better(begin, None)
        while going_on:
            most_bytes = int(best[0].peak_bytes * (1 - STEP))
            going_on = any([better(best[1], most_bytes), better(every, most_bytes)])
    outcome, again = best
    most_bytes = max(outcome.peak_bytes, enough_bytes)
    for group in sorted(again):
        fewer = evaluate(problem, Decisions(again=again - {group}))
        if fewer.peak_bytes <= most_bytes and fewer.cost <= outcome.cost:
            outcome, again = fewer, again - {group}
    return Decisions(again=again)


def _descent(
    problem: Problem, again: frozenset[int], most_bytes: int | None, ends: float, *, by_cost: bool
) -> tuple[Outcome, frozenset[int]]:
    """What a descent from some groups ends with: of the peak, or of bytes above `most_bytes` at all turns.

    The latter goes on where several turns have the same peak.
    """

    def over(outcome: Outcome) -> int:
        if most_bytes is None:
            return outcome.peak_bytes
        return sum(live - most_bytes for live in outcome.live_bytes if live > most_bytes)

    best = evaluate(problem, Decisions(again=again))
    while over(best) and time.perf_counter() < ends:
        tried = []
        for group in _live(problem, best, best.peak_bytes - 1 if most_bytes is None else most_bytes):
            changed = again ^ {group}
            outcome = evaluate(problem, Decisions(again=changed))
            price = max(1, outcome.cost - best.cost) if by_cost else 1
            tried.append(((over(outcome) - over(best)) / price, len(changed), sorted(changed), outcome))
        found = min(tried, default=None)
        if found is None or over(found[-1]) >= over(best):
            break
        best, again = found[-1], frozenset(found[-2])
    return best, again


def _live(problem: Problem, outcome: Outcome, most_bytes: int) -> Collection[int]:
    """The groups of what lies in L2 at turns with more bytes."""
    turns = [turn for turn, live in enumerate(outcome.live_bytes) if live > most_bytes]
    buffers = {
        named(version)
        for version, (first, last) in lives_of(problem, list(outcome.entries)).items()
        if any(first <= turn <= last for turn in turns)
    }
    return {problem.tasks[problem.makers[buffer]].group for buffer in buffers & problem.makers.keys()}

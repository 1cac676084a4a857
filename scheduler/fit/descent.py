# SPDX-License-Identifier: Apache-2.0
"""A small peak without a solver: what is done again is changed one group at a time, as long as that helps.

CP-SAT takes minutes to get as far on a network of dozens of layers: what is found here is its hint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from scheduler.fit.problem import Decisions, Outcome, Problem, evaluate, lives_of


def descended(problem: Problem, *, enough_bytes: int = 0, ends: float = math.inf) -> Decisions:
    """The groups done again of the smallest peak of two steepest descents, from none and from all groups.

    The first with at most `enough_bytes` is taken, before these one that saves most bytes for its cost; all
    groups that are not needed for that are left out. The clock (`time.perf_counter`) `ends` the search.
    """
    outcome, again = evaluate(problem, Decisions()), frozenset[int]()
    none, every = again, frozenset(range(len(problem.groups)))
    ways = ((none, True), (none, False), (every, False))
    for begin, by_cost in ways if enough_bytes else ways[1:]:
        if outcome.peak_bytes > enough_bytes:
            found = _descent(problem, begin, enough_bytes, ends, by_cost=by_cost)
            outcome, again = min((outcome, again), found, key=lambda one: one[0].peak_bytes)
    most_bytes = max(outcome.peak_bytes, enough_bytes)
    for group in sorted(again):
        fewer = evaluate(problem, Decisions(again=again - {group}))
        if fewer.peak_bytes <= most_bytes and fewer.cost <= outcome.cost:
            outcome, again = fewer, again - {group}
    return Decisions(again=again)


def _descent(
    problem: Problem, again: frozenset[int], enough_bytes: int, ends: float, *, by_cost: bool
) -> tuple[Outcome, frozenset[int]]:
    """What a descent from some groups ends with: nothing at the peak is worth changing."""
    best = evaluate(problem, Decisions(again=again))
    while best.peak_bytes > enough_bytes and time.perf_counter() < ends:
        tried = []
        for group in _at_peak(problem, best):
            changed = again ^ {group}
            outcome = evaluate(problem, Decisions(again=changed))
            saved_bytes = best.peak_bytes - max(outcome.peak_bytes, enough_bytes)
            price = max(1, outcome.cost - best.cost) if by_cost else 1
            tried.append((-saved_bytes / price, len(changed), sorted(changed), outcome))
        found = min(tried, default=None)
        if found is None or found[-1].peak_bytes >= best.peak_bytes:
            break
        best, again = found[-1], frozenset(found[-2])
    return best, again


def _at_peak(problem: Problem, outcome: Outcome) -> Collection[int]:
    """The groups of what lies in L2 at the peak."""
    turn = outcome.live_bytes.index(outcome.peak_bytes)
    lives = lives_of(problem, list(outcome.entries))
    live = {version if version >= 0 else ~version for version, (a, z) in lives.items() if a <= turn <= z}
    return {problem.tasks[problem.makers[buffer]].group for buffer in live & problem.makers.keys()}

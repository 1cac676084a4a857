# SPDX-License-Identifier: Apache-2.0
"""Addresses with the lowest peak: by a search over orders, and by OR-tools CP-SAT where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from scheduler.addresses.allocation import (
    ALIGNMENT_BYTES,
    Allocation,
    Interval,
    align,
    check_no_overlap,
    lower_bound_bytes,
    peak_bytes,
)
from scheduler.addresses.order_search import search_orders
from scheduler.addresses.placement import place

WORK_LIMIT = 2.0
CONFLICT_LIMIT = 1000
"""Limits of CP-SAT's deterministic time and of its conflicts: unlike wall-clock time they stop the search at
the same point on every machine."""

MOST_SOLVED = 150
"""Requests CP-SAT is asked to place; its model of many more takes minutes to set up."""

PLANS_KEPT = 64
"""Plans that are remembered: schedules that differ in what stays in L1 ask for the same one again."""


def solver_installed() -> bool:
    """Whether OR-tools can be imported."""
    return importlib.util.find_spec("ortools") is not None


def place_optimal(
    requests: Iterable[Interval], level: str, *, work_limit: float = WORK_LIMIT
) -> tuple[dict[str, Allocation], tuple[str, ...]]:
    """Addresses with the lowest peak and notes on what could not be proved.

    The better heuristic plan, then the best of many orders of first fit (`order_search`); both end
    when no more bytes are taken than live at once, which nothing can beat. Else CP-SAT looks for less: two
    live requests are rectangles (ops × words) that must not overlap. Without OR-tools, for more than
    `MOST_SOLVED` requests, or when it finds nothing within its limit, the best plan so far is the result and
    a note says so. One worker, fixed seeds: the same plan in every run.
    """
    plan, notes = _optimal(tuple(requests), level, work_limit)
    return dict(plan), notes


@lru_cache(maxsize=PLANS_KEPT)
def _optimal(
    items: tuple[Interval, ...], level: str, work_limit: float
) -> tuple[dict[str, Allocation], tuple[str, ...]]:
    start = min(
        (place(items, level, strategy) for strategy in ("first-fit", "best-fit")),
        key=lambda plan: peak_bytes(plan.values()),
    )
    bound_bytes = lower_bound_bytes(items)
    start_bytes = align(peak_bytes(start.values()))
    if start_bytes <= bound_bytes:
        return start, ()
    bars, rest = _split(items)
    bars_bytes = sum(align(item.size_bytes) for item in bars)
    ordered = _plan(level, bars, rest, search_orders(rest, bound_bytes - bars_bytes))
    ordered_bytes = align(peak_bytes(ordered.values()))
    if ordered_bytes < start_bytes:
        start, start_bytes = ordered, ordered_bytes
    if start_bytes <= bound_bytes:
        return start, ()
    unproved = f"the lower bound is {bound_bytes} B, this plan takes {start_bytes} B"
    if not solver_installed():
        return start, (f"{level}: OR-tools is missing (pip install 'pulptrain[solver]'): {unproved}",)
    if len(rest) > MOST_SOLVED:
        return start, (f"{level}: too many buffers for the solver: {unproved}",)
    start_words = (start_bytes - bars_bytes) // ALIGNMENT_BYTES
    words, proved = _solve(rest, start_words, (bound_bytes - bars_bytes) // ALIGNMENT_BYTES, work_limit)
    note = f"{level}: the solver reached its work limit; the optimum is {bound_bytes} B or more"
    notes = () if proved else (note,)
    if words is None:
        return start, notes
    addresses = {name: word * ALIGNMENT_BYTES for name, word in words.items()}
    return _plan(level, bars, rest, addresses), notes


def _plan(
    level: str, bars: Iterable[Interval], rest: Iterable[Interval], addresses: Mapping[str, int]
) -> dict[str, Allocation]:
    """The bars at the bottom, the others at their addresses above them."""
    placed: dict[str, Allocation] = {}
    bars_bytes = 0
    for item in bars:
        placed[item.name] = item.at(level, bars_bytes)
        bars_bytes += align(item.size_bytes)
    for item in rest:
        placed[item.name] = item.at(level, bars_bytes + addresses[item.name])
    check_no_overlap(placed.values())
    return placed


def _split(items: Sequence[Interval]) -> tuple[list[Interval], list[Interval]]:
    """(requests that live all the time, the others).

    Whatever a plan looks like, the former can be moved to its bottom and what lay above each of them moved
    down without changing the peak; so they need no search.
    """
    first, last = min(item.first_op for item in items), max(item.last_op for item in items)
    bars = [item for item in items if (item.first_op, item.last_op) == (first, last)]
    return bars, [item for item in items if (item.first_op, item.last_op) != (first, last)]


def _solve(
    items: list[Interval], start_words: int, bound_words: int, work_limit: float
) -> tuple[dict[str, int] | None, bool]:
    """Word addresses with a peak below `start_words` (None: none found), and whether no peak is lower."""
    from ortools.sat.python import cp_model  # optional, and slow to import

    model = cp_model.CpModel()
    peak = model.new_int_var(bound_words, start_words - 1, "peak")
    addresses, spans, times = {}, [], []
    for item in items:
        size = align(item.size_bytes) // ALIGNMENT_BYTES
        address = addresses[item.name] = model.new_int_var(0, start_words - 1 - size, item.name)
        model.add(address + size <= peak)
        spans.append(model.new_fixed_size_interval_var(address, size, item.name))
        ops = item.last_op - item.first_op + 1
        times.append(model.new_fixed_size_interval_var(item.first_op, ops, item.name))
    model.add_no_overlap_2d(times, spans)
    model.minimize(peak)
    # Large and long ones first, as low as they go: a plan that is found so is often the best one.
    first = sorted(items, key=lambda item: (-item.size_bytes * (item.last_op - item.first_op + 1), item.name))
    model.add_decision_strategy(
        [addresses[item.name] for item in first], cp_model.CHOOSE_FIRST, cp_model.SELECT_MIN_VALUE
    )
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work_limit
    solver.parameters.max_number_of_conflicts = CONFLICT_LIMIT
    solver.parameters.catch_sigint_signal = False  # Ctrl-C would end the process silently from then on
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, True
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, False
    return {name: solver.value(address) for name, address in addresses.items()}, status == cp_model.OPTIMAL

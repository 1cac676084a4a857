"""Addresses with the lowest peak, by OR-tools CP-SAT where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from scheduler.allocation import (
    ALIGNMENT_BYTES,
    Allocation,
    Request,
    align,
    check_no_overlap,
    lower_bound_bytes,
    peak_bytes,
)
from scheduler.placement import place

WORK_LIMIT = 2.0
CONFLICT_LIMIT = 1000
"""Limits of CP-SAT's deterministic time and of its conflicts: unlike wall-clock time they stop the search at
the same point on every machine, after some seconds for a network of 300 ops."""


def solver_installed() -> bool:
    """Whether OR-tools can be imported."""
    return importlib.util.find_spec("ortools") is not None


def place_optimal(
    requests: Iterable[Request], level: str, *, work_limit: float = WORK_LIMIT
) -> tuple[dict[str, Allocation], tuple[str, ...]]:
    """Addresses with the lowest peak and notes on what could not be proved.

    Two live requests are rectangles (ops × words) that must not overlap. The search starts from the better
    heuristic plan and never returns a worse one. Without OR-tools, or when it finds nothing better within its
    limit, that plan is the result and a note says so. One worker, a fixed seed: the same plan in every run.
    """
    items = list(requests)
    start = min(
        (place(items, level, strategy) for strategy in ("first-fit", "best-fit")),
        key=lambda plan: peak_bytes(plan.values()),
    )
    bound_bytes = lower_bound_bytes(items)
    if align(peak_bytes(start.values())) <= bound_bytes:
        return start, ()
    if not solver_installed():
        note = (
            f"{level}: placed by first-fit or best-fit: OR-tools is missing (pip install 'pulptrain[solver]')"
        )
        return start, (note,)
    bars, rest = _split(items)
    bars_bytes = sum(align(item.size_bytes) for item in bars)
    start_words = (align(peak_bytes(start.values())) - bars_bytes) // ALIGNMENT_BYTES
    words, proved = _solve(rest, start_words, (bound_bytes - bars_bytes) // ALIGNMENT_BYTES, work_limit)
    note = (
        f"{level}: placement not proved optimal within the solver's limit; no plan is below {bound_bytes} B"
    )
    notes = () if proved else (note,)
    if words is None:
        return start, notes
    found: dict[str, Allocation] = {}
    address = 0
    for item in bars:
        found[item.name] = item.at(level, address)
        address += align(item.size_bytes)
    for item in rest:
        found[item.name] = item.at(level, bars_bytes + words[item.name] * ALIGNMENT_BYTES)
    check_no_overlap(found.values())
    return found, notes


def _split(items: list[Request]) -> tuple[list[Request], list[Request]]:
    """(requests that live all the time, the others).

    Whatever a plan looks like, the former can be moved to its bottom and what lay above each of them moved
    down without changing the peak; so they need no search.
    """
    first, last = min(item.first_op for item in items), max(item.last_op for item in items)
    bars = [item for item in items if (item.first_op, item.last_op) == (first, last)]
    return bars, [item for item in items if (item.first_op, item.last_op) != (first, last)]


def _solve(
    items: list[Request], start_words: int, bound_words: int, work_limit: float
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
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = work_limit
    solver.parameters.max_number_of_conflicts = CONFLICT_LIMIT
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return None, True
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, False
    return {name: solver.value(address) for name, address in addresses.items()}, status == cp_model.OPTIMAL

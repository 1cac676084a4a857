# SPDX-License-Identifier: Apache-2.0
"""The search: nothing is better on small problems, and of large ones it says how far it may be off."""

import _thread

import pytest

from scheduler.fit.problem import Decisions, evaluate
from scheduler.fit.solver import UndecidedError, solve
from shared.fit_problems import best_of_all, random_problem, with_costs, with_streams
from shared.tiers import sweep_nine_of_ten

pytestmark = pytest.mark.needs_ortools


@pytest.mark.parametrize("seed", sweep_nine_of_ten(range(60)))
def test_looking_at_all_decisions_finds_nothing_better(seed: int) -> None:
    problem = random_problem(seed, 12)
    found, best = solve(problem), best_of_all(problem)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        told = evaluate(problem, found.decisions)
        assert found.proved
        assert found.value == best[0] == told.cycles
        assert told.peak_bytes <= problem.l2_bytes


@pytest.mark.parametrize("seed", sweep_nine_of_ten(range(200, 230)))
def test_nor_where_tasks_and_copies_cost_more_than_their_time_and_there_is_a_deadline(seed: int) -> None:
    problem = with_costs(random_problem(seed, 10), seed)
    found, best = solve(problem), best_of_all(problem)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        told = evaluate(problem, found.decisions)
        assert found.value == best[0] == told.cost
        assert told.keeps(problem)


@pytest.mark.parametrize("seed", sweep_nine_of_ten(range(300, 330)))
def test_nor_where_tasks_may_stream(seed: int) -> None:
    problem = with_streams(random_problem(seed, 8), seed)
    found, best = solve(problem), best_of_all(problem)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        told = evaluate(problem, found.decisions)
        assert found.value == best[0] == told.cost
        assert told.keeps(problem)


@pytest.mark.parametrize("seed", sweep_nine_of_ten(range(100, 120)))
def test_of_60_ops_the_gap_is_below_5_percent(seed: int) -> None:
    problem = random_problem(seed, 60)
    found = solve(problem, seconds=30)
    assert found is not None
    assert found.gap < 0.05
    told = evaluate(problem, found.decisions)
    assert told.cycles == found.value
    assert told.peak_bytes <= problem.l2_bytes


def test_the_smallest_peak_is_below_that_of_any_other_decision() -> None:
    problem = random_problem(3, 12)
    found = solve(problem, smallest=True)
    assert found is not None
    assert evaluate(problem, found.decisions).peak_bytes == found.value
    assert found.value < evaluate(problem, Decisions()).peak_bytes


def test_a_peak_that_is_enough_ends_the_search_and_time_that_is_over_is_no_proof() -> None:
    problem = random_problem(103, 60)
    found, best = solve(problem, smallest=True, enough=problem.l2_bytes), solve(problem, smallest=True)
    assert found is not None
    assert best is not None
    assert evaluate(problem, found.decisions).keeps(problem)
    assert found.value > best.value
    with pytest.raises(UndecidedError):
        solve(problem, seconds=1e-6)


def test_a_hint_is_the_first_answer() -> None:
    problem = random_problem(4, 12)
    first = solve(problem)
    assert first is not None
    values: list[int] = []
    solve(problem, hint=first.decisions, better=lambda value, bound: values.append(value))
    assert values[0] == first.value


def test_ctrl_c_keeps_the_best_so_far() -> None:
    problem = with_streams(random_problem(103, 150), 103, 60)
    pressed: list[int] = []

    def press_once(value: int, bound: int) -> None:
        if not pressed:  # a second one could come when the search has ended, in another test
            pressed.append(value)
            _thread.interrupt_main()

    found = solve(problem, better=press_once)
    assert found is not None
    assert found.interrupted
    assert evaluate(problem, found.decisions).peak_bytes <= problem.l2_bytes

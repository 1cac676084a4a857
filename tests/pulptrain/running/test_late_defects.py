# SPDX-License-Identifier: Apache-2.0
"""Defects of one iteration that is not followed, and of what is told and saved: which of them are refused."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest

from alarm.late import DRAWN, ITERATIONS, LATE, SURE, refused, seeds_that_draw
from pulptrain.running.training import Training, drawn_iteration
from scheduler.executor import Executor
from shared.kept_plans import run_model
from shared.tiers import sweep_two_of_three


def test_a_run_without_a_defect_is_not_refused() -> None:
    assert not any(refused(nullcontext, seed) for seed in (0, next(seeds_that_draw(LATE))))


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", sweep_two_of_three(list(SURE)))
def test_it_is_refused_whichever_iteration_is_drawn(name: str) -> None:
    assert refused(SURE[name], next(seeds_that_draw(LATE - 1)))


@pytest.mark.parametrize("name", sweep_two_of_three(list(DRAWN)))
def test_it_is_refused_only_where_its_iteration_is_drawn(name: str) -> None:
    assert refused(DRAWN[name], next(seeds_that_draw(LATE)))
    assert not refused(DRAWN[name], next(seeds_that_draw(LATE - 1)))


def test_each_iteration_between_is_drawn_as_often_and_the_seed_says_which() -> None:
    drawn = Counter(drawn_iteration(4, ITERATIONS, seed) for seed in range(4000))
    assert sorted(drawn) == [4, 5, 6, 7]
    assert all(abs(count - 1000) < 100 for count in drawn.values()), drawn
    assert drawn_iteration(4, 4, 0) == 4, "there is none between the third and the last"
    followed = run_model("simple-mlp", iterations=ITERATIONS).summary["functional"]["iterations_followed"]
    assert followed == [1, 2, 3, drawn_iteration(4, ITERATIONS, 0), ITERATIONS]


def test_what_an_interrupted_run_saves_is_what_its_last_whole_iteration_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C comes when the update of one weight of three is done."""
    whole = run_model("simple-mlp", iterations=5)
    carried_out, ended, under_way = Training._carry_out, Executor._op_ended, list[int]()

    def carry_out(training: Training, *given: object) -> object:
        under_way.append(len(training.losses))
        return carried_out(training, *given)

    def op_ended(executor: Executor, action: object, results: object) -> None:
        ended(executor, action, results)
        if len(under_way) == 7 and executor.ended[-1][0].endswith(".UPD"):
            under_way.append(-1)
            raise KeyboardInterrupt

    monkeypatch.setattr(Training, "_carry_out", carry_out)
    monkeypatch.setattr(Executor, "_op_ended", op_ended)
    outcome = run_model("simple-mlp", iterations=50)
    assert (outcome.interrupted, outcome.summary["training"]["iterations"]) == (True, 5)
    assert outcome.summary["functional"]["passed"] is True
    assert outcome.values.keys() == whole.values.keys()
    for name, array in whole.values.items():
        assert np.array_equal(outcome.values[name], array), name

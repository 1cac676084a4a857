# SPDX-License-Identifier: Apache-2.0
"""The small peak that is found without a solver."""

from itertools import combinations

import pytest

from configs.model_file import load_model
from configs.values import replace
from pulptrain.fitting.fit_model import as_immediate
from pulptrain.inputs.settings import Settings, soc_timing
from scheduler.fit.descent import descended
from scheduler.fit.of_graph import problem_of
from scheduler.fit.prices import Prices
from scheduler.fit.problem import Decisions, evaluate
from shared.fit_problems import random_problem
from trainlib.training.phases import build_training_phases


@pytest.mark.parametrize("seed", range(4))
def test_it_is_near_the_smallest_of_all_sets_and_stops_where_told(seed: int) -> None:
    problem = random_problem(seed, 16)
    groups = range(len(problem.groups))

    def peak(again: frozenset[int]) -> int:
        return evaluate(problem, Decisions(again=again)).peak_bytes

    sets = [frozenset(some) for count in range(len(groups) + 1) for some in combinations(groups, count)]
    found = peak(descended(problem).again)
    assert min(map(peak, sets)) <= found <= 1.1 * min(map(peak, sets))
    assert descended(problem, enough_bytes=peak(frozenset())) == Decisions()
    assert found <= peak(descended(problem, ends=0.0).again) <= peak(frozenset())
    between = (found + peak(frozenset())) // 2
    enough = descended(problem, enough_bytes=between).again
    assert peak(enough) <= between
    assert all(peak(enough - {group}) > between for group in enough), "all of them are needed"


def test_ds_cnn_trains_in_less_than_half_its_peak_without_an_l3() -> None:
    """What CP-SAT found in minutes (404,796 B), and the ladder, which gave it 20 s, did not."""
    spec = as_immediate(load_model("ds-cnn"))
    timing = soc_timing(Settings(l2="8MiB", l3="0"))
    layers = frozenset(layer.name for layer in spec.layers)
    problem = problem_of(build_training_phases(spec).mini_batch, Prices(), timing, None, layers)
    found = evaluate(problem, descended(problem))
    assert found.peak_bytes <= 404_796 < evaluate(problem, Decisions()).peak_bytes * 0.6
    assert found.keeps(replace(problem, l2_bytes=found.peak_bytes))

# SPDX-License-Identifier: Apache-2.0
"""Energy and energy times delay are made small as cycles are: bounds hold, pruning finds the best."""

from __future__ import annotations

from functools import cache

import pytest

from arch.energy.accounting import OperatingPoint
from configs.energy_model import load_energy
from configs.errors import InputError
from configs.values import replace
from scheduler.search.rows import text_of, value_of
from scheduler.search.workers import open_workers
from scheduler.tuner.evaluate import CandidateSimulator, Evaluation
from scheduler.tuner.iteration_tuning import Tuning
from scheduler.tuner.objective import CYCLES, EDP, ENERGY, Objective, objective_of
from scheduler.tuner.search_space import candidates_of, list_cuts
from scheduler.tuner.strategies import StrategyOptions
from shared.tuner_case import question, small_case, tune

MODEL, POINT = load_energy("gap9"), OperatingPoint(0.65, 240_000_000)


def objective(name: str, watts: float = 0.02) -> Objective:
    return Objective() if name == CYCLES else objective_of(name, MODEL, POINT, watts)


@pytest.mark.parametrize("name", [ENERGY, EDP])
@pytest.mark.parametrize("op", ["conv.FW", "conv.WG", "relu.FW"])
def test_nothing_costs_less_than_its_bound(name: str, op: str) -> None:
    for asked in replace(question(op), objective=objective(name)).variants().values():
        machine = CandidateSimulator(asked.timing)
        candidates = [*candidates_of(list_cuts(asked), asked.kernels(), "")][:40:4]
        bounds = machine.bounds(asked, candidates)
        for candidate, bound in zip(candidates, bounds, strict=True):
            found = machine.evaluate(asked, candidate)
            assert found.refused or 0 < bound <= found.cost


@cache
def tuned(name: str, strategy: str = "pruned") -> Tuning:
    graph, timing, options, rules = small_case()
    with open_workers(1) as pool:
        return tune(
            [(graph, 1)],
            timing,
            options,
            pool,
            rules=rules,
            strategy=StrategyOptions(strategy),
            objective=objective(name),
        )


@pytest.mark.parametrize("name", [ENERGY, EDP])
def test_pruned_finds_what_exhaustive_finds(name: str) -> None:
    one, other = tuned(name), tuned(name, "exhaustive")
    chosen = [[choice.best for choice in item.schedule.choices] for item in (one, other)]
    assert chosen[0] == chosen[1]
    assert one.cost == other.cost
    assert one.schedule.evaluated < other.schedule.evaluated


def test_what_is_made_small_is_not_larger_than_under_another_objective() -> None:
    """Of ops alone: an iteration overlaps them."""
    by_op: dict[str, list[int]] = {}
    for name in (CYCLES, ENERGY):
        for choice in tuned(name, "exhaustive").schedule.choices:
            asked = replace(question(choice.op), objective=objective(ENERGY))
            variant = asked.variants().get(choice.best.variant, asked)
            machine = CandidateSimulator(variant.timing)
            by_op.setdefault(choice.op, []).append(machine.evaluate(variant, choice.best).cost)
    assert all(energy <= cycles for cycles, energy in by_op.values())


def test_energy_times_delay_is_energy_and_time_at_the_average_power() -> None:
    counts = {"instructions": 1000}
    energy, edp = objective(ENERGY), objective(EDP, watts=0.03)
    more = edp.cost(counts, 240) - energy.cost(counts, 240)
    assert more == pytest.approx(0.03 * 1e-6 * 1e15)
    assert objective(CYCLES).cost(counts, 240) == 0


def test_evaluations_are_kept_with_their_cost_and_apart_from_those_of_cycles() -> None:
    assert value_of(text_of(Evaluation(12, 3, 4, cost=7)), Evaluation) == Evaluation(12, 3, 4, cost=7)
    plain = question("relu.FW")
    contents = {replace(plain, objective=objective(name)).content for name in (CYCLES, ENERGY, EDP)}
    assert len(contents) == 3
    assert plain.content in contents


def test_a_model_without_a_coefficient_is_no_objective() -> None:
    without = replace(MODEL, coefficients={"leakage": MODEL.coefficients["leakage"]})
    with pytest.raises(InputError, match="the energy model gap9 lacks core_instruction, core_stall"):
        objective_of(ENERGY, without, POINT, 0)

# SPDX-License-Identifier: Apache-2.0
"""A mini-batch and the update in one memory: what both use has one address, and nothing else is touched."""

from pathlib import Path

import numpy as np
import pytest

from configs.errors import DoesNotFitError
from configs.units import parse_bytes
from configs.values import replace
from pulptrain.inputs.settings import Settings
from pulptrain.running.machine import Machine
from scheduler.addresses.allocation import check_no_overlap
from scheduler.addresses.plan_options import PlanOptions
from scheduler.memory.memory_plan import plan_memory
from scheduler.memory.shared_memory import plans_beside, shared_places
from shared.kept_plans import prepare, run_model
from shared.tiers import sweep_nine_of_ten
from shared.training_form_models import CNN, changed, written
from trainlib.ir.graph import KEPT_KINDS
from trainlib.training.phases import initial_weights

ADAM = "name: adam, learning_rate: 0.01, accumulate: 2"
DENSE = tuple(f"{{name: fc{number}, type: linear, out_features: 40}}" for number in range(3))
"""Weights only: what a mini-batch leaves free of L2 is too little for the states of an update."""

FORMS = {
    "accumulated": Settings(),
    "separate": Settings(accumulate=1, separate_update=True),
    "best-fit": Settings(placement="best-fit"),
    "optimal": Settings(placement="optimal"),
    "home in L3": Settings(homes=("fc.weight=l3", "conv1.out=l3")),
}


@pytest.mark.parametrize("form", FORMS)
def test_shared_tensors_have_one_address(tmp_path: Path, form: str) -> None:
    """Weights, statistics of the batch norm, optimizer states, and the gradients or their totals."""
    prepared = prepare(written(tmp_path, CNN, optimizer=ADAM), FORMS[form])
    mini, update = prepared.schedule, prepared.update
    both = [name for name in update.graph.needed_values if name in mini.graph.tensors]
    assert set(both) == set(update.graph.needed_values)
    assert {update.graph.tensors[name].kind for name in both} >= {"weight", "optimizer_state"}
    for name in {*both, *mini.graph.of_kind(*KEPT_KINDS)}:
        there = mini.plan.home(name)
        here = update.plan.homes[update.plan.owners.get(name, name)]
        assert (here.level, here.address) == (there.level, there.address), name
        assert (here.first_op, here.last_op) == (0, len(update.graph.ops)), "the update may not end its life"
    update.plan.check()


def test_what_the_update_does_not_know_survives_it(tmp_path: Path) -> None:
    """Running statistics and a frozen weight are no tensors of the update; its own scratch stays off them."""
    layers = changed(CNN, "pw", "trainable: false")
    path = written(tmp_path, layers, optimizer=f"{ADAM}, clip_norm: 0.5")
    prepared = prepare(path, Settings())
    machine = Machine(prepared, functional=True, code_start="warm")
    generator = np.random.default_rng(0)
    graph = prepared.schedule.graph
    machine.load_state(initial_weights(graph, 0))
    sample = {
        name: generator.standard_normal(graph.tensors[name].shape).astype(np.float32)
        for name in graph.of_kind("input", "label")
    }
    machine.mini.executor.load(sample)
    machine.mini.run()
    machine.mini.run()
    kept = {name: machine.mini.executor.fetch(name) for name in graph.of_kind(*KEPT_KINDS)}
    machine.last.run()
    unknown = set(kept) - set(prepared.update.graph.tensors)
    assert {"pw.weight", "norm1.running_mean"} <= unknown
    for name in unknown:
        assert np.array_equal(machine.mini.executor.fetch(name), kept[name]), name
    assert not np.array_equal(machine.mini.executor.fetch("fc.weight"), kept["fc.weight"])


def test_both_programs_run_on_one_soc(tmp_path: Path) -> None:
    prepared = prepare(written(tmp_path, CNN, optimizer=ADAM), Settings())
    machine = Machine(prepared, functional=True, code_start="warm")
    assert machine.mini.executor.soc is machine.last.executor.soc


@pytest.mark.parametrize("l2", sweep_nine_of_ten(["6600", "7000", "8KiB", "12KiB"]))
def test_a_small_l2_stages_the_shared_tensors_from_l3(tmp_path: Path, l2: str) -> None:
    """Adam's update holds weight, total and two states at once: it may need more in L3 than a mini-batch."""
    path = written(tmp_path, CNN, optimizer=ADAM)
    summary = run_model(path, Settings(l2=l2, icache="warm"), iterations=3).summary
    assert summary["functional"]["passed"]
    assert summary["peak_bytes"]["l2"] <= parse_bytes(l2)
    ample = run_model(path, iterations=3).summary
    assert summary["training"]["last_loss"] == ample["training"]["last_loss"]


def test_the_second_program_says_what_it_needs_in_l3(tmp_path: Path) -> None:
    """Where the placement of the first leaves the second too little of L2, both are planned anew."""
    prepared = prepare(written(tmp_path, DENSE, shape="[40]", optimizer=ADAM), Settings())
    before, after = prepared.phases.mini_batch, prepared.phases.update
    moved = 0
    for l2_bytes in range(20_000, 80_000, 1000):
        timing = replace(prepared.timing, l2=replace(prepared.timing.l2, size_bytes=l2_bytes))
        try:
            first, second = plans_beside(before, after, timing, PlanOptions())
        except DoesNotFitError:
            continue
        moved += bool(first.homes)
        plans = plan_memory(before, timing, first), plan_memory(after, timing, second)
        assert dict(second.shared) == shared_places(before, plans[0], after)
        for plan in plans:
            check_no_overlap(plan.allocations)
            assert plan.peak_bytes["l2"] <= l2_bytes
    assert moved, "no size of L2 made the first program give way"

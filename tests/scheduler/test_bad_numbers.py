# SPDX-License-Identifier: Apache-2.0
"""NaN and labels out of range are refused where they arise, by the name of the op, simulated or not."""

import numpy as np
import pytest

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Compute
from arch.spec.soc_config import load_soc
from configs.errors import InputError
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from configs.values import replace
from scheduler.executor import Executor
from scheduler.options import ScheduleOptions
from scheduler.schedule import build_schedule
from shared.initial_values import initial_values
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph

SPEC = ModelSpec(
    name="bad",
    description="two linear layers",
    source="this test",
    input_shape=(4,),
    dataset="random",
    loss=LossSpec("cross_entropy", {"labels": "hard"}),
    optimizer=OptimizerSpec("sgd", {"learning_rate": 0.1}, ""),
    batch=2,
    layers=(
        LayerSpec("fc1", "linear", {"out_features": 5}, "model:1"),
        LayerSpec("fc2", "linear", {"out_features": 3}, "model:2"),
    ),
    where="model",
)


def graph_and_values(spec=SPEC):
    graph = build_training_graph(spec)
    return graph, initial_values(graph, spec, seed=0)


def simulated(graph, values, accumulation="reference"):
    timing = load_soc("pulp-open", "rtl")
    cost_model = TeamCostModel(timing)
    schedule = build_schedule(graph, timing, cost_model, ScheduleOptions(accumulation=accumulation))
    executor = Executor(schedule, timing, cost_model)
    executor.load(values)
    executor.simulate()
    if executor.not_finite is not None:
        raise executor.not_finite
    return executor


@pytest.mark.parametrize("run", [evaluate, simulated])
def test_given_nan_is_refused_with_the_op_that_would_read_it(run):
    graph, values = graph_and_values()
    values["fc2.weight"][1, 2] = np.nan
    with pytest.raises(InputError, match=r"op fc2\.FW reads tensor 'fc2\.weight', which holds NaN") as caught:
        run(graph, values)
    assert caught.value.where == "fc2.FW"


def test_the_op_that_makes_a_nan_of_finite_numbers_is_named(monkeypatch):
    """No op of ours does today, so one is given a wrong formula."""
    graph, values = graph_and_values()
    schedule = build_schedule

    def wrong(*args):
        made = schedule(*args)
        actions = [
            replace(action, effect=replace(action.effect, function=lambda _: [np.full((2, 3), np.nan)]))
            if isinstance(action, Compute) and action.work.op == "fc2" and action.work.step == "FW"
            else action
            for action in made.program.actions
        ]
        return replace(made, program=replace(made.program, actions=tuple(actions)))

    monkeypatch.setitem(globals(), "build_schedule", wrong)
    with pytest.raises(InputError, match=r"the op computes a NaN although its inputs are finite"):
        simulated(graph, values)


@pytest.mark.parametrize("run", [evaluate, simulated])
def test_the_first_op_that_overflows_is_named_and_not_the_nan_that_comes_of_it(run):
    graph, values = graph_and_values(replace(SPEC, dtype="fp16"))
    values["fc1.weight"][:] = 60000
    values["input"][:] = 100
    values["fc2.weight"][:, ::2] = -1
    values["fc2.weight"][:, 1::2] = 1
    with pytest.raises(InputError, match=r"the op overflows float16 to infinity in 'fc1\.out'"):
        run(graph, values)


def test_an_accumulator_of_16_bit_can_overflow_where_one_of_32_bit_does_not():
    graph, values = graph_and_values(replace(SPEC, dtype="fp16"))
    values["fc1.weight"][:] = [[60000, 60000, -60000, -60000]] * 5
    values["input"][:] = 2
    simulated(graph, values)
    values["input"][:, 2:] = 0
    values["fc1.weight"][:, :2] = 0
    simulated(graph, values)
    values["fc1.weight"][:] = [[60000, 60000, -60000, -60000]] * 5
    values["input"][:] = 2
    # 120000 is infinite, and stays so: the sum that cancels in fp32 is infinite in fp16, the loss NaN.
    with pytest.raises(InputError, match=r"(overflows float16|computes a NaN)"):
        simulated(graph, values, "kernel")


@pytest.mark.parametrize("run", [evaluate, simulated])
@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused_by_the_loss(run, label):
    graph, values = graph_and_values()
    values["label"][1] = label
    with pytest.raises(InputError, match=f"label {label} is not a class") as caught:
        run(graph, values)
    assert caught.value.where == "loss.LOSS"

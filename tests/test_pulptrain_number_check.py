"""The check of numbers tells a defect from rounding, also where that takes an input of a ReLU across 0."""

import numpy as np
import pytest

from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from pulptrain.number_check import _Case
from trainlib.oracle_torch import evaluate_torch, near_kinks
from trainlib.training import build_training_graph

pytestmark = pytest.mark.needs_torch

TOLERANCE = 1e-5


def case_next_to_a_kink():
    """Two units in front of a ReLU; the second one is 1e-8 above 0, less than fp32 resolves at its terms."""
    layers = (
        LayerSpec("fc1", "linear", {"out_features": 2}, "here"),
        LayerSpec("relu", "relu", {}, "here"),
        LayerSpec("fc2", "linear", {"out_features": 1}, "here"),
    )
    spec = ModelSpec(
        name="kinked",
        description="two units",
        source="test",
        input_shape=(2,),
        dataset="random",
        loss=LossSpec("mse"),
        optimizer=OptimizerSpec("sgd", {"learning_rate": 0.1}, "here"),
        batch=1,
        layers=layers,
        where="here",
    )
    graph = build_training_graph(spec)
    third = np.float32(1 / 3)
    values = {
        "input": np.array([[0.7, 0.7 + 1e-7]], np.float32),
        "label": np.array([[5.0]], np.float32),
        "fc1.weight": np.array([[3.1, 2.7], [-third, third]], np.float32),
        "fc2.weight": np.array([[1.3, 0.9]], np.float32),
    }
    return graph, values


def test_an_element_is_near_a_kink_if_rounding_may_take_it_there() -> None:
    graph, values = case_next_to_a_kink()
    truth = evaluate_torch(graph, values)
    ((name, across),) = near_kinks(graph, values, truth)
    (unit,) = np.argwhere(across)
    assert (name, tuple(unit)) == ("fc1.out", (0, 1))
    assert 0 < truth["fc1.out"][0, 1] < 1e-7
    other = evaluate_torch(graph, values, moved={name: across})
    assert truth["fc1.weight.grad"][1].any()
    assert not other["fc1.weight.grad"][1].any(), "below 0 the unit has no gradient"


def test_rounding_across_a_kink_is_forgiven_and_a_wrong_number_is_not() -> None:
    graph, values = case_next_to_a_kink()
    truth = evaluate_torch(graph, values)
    ((name, across),) = near_kinks(graph, values, truth)
    names = [graph.loss, *graph.gradients.values()]
    ours = evaluate_torch(graph, values, moved={name: across})

    def worst(given) -> tuple[float, int, float]:
        case = _Case(graph, values, truth, names, {key: given[key].astype(np.float32) for key in names})
        count, errors = case.across_kinks(TOLERANCE)
        before = max(error.max_rel_error for error in case.errors(truth).values())
        return before, count, max(error.max_rel_error for error in errors.values())

    before, count, after = worst(ours)
    assert before > 0.1
    assert (count, after <= TOLERANCE) == (1, True)
    _, count, after = worst({**ours, "fc2.weight.grad": ours["fc2.weight.grad"] * 1.01})
    assert after > 1e-3, "another defect stays one"
    assert worst(truth)[1] == 0, "nothing is moved where the numbers are right"

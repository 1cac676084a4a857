# SPDX-License-Identifier: Apache-2.0
"""Some steps of an iteration alone, inference above all."""

from __future__ import annotations

import pytest

import pulptrain as pt
from trainlib.training.step_choice import as_in_inference, parse_steps


def network(*layers: pt.Layer, **more: object) -> pt.Model:
    options: dict[str, object] = {
        "input": (2, 6, 6),
        "loss": pt.CrossEntropy(),
        "optimizer": pt.Adam(0.01),
        **more,
    }
    return pt.Sequential(*layers, **options)  # type: ignore[arg-type]


def with_norm_and_dropout() -> pt.Model:
    return network(
        pt.Conv2d(4, 3), pt.BatchNorm(), pt.ReLU(), pt.Dropout(0.5), pt.Flatten(), pt.Linear(5, bias=True)
    )


def test_inference_has_forward_ops_only_and_right_numbers() -> None:
    model = with_norm_and_dropout()
    whole, inference = pt.run(model), pt.run(model, steps="fw")
    assert {op.step.partition("_")[0] for op in inference} == {"FW"}
    assert "dropout1" not in {op.layer for op in inference}
    assert inference.loss is None
    assert inference.losses == []
    assert inference.numbers_right is True
    assert inference.cycles < whole.cycles
    assert inference.peak.l2 < whole.peak.l2
    assert str(inference).startswith("network on pulp-open, steps fw: ")
    assert inference.summary["steps"] == ["fw"]


def test_norms_take_their_running_statistics() -> None:
    inference = pt.run(with_norm_and_dropout(), steps="fw")
    assert not [op.name for op in inference if op.step in ("FW_MEAN", "FW_VAR")]


def test_a_dropout_with_inputs_of_its_own_hands_them_on() -> None:
    first = pt.Conv2d(2, 3, padding=1)
    dropped = pt.Dropout(0.5, inputs=[first])
    model = network(first, pt.ReLU(), dropped, pt.Add(inputs=["relu1", dropped]), pt.Flatten(), pt.Linear(5))
    inputs = {layer.name: layer.inputs for layer in as_in_inference(model.spec).layers}
    assert inputs["add1"] == ("relu1", "conv2d1")
    follows = network(first, pt.ReLU(), dropped, pt.Tanh(), pt.Add(inputs=["relu1", "tanh1"]), pt.Flatten())
    inputs = {layer.name: layer.inputs for layer in as_in_inference(follows.spec).layers}
    assert inputs["tanh1"] == ("conv2d1",)
    add = pt.Add(inputs=["relu1", "tanh1"])
    twice = network(first, pt.ReLU(), dropped, pt.Dropout(0.5), pt.Tanh(), add, pt.Flatten())
    inputs = {layer.name: layer.inputs for layer in as_in_inference(twice.spec).layers}
    assert inputs["tanh1"] == ("conv2d1",)


def test_gradients_without_an_update_are_those_of_the_whole_iteration() -> None:
    model = network(pt.Conv2d(4, 3), pt.ReLU(), pt.Flatten(), pt.Linear(5))
    whole, some = pt.run(model), pt.run(model, steps=("fw", "ig", "wg"))
    assert {op.step for op in some} == {"FW", "LOSS", "IG", "WG"}
    assert some.loss == whole.loss
    for name in ("results/conv2d1.weight.grad", "results/linear1.weight.grad"):
        assert (some.values[name] == whole.values[name]).all()
    assert some.numbers_right is True
    inputs_only = pt.run(model, steps="fw,ig")
    assert {op.step for op in inputs_only} == {"FW", "LOSS", "IG"}


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("forward", "unknown step 'forward'"),
        ("ig", "must begin with fw"),
        ("fw,upd", "needs wg"),
        ("fw,wg", "reads 'conv2d1.out.grad'"),
    ],
)
def test_steps_that_cannot_be_are_refused_with_a_cure(steps: str, message: str) -> None:
    model = network(pt.Conv2d(4, 3), pt.ReLU(), pt.Flatten(), pt.Linear(5))
    with pytest.raises(pt.InputError, match=message) as caught:
        pt.run(model, steps=steps)
    assert caught.value.cure


def test_all_steps_are_an_iteration() -> None:
    assert parse_steps("upd, wg,ig,LOSS,fw") == ()
    assert parse_steps("fw") == ("fw",)
    assert parse_steps("wg,ig,fw") == ("fw", "loss", "ig", "wg")


def test_inference_is_tuned_and_explored_like_training() -> None:
    model = network(pt.Conv2d(4, 3), pt.ReLU(), pt.Flatten(), pt.Linear(5))
    tuned = pt.tune(
        model, steps="fw", tilings=1, step_variants="keep", resident="off", workers=1, cache=False
    )
    assert {choice["step"] for choice in tuned.choices} == {"FW"}
    assert pt.run(model, steps="fw", schedule=tuned).cycles == tuned.cycles
    points = pt.explore(model, sweep={"cores": [1, 8]}, steps="fw", workers=1, cache=False)
    assert points.points[1]["cycles"] == pt.run(model, steps="fw").cycles

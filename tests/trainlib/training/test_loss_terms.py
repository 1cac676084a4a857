# SPDX-License-Identifier: Apache-2.0
"""Networks with several inputs and several losses: what is trained is the sum, as autograd has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from configs.errors import ConfigError, PulptrainError, ShapeError
from configs.model_text import model_text
from configs.values import replace
from shared.one_iteration import in_torch, iteration, read
from trainlib.training.phases import build_training_graph
from trainlib.training.training_data import sample_stream

BOTH = """name: both
inputs: {left: {shape: [4]}, right: {shape: [3]}, words: {shape: [5], classes: 11}}
batch: 2
"""
SGD = "optimizer: {name: sgd, learning_rate: 0.1}\n"
JOINED = """layers:
  - {name: table, type: embedding, vocabulary: 11, features: 2, inputs: [words]}
  - {name: flat, type: flatten}
  - {name: join, type: concat, inputs: [left, right, flat]}
  - {name: early, type: linear, out_features: 3}
  - {name: relu, type: relu}
  - {name: head, type: linear, out_features: 3}
"""
TWO_HEADS = """losses:
  - {name: cross_entropy, labels: hard}
  - {name: mse, of: early, label: turned}
"""
TAUGHT = """name: taught
input: {shape: [4]}
losses: [mse, {name: mse, target: teacher}, {name: l1, of: pupil, target: input}]
layers:
  - {name: hidden, type: linear, out_features: 5, trainable: false}
  - {name: teacher, type: linear, out_features: 4, trainable: false}
  - {name: pupil, type: linear, out_features: 4, inputs: [input]}
"""


@pytest.mark.needs_torch
def test_two_heads_and_three_inputs_have_the_gradients_of_the_sum(tmp_path: Path) -> None:
    import torch
    from torch.nn import functional as fn

    graph, start, made = iteration(read(tmp_path, BOTH + TWO_HEADS + SGD + JOINED))
    assert (graph.inputs, graph.labels) == (("left", "right", "words"), ("label", "turned"))
    given = in_torch(start)
    weights = {name: given[name].requires_grad_() for name in graph.weights}
    table = fn.embedding(given["words"], weights["table.weight"]).flatten(1)
    early = fn.linear(torch.cat([given["left"], given["right"], table], 1), weights["early.weight"])
    head = fn.linear(early.relu(), weights["head.weight"])
    terms = [fn.cross_entropy(head, given["label"]), fn.mse_loss(early, given["turned"])]
    sum(terms).backward()
    for name, term in zip(graph.losses, terms, strict=True):
        assert made[name][0] == pytest.approx(float(term.detach()), rel=1e-6)
    for name, gradient in graph.gradients.items():
        np.testing.assert_allclose(made[gradient], weights[name].grad, rtol=1e-5, atol=1e-7, err_msg=name)


def test_gradients_of_losses_and_layers_of_one_output_are_summed_by_ops(tmp_path: Path) -> None:
    losses = TWO_HEADS + "  - {name: l1, of: early, label: turned}\n"
    graph, _, made = iteration(read(tmp_path, BOTH + losses + SGD + JOINED))
    sums = [op for op in graph.ops if op.step == "ACC"]
    assert [op.outputs for op in sums] == [("early.out.grad+1",), ("early.out.grad",)]
    parts = [made[f"early.out.grad@{name}"] for name in ("loss_2", "loss_3", "relu")]
    np.testing.assert_allclose(made["early.out.grad"], np.sum(parts, axis=0), rtol=1e-6)


def test_a_target_is_data_through_which_no_gradient_flows(tmp_path: Path) -> None:
    graph, _, made = iteration(read(tmp_path, TAUGHT + SGD))
    assert set(graph.gradients) == {"pupil.weight"}
    assert graph.labels == ("label",)
    distance = made["pupil.out"] - made["teacher.out"]
    assert made["loss_2"][0] == pytest.approx(np.mean(distance**2), rel=1e-6)
    np.testing.assert_allclose(made["pupil.out.grad@loss_2"], 2 * distance / distance.size, rtol=1e-6)


def test_a_model_of_several_is_written_as_it_is_read(tmp_path: Path) -> None:
    for text in (BOTH + TWO_HEADS + SGD + JOINED, TAUGHT + SGD):
        spec = read(tmp_path, text)
        again = read(tmp_path, model_text(spec))
        assert again.inputs == spec.inputs
        assert [replace(loss, where="") for loss in again.losses] == [
            replace(loss, where="") for loss in spec.losses
        ]
        assert [layer.inputs for layer in again.layers] == [layer.inputs for layer in spec.layers]


def test_more_inputs_change_nothing_of_what_one_is_fed(tmp_path: Path) -> None:
    one = "name: one\ninput: {shape: [4]}\nloss: mse\n" + SGD
    layers = "layers: [{name: flat, type: flatten}, {name: fc, type: linear, out_features: 2}]\n"
    graph, spec = build_training_graph(read(tmp_path, one + layers)), read(tmp_path, one + layers)
    assert graph.inputs == ("input",)  # and not the view of it
    draws = np.random.default_rng([3, 1])
    for sample, _ in zip(sample_stream(graph, spec, 3), range(2), strict=False):
        assert sample["input"].tobytes() == draws.uniform(-1, 1, 4).astype(np.float32).tobytes()
        assert sample["label"].tobytes() == draws.uniform(-1, 1, 2).astype(np.float32).tobytes()


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("name: taught", "name: taught\ninputs: {a: {shape: [4]}}"), 2, "'input' and 'inputs'"),
        (("losses: [mse", "loss: mse\nlosses: [mse"), 4, "'loss' and 'losses'"),
        (("losses: [mse", "losess: [mse"), 3, "unknown key 'losess'"),
        (("input: {shape: [4]}", "inputs: {}"), 2, "is empty"),
        (("input: {shape: [4]}", "inputs: {a b: {shape: [4]}}"), 2, "'a b' is not a valid name"),
        (("name: hidden", "name: input"), 5, "and an input of the model have the same name"),
        (("of: pupil", "of: pupli"), 3, "the loss, of: 'pupli' is not an earlier layer"),
        (("target: input", "target: hidden"), 3, r"the target hidden has shape \[5\] and dtype float32"),
        (("target: input", "target: input, label: y"), 3, "both a 'target' and a 'label'"),
        (("target: input", "label: input"), 3, "label 'input' and an input of the model have the same name"),
        (("target: input", "lable: y"), 3, "unknown key 'lable'"),
        (("target: teacher", "target: input"), 6, "no layer and no loss uses the output"),
    ],
)
def test_what_does_not_fit_is_refused_at_its_line(
    tmp_path: Path, change: tuple[str, str], line: int, message: str
) -> None:
    with pytest.raises(PulptrainError, match=message) as caught:
        build_training_graph(read(tmp_path, (TAUGHT + SGD).replace(*change)))
    assert f"m.yaml:{line}" in str(caught.value), str(caught.value)


def test_labels_of_one_name_are_one_tensor(tmp_path: Path) -> None:
    shared = "losses: [cross_entropy, {name: cross_entropy, labels: hard, label: label}]\n"
    with pytest.raises(ConfigError, match="two losses share the labels 'label'") as caught:
        build_training_graph(read(tmp_path, BOTH + shared + SGD + JOINED))
    assert "m.yaml:4" in str(caught.value)
    without = (BOTH + TWO_HEADS + SGD + JOINED).replace("right, flat]", "flat]")
    with pytest.raises(ShapeError, match="no layer uses the input 'right'"):
        build_training_graph(read(tmp_path, without))
    digits = (BOTH + TWO_HEADS + SGD + JOINED).replace("batch: 2", "dataset: digits")
    with pytest.raises(ConfigError, match="one input and one label"):
        read(tmp_path, digits.replace("[4]", "[1, 8, 8]").replace("[3]", "[1, 8, 8]"))

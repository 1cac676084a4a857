# SPDX-License-Identifier: Apache-2.0
"""Numbers of whole iterations: agreement with PyTorch, batched prediction, data, and that it learns."""

import numpy as np
import pytest

from configs.errors import InputError, ShapeError
from configs.model_file import load_model
from configs.values import replace
from shared.agreement import Difference, compare
from shared.initial_values import initial_values
from shared.oracle_torch import evaluate_torch
from trainlib.references.reference import accuracy, evaluate, predict
from trainlib.training.phases import build_training_graph, initial_weights
from trainlib.training.training_data import digits_split, one_hot, sample_order, sample_stream


def train(name, iterations, seed):
    spec = load_model(name)
    graph = build_training_graph(spec)
    weights = initial_weights(graph, seed)
    stream = sample_stream(graph, spec, seed)
    losses = []
    for _ in range(iterations):
        result = evaluate(graph, {**next(stream), **weights})
        weights = {weight: result[f"{weight}_updated"] for weight in graph.weights}
        losses.append(float(result[graph.loss][0]))
    return graph, weights, losses


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", ["digits-cnn", "tutorial-cnn"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ten_iterations_agree_with_pytorch_in_every_tensor(name, dtype):
    spec = load_model(name)
    graph = build_training_graph(spec)
    stream = sample_stream(graph, spec, seed=3)
    weights = initial_weights(graph, seed=3)
    for _ in range(10):
        values = {**next(stream), **weights}
        ours = evaluate(graph, values)
        truth = evaluate_torch(graph, values, dtype)
        worst = {key: item.max_rel_error for key, item in compare(ours, truth).items()}
        assert set(worst) == set(graph.tensors)
        assert max(worst.values()) <= 1e-5, worst
        weights = {weight: ours[f"{weight}_updated"] for weight in graph.weights}


@pytest.mark.needs_torch
def test_confident_network_agrees_too():
    """Where softmax - target cancels almost entirely, fp32 PyTorch loses digits; we must not."""
    graph, weights, _ = train("digits-cnn", 1500, seed=0)
    split = digits_split()
    losses = []
    for index in range(40):
        label = one_hot(int(split.train_labels[index]), (10,))
        values = {graph.input: split.train_inputs[index][None], graph.label: label[None], **weights}
        ours = evaluate(graph, values)
        losses.append(float(ours[graph.loss][0]))
        differences = compare(ours, evaluate_torch(graph, values))
        assert max(item.max_rel_error for item in differences.values()) <= 1e-5
    assert min(losses) < 1e-3


def test_gradient_is_the_slope_of_the_loss():
    """An oracle that needs no PyTorch: move the weights along the gradient and see the loss follow."""
    spec = load_model("tutorial-cnn")
    graph = build_training_graph(spec)
    values = initial_values(graph, spec, seed=0)
    result = evaluate(graph, values)
    for weight in graph.weights:
        gradient = result[graph.gradients[weight]]
        step = np.float32(1e-3) * gradient / np.linalg.norm(gradient)
        above = evaluate(graph, {**values, weight: values[weight] + step})[graph.loss][0]
        below = evaluate(graph, {**values, weight: values[weight] - step})[graph.loss][0]
        slope = float(above - below) / 2e-3
        assert slope == pytest.approx(float(np.linalg.norm(gradient)), rel=0.02)


@pytest.mark.slow  # as the simulated SoC does in tests/pulptrain/running/test_run.py
def test_two_epochs_of_digits_reach_ninety_percent():
    graph, weights, losses = train("digits-cnn", 3000, seed=0)
    split = digits_split()
    assert np.mean(losses[-300:]) < 0.25 * np.mean(losses[:100])
    assert accuracy(graph, weights, split.test_inputs, split.test_labels) >= 0.90


def test_batched_prediction_is_the_forward_of_each_image():
    spec = load_model("digits-cnn")
    graph = build_training_graph(spec)
    weights = initial_weights(graph, seed=1)
    images = digits_split().test_inputs
    logits = predict(graph, weights, images)
    assert logits.shape == (297, 10)
    for index in (0, 100, 296):
        values = {graph.input: images[index][None], graph.label: one_hot(0, (1, 10)), **weights}
        single = evaluate(graph, values)[graph.output]
        np.testing.assert_allclose(logits[index], single[0], rtol=1e-5, atol=1e-6)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    spec = load_model("tutorial-cnn")
    graph = build_training_graph(spec)
    first, again, other = (initial_values(graph, spec, seed) for seed in (5, 5, 6))
    for name in first:
        assert first[name].tobytes() == again[name].tobytes()
        assert first[name].dtype == np.float32
        assert not np.array_equal(first[name], other[name])


def test_initial_weights_are_uniform_within_the_he_limit():
    weights = initial_weights(build_training_graph(load_model("tutorial-cnn")), seed=0)
    limit = (6 / 576) ** 0.5
    assert np.abs(weights["fc.weight"]).max() <= limit
    assert weights["fc.weight"].std() == pytest.approx(limit / 3**0.5, rel=0.02)


def test_digits_split_is_a_partition_with_pixels_from_0_to_1():
    split = digits_split()
    assert split.train_inputs.shape == (1500, 1, 8, 8)
    assert split.test_inputs.shape == (297, 1, 8, 8)
    assert split.train_inputs.dtype == np.float32
    assert (split.train_inputs.min(), split.train_inputs.max()) == (0, 1)
    assert len(split.train_labels) + len(split.test_labels) == 1797
    assert set(split.test_labels) == set(range(10))


def test_each_epoch_visits_every_sample_once_in_an_order_of_its_own():
    spec = load_model("digits-cnn")
    graph = build_training_graph(spec)
    stream = sample_stream(graph, spec, seed=0)
    labels = np.array([np.argmax(next(stream)["label"]) for _ in range(3000)])
    expected = np.bincount(digits_split().train_labels)
    assert np.array_equal(np.bincount(labels[:1500]), expected)
    assert np.array_equal(np.bincount(labels[1500:]), expected)
    assert not np.array_equal(labels[:1500], labels[1500:])
    assert sorted(sample_order(7, seed=1, epoch=4)) == list(range(7))


def test_network_that_does_not_take_the_digits():
    spec = load_model("digits-cnn")
    few = replace(spec.layers[-1], attributes={"out_features": 4})
    wrong = replace(spec, layers=(*spec.layers[:-1], few))
    with pytest.raises(ShapeError, match="10 classes"):
        sample_stream(build_training_graph(wrong), wrong, seed=0)
    wide = replace(spec, input_shape=(1, 9, 9))
    with pytest.raises(ShapeError, match="1x8x8"):
        sample_stream(build_training_graph(wide), wide, seed=0)


def test_missing_and_misshapen_values_are_refused():
    spec = load_model("tutorial-cnn")
    graph = build_training_graph(spec)
    values = initial_values(graph, spec, seed=0)
    with pytest.raises(InputError, match=r"tensor 'fc\.weight' has no value"):
        evaluate(graph, {name: array for name, array in values.items() if name != "fc.weight"})
    with pytest.raises(InputError, match="shape"):
        evaluate(graph, {**values, graph.label: np.zeros(3, np.float32)})


def test_nan_is_reported_with_the_op_that_would_read_it():
    spec = load_model("tutorial-cnn")
    graph = build_training_graph(spec)
    values = initial_values(graph, spec, seed=0)
    values["fc.weight"][3, 5] = np.nan
    with pytest.raises(InputError, match=r"op fc\.FW reads tensor 'fc\.weight', which holds NaN") as caught:
        evaluate(graph, values)
    assert caught.value.where == "fc.FW"


def test_difference_is_relative_to_the_largest_true_value():
    truth = {"a": np.array([4.0, -8.0]), "zero": np.zeros(2)}
    ours = {"a": np.array([4.0, -8.4]), "zero": np.zeros(2)}
    result = compare(ours, truth)
    assert result["a"].max_abs_error == pytest.approx(0.4)
    assert result["a"].max_rel_error == pytest.approx(0.05)
    assert result["zero"] == Difference(0.0, 0.0)
    poisoned = compare({"a": np.array([4.0, np.nan])}, truth, ["a"])
    assert poisoned["a"].max_rel_error == float("inf")
    assert compare({"zero": np.array([0.0, 1e-9])}, truth, ["zero"])["zero"].max_rel_error == float("inf")
    with pytest.raises(InputError, match="'a' is missing"):
        compare({}, truth)

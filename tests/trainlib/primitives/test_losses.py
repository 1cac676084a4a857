# SPDX-License-Identifier: Apache-2.0
"""Losses: closed forms, ties, labels out of range, and what the published losses get wrong."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

from configs.errors import InputError
from pulptrain.running.primitive_run import run_primitive
from shared.primitive_harness import CODEGEN, run_op
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput, LossPrimitive
from trainlib.references.reference import evaluate
from trainlib.registry import PRIMITIVES, lowering_of
from trainlib.training.phases import build_loss_graph
from trainlib.training.single import single


def both_ways(name: str, options: dict, y, label):
    """(loss, dy), the same by the reference and by the tile."""
    y = np.asarray(y, np.float32)
    graph, _ = build_loss_graph(name, options, y.shape[1:], batch=len(y))
    values = {"y": y, "label": np.asarray(label).astype(graph.tensors["label"].dtype)}
    known = evaluate(graph, values)
    results, _ = run_op(graph.ops[0], graph.tensors, values, {}, KernelChoice("", CODEGEN))
    for role in ("loss", "y.grad"):
        np.testing.assert_allclose(results[role], known[role], rtol=1e-6, atol=1e-7)
    return float(known["loss"][0]), known["y.grad"]


def test_l1_has_no_gradient_where_output_and_target_agree() -> None:
    loss, gradient = both_ways("l1", {}, [[1, 2, 3, 4]], [[1, 4, 2, 4]])
    assert loss == 0.75
    assert gradient.tolist() == [[0, -0.25, 0.25, 0]]


def test_berhu_is_absolute_below_its_limit_and_quadratic_above() -> None:
    """Errors 10, 1, -4, 0; c = 0.2 · 10 = 2: (100 + 4)/4 + 1 + (16 + 4)/4 over four elements."""
    loss, gradient = both_ways("berhu", {}, [[10, 1, -4, 0]], [[0, 0, 0, 0]])
    assert loss == pytest.approx((26 + 1 + 5) / 4)
    np.testing.assert_allclose(gradient, [[10 / 8, 1 / 4, -4 / 8, 0]], rtol=1e-6)


def test_defect_berhu_is_continuous_at_its_limit() -> None:
    """The published (e² - c²) / 2c falls from c to 0 where |e| passes c; the paper's sum does not."""
    around = [
        both_ways("berhu", {"alpha": 0.5}, [[8, error]], [[0, 0]])[0] for error in (3.9999, 4.0, 4.0001)
    ]
    assert max(around) - min(around) < 2e-4


def test_berhu_of_a_perfect_output_is_zero_and_not_nan() -> None:
    loss, gradient = both_ways("berhu", {}, [[1, 2], [3, 4]], [[1, 2], [3, 4]])
    assert loss == 0
    assert gradient.tolist() == [[0, 0], [0, 0]]


def test_berhu_takes_its_limit_from_the_whole_batch() -> None:
    loss, _ = both_ways("berhu", {"alpha": 0.5}, [[8, 0], [1, 0]], [[0, 0], [0, 0]])
    assert loss == pytest.approx(((64 + 16) / 8 + 1) / 4)


@pytest.mark.parametrize("label", [-1, 3, 200])
def test_a_class_number_out_of_range_is_refused_by_reference_and_tile(label: int) -> None:
    graph, labels = build_loss_graph("cross_entropy", {"labels": "hard"}, (3,), batch=2)
    assert labels is not None
    assert labels.classes == 3
    values = {"y": np.zeros((2, 3), np.float32), "label": np.array([1, label], np.int32)}
    with pytest.raises(InputError, match=f"label {label} is not a class: classes are 0 to 2") as caught:
        evaluate(graph, values)
    assert caught.value.where == "cross_entropy.LOSS"
    task = lowering_of(graph.ops[0]).tile(graph.ops[0], graph.tensors, {}, KernelChoice("", CODEGEN))
    wrong = next(call for call in task.calls if "label[1:2]" in call.reads)
    arrays = [values["y"][1:], values["label"][1:], np.zeros(1, np.float32)]
    with pytest.raises(InputError, match="is not a class"):
        wrong.function(arrays)


def test_a_negative_share_of_a_class_is_refused() -> None:
    with pytest.raises(InputError, match="class probabilities of 0 or more"):
        both_ways("cross_entropy", {}, [[1, 2]], [[1.5, -0.5]])


def test_hard_labels_are_soft_ones_with_all_on_one_class() -> None:
    logits = [[2, -1, 0.5], [0, 30, 1]]
    hard = both_ways("cross_entropy", {"labels": "hard"}, logits, [2, 0])
    soft = both_ways("cross_entropy", {}, logits, [[0, 0, 1], [1, 0, 0]])
    assert hard[0] == pytest.approx(soft[0])
    np.testing.assert_allclose(hard[1], soft[1], rtol=1e-6)


def test_defect_cross_entropy_of_large_logits_does_not_overflow() -> None:
    loss, gradient = both_ways("cross_entropy", {"labels": "hard"}, [[1000, -1000]], [1])
    assert loss == 2000
    assert gradient.tolist() == [[1, -1]]


@pytest.mark.parametrize("name", ["l1", "berhu", "mse"])
def test_nan_is_reported_with_its_op(name: str) -> None:
    with pytest.raises(InputError, match=f"op {name}.LOSS reads tensor .*, which holds NaN"):
        both_ways(name, {}, [[np.nan, 1]], [[0, 0]])


@pytest.mark.parametrize(("name", "options"), [("l1", {}), ("berhu", {}), ("mse", {}), ("cross_entropy", {})])
def test_the_published_size_runs_on_the_master_alone(name: str, options: dict) -> None:
    graph, _ = build_loss_graph(name, options, (10,))
    task = lowering_of(graph.ops[0]).tile(graph.ops[0], graph.tensors, {}, KernelChoice("", CODEGEN))
    assert [call.kernel for call in task.calls] == [f"{name}_fw", f"{name}_bw"]
    assert not any(call.fork for call in task.calls)


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_equal_logits_share_the_probability_however_large_they_are(labels: str) -> None:
    label = np.array([0], np.int32) if labels == "hard" else np.array([[1.0, 0, 0]], np.float32)
    values = {"y": np.array([[8e18, 8e18, -8e18]], np.float32), "label": label}
    made = run_primitive("cross_entropy", "loss", [DrawnInput((3,))], {"labels": labels}, values=values)
    assert made.summary["functional"]["passed"]


@pytest.mark.needs_torch
@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
@pytest.mark.parametrize("name", [name for name, one in PRIMITIVES.items() if isinstance(one, LossPrimitive)])
def test_value_and_gradient_are_those_of_pytorch_in_every_reduction(name: str, reduction: str) -> None:
    """With a weight, and with every example's options; PyTorch in float64."""
    import torch

    theirs = import_module("truth.steps").LOSSES[name]
    for example in PRIMITIVES[name].examples:
        options = {**example.attributes, "reduction": reduction, "weight": 0.7}
        alone = single(name, options, example.cases, batch=3)
        found = evaluate(alone.graph, alone.values)
        y = torch.tensor(alone.values["y"], dtype=torch.float64, requires_grad=True)
        label = torch.tensor(alone.values["label"]) if "label" in alone.values else None
        label = label.double() if label is not None and label.is_floating_point() else label
        value = theirs(y, label, **options)
        value.backward()
        assert found["loss"] == pytest.approx(value.item(), rel=1e-6), example
        truth = y.grad.numpy()
        np.testing.assert_allclose(found["y.grad"], truth, rtol=1e-6, atol=1e-6 * abs(truth).max())


@pytest.mark.parametrize("labels", [[0, 2], [[[1, 0], [2, 1]], [[0, 0], [1, 2]]]])
def test_nll_of_log_probabilities_is_cross_entropy(labels: list) -> None:
    labels = np.array(labels)
    logits = np.random.default_rng(1).normal(size=(2, 3, *labels.shape[1:]))
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    options = {"class_weights": [1.0, 2.0, 0.5], "ignore_index": 1}
    assert both_ways("nll", options, logs, labels)[0] == pytest.approx(
        both_ways("cross_entropy", {"labels": "hard", **options}, logits, labels)[0], rel=1e-6
    )


def test_a_mean_over_no_label_is_refused_and_its_sum_is_zero() -> None:
    with pytest.raises(InputError, match="the mean loss divides by 0"):
        both_ways("nll", {"ignore_index": 2}, [[1, 2, 3]], [2])
    loss, gradient = both_ways("nll", {"ignore_index": 2, "reduction": "sum"}, [[1, 2, 3]], [2])
    assert loss == 0
    assert not gradient.any()


@pytest.mark.parametrize(
    ("name", "label", "what"),
    [
        ("bce_with_logits", 1.5, "use labels of 0 to 1"),
        ("hinge_embedding", 0.0, "use labels of -1 or 1"),
        ("poisson_nll", -1.0, "use labels of 0 or more"),
    ],
)
def test_a_target_that_the_loss_is_not_of_is_refused(name: str, label: float, what: str) -> None:
    with pytest.raises(InputError, match=what):
        both_ways(name, {}, [[0.5]], [[label]])


def test_bce_of_what_is_no_probability_is_refused() -> None:
    with pytest.raises(InputError, match="needs probabilities from 0 to 1"):
        both_ways("bce", {}, [[1.5]], [[1]])


@pytest.mark.parametrize(("name", "label"), [("bce_with_logits", 0), ("soft_margin", -1)])
def test_large_logits_do_not_overflow(name: str, label: float) -> None:
    loss, gradient = both_ways(name, {}, [[1e4, -1e4]], [[label, label]])
    assert loss == pytest.approx(5e3)
    np.testing.assert_allclose(gradient, [[0.5, 0]], atol=1e-9)


def test_bce_at_its_bounds_is_clamped_as_in_pytorch() -> None:
    """Logarithms at -100, y (1 - y) at 1e-12."""
    loss, gradient = both_ways("bce", {}, [[0, 1]], [[1, 1]])
    assert loss == 50
    np.testing.assert_allclose(gradient, [[-0.5e12, 0]], rtol=1e-6)

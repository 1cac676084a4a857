# SPDX-License-Identifier: Apache-2.0
"""Losses: closed forms, ties, labels out of range, and what the published losses get wrong."""

from __future__ import annotations

import numpy as np
import pytest

from configs.errors import InputError
from pulptrain.running.primitive_run import run_primitive
from shared.primitive_harness import CODEGEN, run_op
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_loss_graph


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
    with pytest.raises(InputError, match=f"label {label} is no class: there are 3, 0 to 2") as caught:
        evaluate(graph, values)
    assert caught.value.where == "cross_entropy.LOSS"
    task = lowering_of(graph.ops[0]).tile(graph.ops[0], graph.tensors, {}, KernelChoice("", CODEGEN))
    wrong = next(call for call in task.calls if "label[1:2]" in call.reads)
    arrays = [values["y"][1:], values["label"][1:], np.zeros(1, np.float32)]
    with pytest.raises(InputError, match="is no class"):
        wrong.function(arrays)


def test_a_negative_share_of_a_class_is_refused() -> None:
    with pytest.raises(InputError, match="shares of classes are not negative"):
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
    with pytest.raises(InputError, match=f"op {name}.LOSS reads, holds NaN"):
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

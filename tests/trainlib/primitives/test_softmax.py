# SPDX-License-Identifier: Apache-2.0
"""Softmax: stable, its three exponentials told apart, the passes of the library, and its gradient."""

from __future__ import annotations

import numpy as np
import pytest

from shared.primitive_harness import CODEGEN
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_layer_graph

CHOICE = KernelChoice("", CODEGEN)
KINDS = ("exact", "schraudolph", "taylor")


def run(x, kind="exact", dy=None):
    graph = build_layer_graph("softmax", {"exponential": kind}, [DrawnInput(x.shape[1:])], batch=len(x))
    given = {"x": x.astype(np.float32), "softmax.out.grad": x.astype(np.float32) if dy is None else dy}
    return evaluate(graph, given)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_add_up_to_one_however_large_the_logits(kind) -> None:
    x = np.array([[1e4, -1e4, 9.99e3], [-3e4, -3e4, -3e4], [0, 1, 2]])
    with np.errstate(over="raise", invalid="raise"):
        y = run(x, kind)["softmax.out"]
    assert y.sum(axis=1) == pytest.approx(1, abs=1e-6)
    assert y[0, 0] > 0.999
    assert y[1] == pytest.approx(1 / 3)


def test_only_exact_is_exact_and_the_approximations_are_as_far_off_as_they_are_known_to_be() -> None:
    x = np.random.default_rng(5).uniform(-2, 2, (50, 8))
    truth = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    off = {kind: np.abs(run(x, kind)["softmax.out"] / truth - 1).max() for kind in ("exact", "schraudolph")}
    assert off["exact"] < 1e-5
    assert 0.01 < off["schraudolph"] < 0.061  # 3 % above, 3 % below
    taylor = np.abs(run(x, "taylor")["softmax.out"] - truth).max()
    assert 0.005 < taylor < 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_softmax_at_the_output_there_is(kind) -> None:
    generator = np.random.default_rng(1)
    x, dy = generator.uniform(-1, 1, (3, 6)), generator.uniform(-1, 1, (3, 6)).astype(np.float32)
    values = run(x, kind, dy)
    y = values["softmax.out"].astype(np.float64)
    jacobians = np.einsum("ri,ij->rij", y, np.eye(6)) - np.einsum("ri,rj->rij", y, y)
    assert values["x.grad"] == pytest.approx(np.einsum("rij,rj->ri", jacobians, dy), abs=1e-6)


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_of_equal_maxima_any_may_get_the_gradient_of_the_maximum(
    name,
) -> None:
    """The formula subtracts the maximum, whose gradient cancels.

    PyTorch shares it among all (amax) or gives it to one (max): both give its softmax's gradient, and ours.
    """
    import torch

    x = np.array([[2.0, 2.0, -1.0, 2.0], [0.0, 0.0, 0.0, 0.0], [5.0, 1.0, 5.0, 5.0]], np.float32)
    dy = np.random.default_rng(4).uniform(-1, 1, x.shape).astype(np.float32)
    graph = build_layer_graph(name, {}, [DrawnInput(x.shape[1:])], batch=len(x))
    ours = evaluate(graph, {"x": x, f"{name}.out.grad": dy})["x.grad"]

    def gradient(formula):
        leaf = torch.from_numpy(x).double().requires_grad_()
        formula(leaf).backward(torch.from_numpy(dy).double())
        return leaf.grad.numpy()

    def shifted(largest):
        def formula(leaf):
            below = leaf - largest(leaf)
            total = below.exp().sum(1, keepdim=True)
            return below - total.log() if name == "log_softmax" else below.exp() / total

        return formula

    for formula in (
        lambda leaf: getattr(torch, name)(leaf, 1),
        shifted(lambda leaf: leaf.amax(1, keepdim=True)),
        shifted(lambda leaf: leaf.max(1, keepdim=True).values),
    ):
        np.testing.assert_allclose(ours, gradient(formula), rtol=1e-6, atol=1e-7)


def test_the_exact_gradient_agrees_with_finite_differences() -> None:
    generator = np.random.default_rng(2)
    x, dy = generator.uniform(-2, 2, 5), generator.uniform(-1, 1, 5)

    def value(x):
        return dy @ (np.exp(x) / np.exp(x).sum())

    differences = [(value(x + step) - value(x - step)) / 2e-6 for step in 1e-6 * np.eye(5)]
    found = run(x[None], dy=dy[None].astype(np.float32))["x.grad"][0]
    assert found == pytest.approx(np.array(differences), abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "middle"), [("exact", "exp_sum_exact"), ("schraudolph", "exp_sum"), ("taylor", "exp_sum_taylor")]
)
def test_three_passes_forward_and_two_backward_each_with_a_fork(kind, middle) -> None:
    graph = build_layer_graph("softmax", {"exponential": kind}, [DrawnInput((4, 6))])
    forward, backward = graph.ops
    task = lowering_of(forward).tile(forward, graph.tensors, {"d0": (1, 3)}, CHOICE)
    assert [call.kernel for call in task.calls] == ["row_max", middle, "row_div"]
    assert [(item.name, item.shape) for item in task.scratch] == [("maxima", (2,)), ("sums", (2,))]
    task = lowering_of(backward).tile(backward, graph.tensors, {"d0": (0, 4)}, CHOICE)
    assert [call.kernel for call in task.calls] == ["softmax_bw_sum", "softmax_bw_scale"]
    assert all(call.fork for call in task.calls)


def test_the_reduced_axis_is_never_cut() -> None:
    graph = build_layer_graph("softmax", {}, [DrawnInput((3, 4, 5))], batch=2)
    for op in graph.ops:
        assert lowering_of(op).extents(op, graph.tensors) == {"n": 2, "d0": 3, "d1": 4}

# SPDX-License-Identifier: Apache-2.0
"""Mean, interpolation and dropout: each known defect of PULP-TrainLib's, and the right behaviour."""

from __future__ import annotations

import numpy as np
import pytest

from arch.spec.isa import Op as Code
from shared.primitive_harness import CODEGEN, run_op
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput
from trainlib.primitives.pooling.interpolation import taps
from trainlib.references.reference import evaluate, predict
from trainlib.registry import lowering_of
from trainlib.training.phases import build_layer_graph
from trainlib.training.training_data import random_tensors

CHOICE = KernelChoice("", CODEGEN)


def run(name, options, x, dy=None):
    graph = build_layer_graph(name, options, [DrawnInput(x.shape[1:])], batch=len(x))
    seed = f"{name}.out.grad"
    values = {"x": x.astype(np.float32), **random_tensors(graph, 0, 0)}
    values[seed] = np.ones(graph.tensors[seed].shape, np.float32) if dy is None else dy
    return graph, evaluate(graph, values)


# reduce_mean


def test_a_long_reduced_axis_is_summed_once_and_not_once_per_core() -> None:
    """(2, 12) over the axis of 12 with 8 cores, where the library gives eight times the sum and more."""
    x = np.random.default_rng(0).uniform(-1, 1, (1, 2, 12))
    graph, values = run("reduce_mean", {"axes": [1]}, x)
    assert values["reduce_mean.out"] == pytest.approx(x.mean(axis=2), abs=1e-6)
    forward = graph.ops[0]
    (call,) = lowering_of(forward).tile(forward, graph.tensors, {"d0": (0, 2)}, CHOICE).calls
    team = call.work(8, {"x": 0, "y": 0x1000})
    stores = [node.stream for core in team.cores for node in flat(core.body) if node.op == Code.STORE]
    assert len(stores) == 2  # one per kept element, over all cores


def flat(nodes):
    """Instructions with an address, as often as they are executed."""
    for node in nodes:
        if hasattr(node, "body"):
            for _ in range(node.trips):
                yield from flat(node.body)
        elif node.stream >= 0:
            yield node


def test_the_mean_does_not_depend_on_what_was_in_the_output_before() -> None:
    """The library adds into its output. Buffers of the harness begin as NaN."""
    graph, values = run("reduce_mean", {"axes": [0]}, np.ones((1, 6, 3)))
    results, _ = run_op(graph.ops[0], graph.tensors, values, {"d1": 3}, CHOICE)
    assert results["reduce_mean.out"].tolist() == [[1, 1, 1]]


def test_reduce_mean_of_the_library_s_own_test() -> None:
    x = np.random.default_rng(1).uniform(0, 1, (1, 7, 800, 2))
    _, values = run("reduce_mean", {"axes": [1]}, x)
    assert values["reduce_mean.out"].shape == (1, 7, 2)
    assert values["reduce_mean.out"] == pytest.approx(x.mean(axis=2), rel=1e-5)
    assert values["x.grad"] == pytest.approx(np.full((1, 7, 800, 2), 1 / 800))


# interpolation


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("sizes", [((8, 8), (48, 48)), ((7, 5), (3, 4)), ((1, 6), (5, 1))])
def test_the_gradient_is_the_adjoint_and_not_an_interpolation(mode, sizes) -> None:
    (hi, wi), size = sizes
    generator = np.random.default_rng(2)
    x, dy = generator.uniform(-1, 1, (1, 2, hi, wi)), generator.uniform(-1, 1, (1, 2, *size))
    graph, values = run("interpolation", {"mode": mode, "size": list(size)}, x, dy.astype(np.float32))
    forward = np.sum(values["interpolation.out"].astype(np.float64) * dy)
    backward = np.sum(values["x.grad"].astype(np.float64) * x)
    assert forward == pytest.approx(backward, rel=1e-4, abs=1e-5)
    # Every output is a mean of inputs, so what comes back is all that went in.
    assert values["x.grad"].sum() == pytest.approx(dy.sum(), abs=1e-4)
    results, _ = run_op(graph.ops[1], graph.tensors, values, {"c": 1, "h": 2}, CHOICE)
    assert results["x.grad"] == pytest.approx(values["x.grad"], abs=1e-5)


def test_nearest_8x8_to_48x48_repeats_each_pixel_six_by_six() -> None:
    x = np.arange(64.0).reshape(1, 1, 8, 8)
    _, values = run("interpolation", {"size": [48, 48]}, x)
    assert np.array_equal(values["interpolation.out"][0, 0], np.kron(x[0, 0], np.ones((6, 6))))
    assert np.array_equal(values["x.grad"], np.full((1, 1, 8, 8), 36))


def test_a_shrinking_image_does_not_begin_at_its_first_pixel() -> None:
    """The library puts output 0 on input 0; the centre of the first of two halves of 4 is between 0 and 1."""
    _, values = run("interpolation", {"mode": "bilinear", "size": [1, 2]}, np.arange(4.0).reshape(1, 1, 1, 4))
    assert values["interpolation.out"].ravel().tolist() == [0.5, 2.5]


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
def test_no_output_reads_beyond_the_image(mode) -> None:
    """The library does for an image of one row that grows."""
    for inputs in range(1, 12):
        for outputs in range(1, 30):
            low, high, weight = taps(mode, inputs, outputs)
            assert low.min() >= 0
            assert high.max() < inputs
            assert ((weight >= 0) & (weight < 1)).all()


# dropout


def mask(seed, iteration, p=0.23, size=10_000, dtype="fp32"):
    graph = build_layer_graph("dropout", {"p": p}, [DrawnInput((size,))], dtype=dtype)
    (drawn,) = random_tensors(graph, seed, iteration).values()
    return drawn.astype(np.float32)


def test_a_mask_is_the_same_for_the_same_seed_and_another_in_every_iteration() -> None:
    assert np.array_equal(mask(0, 0), mask(0, 0))
    assert not np.array_equal(mask(0, 0), mask(0, 1))
    assert not np.array_equal(mask(0, 0), mask(1, 0))


def test_a_mask_drops_its_share_and_neighbours_are_independent() -> None:
    """The library seeds its generator anew for every element, with neighbouring seeds."""
    kept = mask(0, 0)[0]
    deviation = (0.23 * 0.77 / kept.size) ** 0.5
    assert abs(kept.mean() - 0.77) < 4 * deviation
    correlation = np.corrcoef(kept[:-1], kept[1:])[0, 1]
    assert abs(correlation) < 4 / kept.size**0.5


def test_what_is_kept_is_scaled_so_that_the_mean_stays_and_the_gradient_has_the_same_mask() -> None:
    x = np.full((1, 10_000), 2.0)
    _, values = run("dropout", {"p": 0.5}, x)
    assert set(np.unique(values["dropout.out"])) == {0, 4}
    assert np.array_equal(values["x.grad"] > 0, values["dropout.out"] > 0)
    assert values["dropout.out"].mean() == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_16_bit_mask_is_exact_so_only_the_product_is_rounded(dtype) -> None:
    """1/0.77 is not a bf16 number; a mask that held it would shift the mean by 0.14 %."""
    assert set(np.unique(mask(0, 0, dtype=dtype))) == {0, 1}


def test_prediction_drops_nothing_and_scales_nothing() -> None:
    graph = build_layer_graph("dropout", {"p": 0.9}, [DrawnInput((5,))])
    images = np.arange(15, dtype=np.float32).reshape(3, 5)
    assert np.array_equal(predict(graph, {}, images), images)

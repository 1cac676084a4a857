# SPDX-License-Identifier: Apache-2.0
"""Pooling: windows, ties, overlaps and padding, and what the published loops get wrong."""

from __future__ import annotations

import numpy as np
import pytest

from shared.primitive_harness import CODEGEN, Case, check_reference, check_tiles, run_op
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput, Example
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_layer_graph


def evaluated(name: str, options: dict, image: np.ndarray, dy: np.ndarray | None = None):
    """(graph, all values) of a pooling layer on one image [c, h, w]; the gradient of y is `dy` or ones."""
    graph = build_layer_graph(name, options, [DrawnInput(image.shape)])
    seed = f"{name}.out.grad"
    shape = graph.tensors[seed].shape
    gradient = np.ones(shape, np.float32) if dy is None else dy.reshape(shape).astype(np.float32)
    return graph, evaluate(graph, {"x": image[None].astype(np.float32), seed: gradient})


def by_tiles(graph, known, step: str, sizes: dict[str, int]):
    op = next(op for op in graph.ops if op.step == step)
    extents = lowering_of(op).extents(op, graph.tensors)
    return run_op(op, graph.tensors, known, {**extents, **sizes}, KernelChoice("", CODEGEN))


def test_defect_the_width_of_a_max_pooling_follows_its_own_stride() -> None:
    """The published loop uses the vertical stride for the width too: it would give 3 columns here."""
    image = np.arange(24).reshape(1, 4, 6)
    graph, known = evaluated("max_pool2d", {"kernel": 2, "stride": [2, 1]}, image)
    assert known[graph.output][0, 0].tolist() == [[7, 8, 9, 10, 11], [19, 20, 21, 22, 23]]
    results, _ = by_tiles(graph, known, "FW", {"ho": 1})
    np.testing.assert_array_equal(results[graph.output], known[graph.output])
    graph, known = evaluated("max_pool2d", {"kernel": 2, "stride": [1, 2]}, image)
    assert known[graph.output][0, 0].tolist() == [[7, 9, 11], [13, 15, 17], [19, 21, 23]]
    results, _ = by_tiles(graph, known, "FW", {"ho": 2})
    np.testing.assert_array_equal(results[graph.output], known[graph.output])


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_the_first_of_equal_maxima_takes_the_gradient(rows: int) -> None:
    graph, known = evaluated("max_pool2d", {"kernel": 3}, np.full((1, 3, 3), -2.0))
    assert known["max_pool2d.argmax"].ravel().tolist() == [0]
    results, _ = by_tiles(graph, known, "FW", {})
    assert results["max_pool2d.argmax"].ravel().tolist() == [0]
    results, _ = by_tiles(graph, known, "IG", {"hi": rows})
    expected = np.zeros((1, 1, 3, 3))
    expected[0, 0, 0, 0] = 1
    np.testing.assert_array_equal(results["x.grad"], expected)


def test_gradients_of_overlapping_windows_add_up() -> None:
    """The middle of 3x3 is the maximum of all four 2x2 windows, and in each of their means."""
    image = np.array([[[0, 1, 0], [1, 5, 1], [0, 1, 0]]])
    dy = np.array([1, 2, 4, 8])
    _, known = evaluated("max_pool2d", {"kernel": 2, "stride": 1}, image, dy)
    assert known["x.grad"][0, 0].tolist() == [[0, 0, 0], [0, 15, 0], [0, 0, 0]]
    _, known = evaluated("avg_pool2d", {"kernel": 2, "stride": 1}, image, dy)
    assert known["x.grad"][0, 0].tolist() == [[0.25, 0.75, 0.5], [1.25, 3.75, 2.5], [1, 3, 2]]


def test_padding_is_never_a_maximum_but_counts_in_a_mean_unless_told() -> None:
    image = np.full((1, 2, 2), -3.0)
    _, known = evaluated("max_pool2d", {"kernel": 2, "stride": 2, "padding": 1}, image)
    assert known["max_pool2d.out"].ravel().tolist() == [-3] * 4
    assert known["max_pool2d.argmax"].ravel().tolist() == [16 + 1, 16, 1, 0]
    _, known = evaluated("avg_pool2d", {"kernel": 2, "stride": 2, "padding": 1}, image)
    assert known["avg_pool2d.out"].ravel().tolist() == [-0.75] * 4
    options = {"kernel": 2, "stride": 2, "padding": 1, "count_include_pad": False}
    _, known = evaluated("avg_pool2d", options, image)
    assert known["avg_pool2d.out"].ravel().tolist() == [-3] * 4


def test_the_mean_of_every_channel() -> None:
    image = np.arange(12).reshape(2, 2, 3)
    graph, known = evaluated("global_avg_pool", {}, image, np.array([6, 12]))
    assert graph.tensors[graph.output].shape == (1, 2, 1, 1)
    assert known[graph.output].ravel().tolist() == [2.5, 8.5]
    assert known["x.grad"][0].tolist() == [[[1] * 3] * 2, [[2] * 3] * 2]


def test_rows_no_window_reaches_get_a_gradient_of_zero() -> None:
    """Kernel 1, stride 3: tiles of rows 1 and 2 fetch a row of dy only to have one."""
    graph, known = evaluated("avg_pool2d", {"kernel": 1, "stride": 3}, np.ones((1, 4, 4)))
    results, tiles = by_tiles(graph, known, "IG", {"hi": 1})
    assert tiles == 4
    assert results["x.grad"][0, 0].tolist() == [[1, 0, 0, 1], [0] * 4, [0] * 4, [1, 0, 0, 1]]


def test_nan_is_a_maximum_and_not_hidden() -> None:
    graph = build_layer_graph("max_pool2d", {"kernel": 2}, [DrawnInput((1, 2, 2))])
    image = np.array([[[[1, np.nan], [3, 2]]]], np.float32)
    results, _ = run_op(
        graph.ops[0], graph.tensors, {"x": image}, {"c": 1, "ho": 1}, KernelChoice("", CODEGEN)
    )
    assert np.isnan(results[graph.output]).all()


@pytest.mark.parametrize("name", ["avg_pool2d", "max_pool2d"])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_the_published_size(name: str, dtype: str) -> None:
    case = Case(name, 0, Example({"kernel": 6, "stride": 1}, ((1, 6, 6),)), dtype, 1)
    check_reference(case)
    check_tiles(case)

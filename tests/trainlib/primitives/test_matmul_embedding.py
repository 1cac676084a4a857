# SPDX-License-Identifier: Apache-2.0
"""Broadcast matmul and embedding."""

from __future__ import annotations

import numpy as np
import pytest

from configs.errors import InputError
from shared.finite_differences import check_gradients
from shared.primitive_harness import CODEGEN, Case, build, check_reference, check_tiles, run_op
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput, Example
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_layer_graph

PUBLISHED = ((2, 1, 3, 2, 5), (5, 1, 5, 3))
"""Shapes of PULP-TrainLib's test of the broadcast matmul."""


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_published_broadcast_shapes(dtype: str) -> None:
    case = Case("matmul", 0, Example({}, PUBLISHED), dtype, 1)
    check_reference(case)
    assert check_tiles(case) > 1
    graph, values = build(case)
    result = evaluate(graph, values)[graph.output].astype(np.float32)
    expected = np.matmul(values["x"][0].astype(np.float32), values["x1"][0].astype(np.float32))
    assert result.shape == (1, 2, 5, 3, 2, 3)
    np.testing.assert_allclose(result[0], expected, rtol=1e-2 if dtype != "fp32" else 1e-6, atol=1e-2)


def test_one_fork_per_output_matrix_and_the_kernel_that_was_asked_for() -> None:
    """With OPTIMIZE the published kernel number is not initialised. Here it is the caller's."""
    graph = build_layer_graph("matmul", {}, [DrawnInput(shape) for shape in PUBLISHED])
    op = graph.ops[0]
    lowering = lowering_of(op)
    ranges = {name: (0, size) for name, size in lowering.extents(op, graph.tensors).items()}
    for kernel in ("mm", "mm_M", "mm_unroll_2x2"):
        calls = lowering.tile(op, graph.tensors, ranges, KernelChoice(kernel, CODEGEN)).calls
        assert [call.kernel for call in calls] == [kernel] * (2 * 5 * 3)


@pytest.mark.parametrize("shapes", [((2, 1, 2, 3), (4, 3, 2)), ((3,), (2, 3, 2)), ((2, 3), (3,))])
def test_matmul_gradients_are_the_slopes_of_the_loss(shapes) -> None:
    found = check_gradients("matmul", {}, [DrawnInput(shape) for shape in shapes])
    assert found == ["x.grad", "x1.grad"]


def embedding(numbers: list[int], vocabulary: int = 5, **options):
    example = Example(
        {"vocabulary": vocabulary, "features": 3, **options}, (DrawnInput((len(numbers),), "int32"),)
    )
    graph, values = build(Case("embedding", 0, example, "fp32", 1))
    values["x"] = np.array([numbers], np.int32)
    return graph, values


def test_gradients_of_equal_numbers_add_up_and_rows_nobody_used_get_zero() -> None:
    graph, values = embedding([1, 3, 1, 1])
    known = evaluate(graph, values)
    dy, dw = known["embedding.out.grad"][0], known["embedding.weight.grad"]
    np.testing.assert_allclose(dw[1], dy[0] + dy[2] + dy[3], rtol=1e-6)
    np.testing.assert_allclose(dw[3], dy[1])
    assert not dw[[0, 2, 4]].any()


def test_the_row_of_the_padding_number_is_not_trained() -> None:
    graph, values = embedding([1, 3, 1], padding_id=1)
    dw = evaluate(graph, values)["embedding.weight.grad"]
    assert not dw[1].any()
    assert dw[3].any()


@pytest.mark.parametrize("wrong", [5, -1])
def test_numbers_outside_the_table_are_refused_by_reference_and_tiles(wrong: int) -> None:
    graph, values = embedding([1, wrong, 2])
    told = f"the input holds the number {wrong}, but the vocabulary has 5 entries"
    with pytest.raises(InputError, match=told):
        evaluate(graph, values)
    for op in graph.ops:
        lowering = lowering_of(op)
        inputs = {**values, "embedding.out.grad": np.zeros((1, 3, 3), np.float32)}
        sizes = dict(lowering.extents(op, graph.tensors))
        with pytest.raises(InputError, match=r"embedding\."):
            run_op(op, graph.tensors, inputs, sizes, KernelChoice("", CODEGEN))


def test_kernel_accumulation_rounds_every_addition_of_a_row() -> None:
    """256 gradients of 1/256 in bf16 stop growing the sum at 1; in fp32 accumulation nothing is lost."""
    count = 1024
    example = Example({"vocabulary": 2, "features": 1}, (DrawnInput((count,), "int32"),))
    graph, values = build(Case("embedding", 0, example, "bf16", 1))
    values["x"] = np.zeros((1, count), np.int32)
    op = next(op for op in graph.ops if op.step == "WG")
    gradient = np.full((1, count, 1), 2.0**-8).astype(values["embedding.weight"].dtype)
    inputs = {"x": values["x"], "embedding.out.grad": gradient}
    found = {}
    for accumulation in ("reference", "kernel"):
        choice = KernelChoice("", CODEGEN, accumulation)
        sizes = dict(lowering_of(op).extents(op, graph.tensors))
        results, _ = run_op(op, graph.tensors, inputs, sizes, choice)
        found[accumulation] = float(results["embedding.weight.grad"][0, 0])
    assert found == {"reference": 4.0, "kernel": 1.0}

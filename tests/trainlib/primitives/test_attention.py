# SPDX-License-Identifier: Apache-2.0
"""Multi-head self-attention: gradients, the published passes, and what the published code gets wrong."""

from __future__ import annotations

from collections import Counter
from math import prod

import numpy as np
import pytest

from configs.dtypes import BY_WORD
from shared.agreement import compare, graph_tolerance
from shared.finite_differences import check_gradients
from shared.oracle_torch import evaluate_torch
from shared.primitive_harness import CODEGEN, Case, build, check_tiles, run_op
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput, Example
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_layer_graph
from trainlib.training.single import single


def calls_of(graph, step: str, ranges=None):
    op = next(op for op in graph.ops if op.step == step)
    lowering = lowering_of(op)
    whole = {name: (0, size) for name, size in lowering.extents(op, graph.tensors).items()}
    choice = KernelChoice(lowering.default_kernel(op), CODEGEN)
    return lowering.tile(op, graph.tensors, {**whole, **(ranges or {})}, choice).calls


@pytest.mark.parametrize(
    "options", [{"heads": 2}, {"heads": 3, "features": 6, "bias": True}, {"heads": 1, "bias": True}]
)
def test_gradients_are_the_slopes_of_the_loss(options) -> None:
    found = check_gradients("mhsa", options, [DrawnInput((5, 4))])
    assert len(found) == 5 + 3 * bool(options.get("bias"))


def test_products_are_the_published_ones_and_transposes_only_where_a_layout_needs_them() -> None:
    """Per head of FW: transpose q, scores, v times the probabilities. Softmax takes all rows at once."""
    graph = build_layer_graph("mhsa", {"heads": 5, "features": 160}, [DrawnInput((10, 10))])
    kernels = {op.step: [call.kernel for call in calls_of(graph, op.step)] for op in graph.ops}
    assert kernels["FW_Q"] == kernels["FW_K"] == kernels["FW_V"] == ["mm"]
    assert kernels["FW_SCORES"] == [*["transpose_matrix", "mm"] * 5, "scale_by_number"]
    assert kernels["FW_SOFTMAX"] == ["row_max", "exp_sum_exact", "row_div"]
    assert kernels["FW_CONTEXT"] == ["mm"] * 5
    assert kernels["FW"] == ["mm", "transpose_matrix"]
    macs = {op.step: [call.macs for call in calls_of(graph, op.step) if call.macs] for op in graph.ops}
    assert macs["FW_Q"] == macs["FW"] == [160 * 10 * 10]
    assert macs["FW_SCORES"] == macs["FW_CONTEXT"] == [10 * 32 * 10] * 5
    backward = Counter(kernel for step in ("IG_V", "IG_SOFTMAX", "IG_SCORES") for kernel in kernels[step])
    assert backward == {"mm": 10, "transpose_matrix": 5} | dict.fromkeys(
        ("softmax_bw_sum", "softmax_bw_scale", "scale_by_number"), 1
    )


def test_rows_of_the_probabilities_sum_to_one_where_the_published_exponential_is_three_percent_off() -> None:
    graph, values = build(Case("mhsa", 0, Example({"heads": 2}, ((9, 6),)), "fp32", 2))
    known = evaluate(graph, values)
    np.testing.assert_allclose(known["mhsa.p"].sum(axis=-1), 1, rtol=0, atol=1e-6)
    q, k = (known[f"mhsa.{name}"].reshape(2, 2, 3, 9).astype(np.float64) for name in "qk")
    scores = np.einsum("nhaq,nhak->nhqk", q, k) / np.sqrt(3)
    exact = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(known["mhsa.p"], exact, rtol=1e-5)


def test_published_input_gradient_adds_to_what_was_there_ours_writes() -> None:
    """There, dX must be zeroed by the caller. Here buffers hold NaN before, and dx does not."""
    graph, values = build(Case("mhsa", 0, Example({"heads": 2, "bias": True}, ((4, 6),)), "fp32", 2))
    known = evaluate(graph, values)
    op = next(op for op in graph.ops if op.step == "IG")
    results, tiles = run_op(
        op,
        graph.tensors,
        {name: known[name] for name in op.inputs},
        {"n": 1, "tokens": 4, "width": 4},
        KernelChoice("mm", CODEGEN),
    )
    assert tiles == 4
    np.testing.assert_allclose(results[op["dx"]], known[op["dx"]], rtol=0, atol=1e-5)


def test_the_parts_of_a_sum_over_keys_are_added_and_the_bias_counts_once() -> None:
    graph, values = build(Case("mhsa", 0, Example({"heads": 2, "bias": True}, ((6, 4),)), "fp32", 2))
    known = evaluate(graph, values)
    for step, sizes in {
        "FW_CONTEXT": {"n": 1, "heads": 1, "queries": 2, "keys": 4},
        "FW_K": {"n": 2, "features": 3, "tokens": 4, "width": 1},
        "FW": {"n": 1, "tokens": 5, "width": 2, "features": 3},
        "WG_O": {"n": 1, "width": 3, "features": 2, "tokens": 4},
    }.items():
        op = next(op for op in graph.ops if op.step == step)
        inputs = {name: known[name] for name in op.inputs}
        results, _ = run_op(op, graph.tensors, inputs, sizes, KernelChoice("mm", CODEGEN))
        for name, array in results.items():
            np.testing.assert_allclose(array, known[name], rtol=0, atol=1e-5, err_msg=f"{step} {name}")


L1_BYTES = 64 * 1024 - 16 * 1024
"""L1 of the smallest cluster here, less what its stacks take."""


@pytest.mark.parametrize(
    ("length", "width", "heads"), [(65, 32, 2), (64, 128, 2), (196, 192, 3), (196, 192, 8)]
)
def test_every_step_of_a_transformer_layer_can_be_cut_to_fit_64_kib_twice(length, width, heads) -> None:
    """Two buffers per operand, no dimension cut to less than 8, a row per core (heads and samples: 1)."""
    graph = build_layer_graph("mhsa", {"heads": heads, "bias": True}, [DrawnInput((length, width))])
    for op in graph.ops:
        lowering = lowering_of(op)
        sizes = {**lowering.extents(op, graph.tensors), **lowering.reductions(op, graph.tensors)}
        ranges = {name: (0, 1 if name in ("n", "heads") else min(8, size)) for name, size in sizes.items()}
        task = lowering.tile(op, graph.tensors, ranges, KernelChoice("mm", CODEGEN))
        operands = sum(prod(operand.shape) for operand in (*task.inputs, *task.outputs))
        scratch = sum(prod(item.shape) for item in task.scratch)
        assert 4 * (2 * operands + scratch) <= L1_BYTES, op.name


@pytest.mark.parametrize(
    ("length", "options"),
    [((10, 10), {"heads": 5, "features": 160}), ((32, 32), {"heads": 32})],
    ids=["test_mhsa_fp32", "test_mhsa_fp32_partialsoftmax_old"],
)
def test_published_sizes_in_tiles(length, options) -> None:
    check_tiles(Case("mhsa", 0, Example(options, (length,)), "fp32", 1))


def test_the_bias_of_the_keys_is_used_but_has_no_gradient_because_softmax_does_not_feel_it() -> None:
    graph, values = build(Case("mhsa", 0, Example({"heads": 2, "bias": True}, ((5, 6),)), "fp32", 1))
    assert "mhsa.bk" in graph.weights
    assert "mhsa.bk" not in graph.gradients
    before = evaluate(graph, values)
    after = evaluate(graph, {**values, "mhsa.bk": values["mhsa.bk"] + 1})
    assert not np.array_equal(before["mhsa.k"], after["mhsa.k"])
    np.testing.assert_allclose(after["mhsa.p"], before["mhsa.p"], rtol=0, atol=1e-6)


def test_values_of_one_head_do_not_reach_the_probabilities_of_another() -> None:
    graph, values = build(Case("mhsa", 0, Example({"heads": 2}, ((5, 6),)), "fp32", 1))
    before = evaluate(graph, values)["mhsa.p"]
    weight = values["mhsa.wk"].copy()
    weight[:3] += 0.3
    after = evaluate(graph, {**values, "mhsa.wk": weight})["mhsa.p"]
    assert np.array_equal(before[:, 1], after[:, 1])
    assert not np.array_equal(before[:, 0], after[:, 0])


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_layer_of_196_tokens_is_right_within_what_its_roundings_allow(dtype: str) -> None:
    """fp32: 1e-5. 16 bit, u = 2^-11 or 2^-8: the longest way, by q, s, p, ds and dq to dx, rounds six times
    and PyTorch as often, so 12 u; in fact it is below 2 u, since rounding errors go either way.
    """
    made = single("mhsa", {"heads": 8, "features": 160, "bias": True}, [DrawnInput((196, 160))], dtype=dtype)
    ours, truth = evaluate(made.graph, made.values), evaluate_torch(made.graph, made.values)
    allowed = graph_tolerance(made.graph)
    if dtype != "fp32":
        assert allowed == 12 * BY_WORD[dtype].unit_roundoff
    found = compare(ours, truth, [made.graph.output, *made.graph.gradients.values(), "x.grad"])
    assert len(found) == 1 + 4 + 3 + 1
    assert max(difference.max_rel_error for difference in found.values()) <= allowed

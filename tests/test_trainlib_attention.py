"""Multi-head self-attention: gradients, the published passes, and what the published code gets wrong."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from finite_differences import check_gradients
from primitive_harness import CODEGEN, Case, build, check_tiles, run_op

from trainlib.primitives.definition import Example, InputCase
from trainlib.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.steps import KernelChoice
from trainlib.training import build_layer_graph


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
    found = check_gradients("mhsa", options, [InputCase((5, 4))])
    assert len(found) == 5 + 3 * bool(options.get("bias"))


def test_passes_per_head_are_the_published_ones() -> None:
    """FW per head: transpose, matmul, scale, transpose, softmax in three, transpose, matmul: 9 forks."""
    graph = build_layer_graph("mhsa", {"heads": 5, "features": 160}, [InputCase((10, 10))])
    forward = [call.kernel for call in calls_of(graph, "FW")]
    head = ["transpose_matrix", "mm", "scale_by_number", "transpose_matrix", "row_max", "exp_sum_exact"]
    head += ["row_div", "transpose_matrix", "mm"]
    assert forward == [*["mm"] * 3, *head * 5, "mm", "transpose_matrix"]
    macs = [call.macs for call in calls_of(graph, "FW") if call.macs]
    assert macs == [160 * 10 * 10] * 3 + [10 * 32 * 10, 32 * 10 * 10] * 5 + [10 * 160 * 10]
    backward = Counter(call.kernel for call in calls_of(graph, "ATT"))
    assert backward == {"mm": 20, "transpose_matrix": 25, "softmax_bw_sum": 5, "softmax_bw_scale": 5} | {
        "scale_by_number": 5
    }


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
        {"n": 1, "width": 4},
        KernelChoice("mm", CODEGEN),
    )
    assert tiles == 4
    np.testing.assert_allclose(results[op["dx"]], known[op["dx"]], rtol=0, atol=1e-5)


def test_keys_and_values_of_later_queries_are_computed_again_but_not_counted_again() -> None:
    graph = build_layer_graph("mhsa", {"heads": 2}, [InputCase((6, 4))])
    first = calls_of(graph, "FW", {"queries": (0, 3)})
    later = calls_of(graph, "FW", {"queries": (3, 6)})
    assert [call.kernel for call in first] == [call.kernel for call in later]
    again = sum(call.macs for call in first) - sum(call.macs for call in later)
    assert again == 2 * 4 * 4 * 6


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

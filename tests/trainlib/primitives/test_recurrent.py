# SPDX-License-Identifier: Apache-2.0
"""RNN, GRU, LSTM: the state really goes from step to step, and its gradient all the way back."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from shared.agreement import compare, graph_tolerance
from shared.finite_differences import check_gradients
from shared.oracle_torch import evaluate_torch
from shared.primitive_harness import CODEGEN, Case, build, check_tiles
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput, Example
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_layer_graph
from trainlib.training.single import single

LAYERS = {"rnn": 1, "gru": 1, "lstm": 2}
"""Layer and number of initial states it may be given."""

L1_BYTES = 64 * 1024 - 16 * 1024
"""L1 of the smallest cluster here, less what its stacks take."""


def sequence(*shape: int) -> DrawnInput:
    return DrawnInput(shape)


def calls_of(graph, step: str):
    op = next(op for op in graph.ops if op.step == step)
    lowering = lowering_of(op)
    ranges = {name: (0, size) for name, size in lowering.extents(op, graph.tensors).items()}
    return lowering.tile(op, graph.tensors, ranges, KernelChoice(lowering.default_kernel(op), CODEGEN)).calls


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("stepwise", [True, False])
def test_gradients_are_the_slopes_of_the_loss(name: str, bias: bool, given: bool, stepwise: bool) -> None:
    states = [sequence(3) for _ in range(LAYERS[name])] if given else []
    options = {"hidden": 3, "bias": bias, "stepwise": stepwise}
    found = check_gradients(name, options, [sequence(5, 4), *states])
    assert len(found) == 2 + 2 * bias + 1 + len(states)


@pytest.mark.parametrize("name", LAYERS)
def test_published_rnn_takes_states_from_a_buffer_ours_carries_them(name: str) -> None:
    """An input of the middle changes its own and all later outputs, and no earlier one."""
    case = Case(name, 0, Example({"hidden": 3}, ((6, 2),)), "fp32", 1)
    graph, values = build(case)
    before = evaluate(graph, values)[graph.output]
    changed = values["x"].copy()
    changed[0, 2] += 0.5
    after = evaluate(graph, {**values, "x": changed})[graph.output]
    moved = np.abs(after - before).max(axis=(0, 2)) > 0
    assert moved.tolist() == [False, False, True, True, True, True]


def test_published_rnn_has_no_biases_and_no_state_gradient_ours_has_both() -> None:
    graph = build_layer_graph("rnn", {"hidden": 3}, [sequence(4, 2), sequence(3)])
    assert {"rnn.bx", "rnn.bh"} <= set(graph.gradients)
    assert graph.backward["x1"] == "x1.grad"


@pytest.mark.parametrize("name", LAYERS)
def test_a_sequence_in_two_halves_with_the_state_handed_over_is_the_sequence(name: str) -> None:
    case = Case(name, 0, Example({"hidden": 3}, ((6, 2),)), "fp32", 2)
    graph, values = build(case)
    whole = evaluate(graph, values)
    states = [sequence(3) for _ in range(LAYERS[name])]
    half = build_layer_graph(name, {"hidden": 3}, [sequence(3, 2), *states], batch=2)
    weights = {weight: values[weight] for weight in graph.weights}
    handed = {"x1": whole[graph.output][:, 2]}
    if name == "lstm":
        handed["x2"] = whole["lstm.c"][:, 2]
    seed = {half.backward[half.output]: np.ones((2, 3, 3), np.float32)}
    second = evaluate(half, {**weights, **handed, **seed, "x": values["x"][:, 3:]})
    np.testing.assert_allclose(second[half.output], whole[graph.output][:, 3:], rtol=0, atol=1e-6)


def test_the_gradient_of_a_zero_initial_state_is_not_computed() -> None:
    graph = build_layer_graph("rnn", {"hidden": 3}, [DrawnInput((4, 2))])
    steps = [op.step for op in graph.ops]
    assert steps == ["FW", "BPTT", "WG_X", "WG", "IG"]
    last = [call for call in calls_of(graph, "BPTT") if call.macs]
    assert len(last) == 3, "before the first step there is no state whose gradient is wanted"


def test_rnn_of_the_published_test_multiplies_in_the_published_extents() -> None:
    """X*Wx (N=64, K=8, M=16), dWx (8, 64, 16), dWs (16, 64, 16), dX (64, 16, 8)."""
    graph = build_layer_graph("rnn", {"hidden": 16}, [sequence(64, 8)])
    forward = [call.macs for call in calls_of(graph, "FW") if call.macs]
    assert forward == [64 * 8 * 16, *[16 * 16] * 64]
    assert [call.macs for call in calls_of(graph, "WG_X") if call.macs] == [8 * 64 * 16]
    assert [call.macs for call in calls_of(graph, "WG") if call.macs] == [16 * 64 * 16]
    for step in ("WG_X", "WG"):
        assert [call.kernel for call in calls_of(graph, step)].count("transpose_matrix") == 1
    assert [call.kernel for call in calls_of(graph, "IG")] == ["transpose_matrix", "mm_M"]


@pytest.mark.parametrize("name", LAYERS)
def test_the_published_size_in_tiles(name: str) -> None:
    check_tiles(Case(name, 0, Example({"hidden": 16}, ((64, 8),), roundings=40), "fp32", 2))


@pytest.mark.needs_torch
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_64_steps_are_right_within_what_the_roundings_of_their_ops_allow(name: str, dtype: str) -> None:
    """Weights of ±1/sqrt(hidden), as in training: the state forgets, and so do its rounding errors."""
    made = single(name, {"hidden": 16}, [sequence(64, 8)], dtype=dtype)
    ours, truth = evaluate(made.graph, made.values), evaluate_torch(made.graph, made.values)
    found = compare(ours, truth, [made.graph.output, *made.graph.gradients.values(), "x.grad"])
    assert len(found) == 6
    assert max(difference.max_rel_error for difference in found.values()) <= graph_tolerance(made.graph)


@pytest.mark.parametrize("name", LAYERS)
def test_time_step_by_time_step_is_the_same_layer(name: str) -> None:
    inputs = [sequence(6, 4), *(sequence(5) for _ in range(LAYERS[name]))]
    whole = single(name, {"hidden": 5}, inputs, batch=2)
    steps = single(name, {"hidden": 5, "stepwise": True}, inputs, batch=2)
    first, second = evaluate(whole.graph, whole.values), evaluate(steps.graph, whole.values)
    for tensor in (whole.graph.output, *whole.graph.gradients.values(), *whole.graph.backward.values()):
        np.testing.assert_allclose(second[tensor], first[tensor], rtol=0, atol=1e-6, err_msg=tensor)


def test_steps_of_a_time_step_and_the_gradients_nobody_needs() -> None:
    """Before the first step there is a state of zeros: no carry to it, and nothing around its gates."""
    graph = build_layer_graph("gru", {"hidden": 3, "stepwise": True}, [sequence(3, 2)])
    assert [op.step for op in graph.ops] == [
        *["FW_X", "FW_STEP0", "FW_STEP1", "FW_STEP2", "FW_of3"],
        *["BPTT_CELL2", "BPTT_CARRY2", "BPTT_CELL1", "BPTT_CARRY1", "BPTT_CELL0", "BPTT_of3"],
        *["WG_X", "WG", "IG"],
    ]
    cells = {op.step: op for op in graph.ops}
    assert cells["BPTT_CELL1"].writes == ("g1", "gh1", "direct1")
    assert cells["BPTT_CELL0"].writes == ("g0", "gh0")


@pytest.mark.parametrize(
    ("name", "length", "features", "hidden"), [("gru", 25, 10, 154), ("lstm", 98, 40, 128)]
)
def test_keyword_spotters_step_by_step_can_be_cut_to_fit_64_kib_twice(name, length, features, hidden) -> None:
    """Wh alone has 285 and 262 kB. Two buffers per operand; no dimension is cut to less than 8."""
    graph = build_layer_graph(name, {"hidden": hidden, "stepwise": True}, [sequence(length, features)])
    for op in graph.ops:
        lowering = lowering_of(op)
        sizes = {**lowering.extents(op, graph.tensors), **lowering.reductions(op, graph.tensors)}
        ranges = {dimension: (0, min(8, size)) for dimension, size in sizes.items()}
        choice = KernelChoice(lowering.default_kernel(op), CODEGEN)
        task = lowering.tile(op, graph.tensors, ranges, choice)
        operands = sum(prod(operand.shape) for operand in (*task.inputs, *task.outputs))
        scratch = sum(prod(item.shape) for item in task.scratch)
        assert 4 * (2 * operands + scratch) <= L1_BYTES, op.name


@pytest.mark.parametrize("name", LAYERS)
def test_cells_are_priced_over_all_cores_where_the_published_gradient_loop_runs_on_one(name: str) -> None:
    graph = build_layer_graph(name, {"hidden": 16}, [sequence(4, 8)])
    call = next(call for call in calls_of(graph, "BPTT") if call.kernel == f"{name}_cell_bw")
    addresses = {item: 0x1000_0000 + 0x1000 * index for index, item in enumerate((*call.reads, *call.writes))}
    team = call.work(8, addresses)
    assert call.fork
    assert sum(core is not None and len(core.streams) > 0 for core in team.cores) == 8

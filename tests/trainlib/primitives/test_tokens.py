# SPDX-License-Identifier: Apache-2.0
"""What stands around attention: class token, position, broadcast sums, linear layers on every token."""

from __future__ import annotations

import numpy as np
import pytest

from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from shared.agreement import compare
from shared.finite_differences import check_gradients
from shared.initial_values import initial_values
from shared.oracle_torch import evaluate_torch
from shared.primitive_harness import CODEGEN, Case, build, check_reference, check_tiles, run_op
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput, Example
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_training_graph


def made(name: str, shapes, options=None, batch: int = 1):
    graph, values = build(Case(name, 0, Example(options or {}, shapes), "fp32", batch))
    return graph, evaluate(graph, values)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_published_shapes_of_the_broadcast_sum(dtype: str) -> None:
    """(17,1,31) + (23,1); PULP-TrainLib has FW only."""
    case = Case("broadcast_add", 0, Example({}, ((17, 1, 31), (23, 1)), roundings=3), dtype, 1)
    check_reference(case)
    assert check_tiles(case) > 1


def test_gradients_of_a_broadcast_sum_add_up_over_what_was_repeated() -> None:
    graph, known = made("broadcast_add", ((3, 1, 4), (5, 1)), batch=2)
    dy = known[f"{graph.output}.grad"]
    np.testing.assert_allclose(known["x.grad"], dy.sum(axis=2, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(known["x1.grad"], dy.sum(axis=(1, 3))[:, :, None], rtol=1e-6)
    steps = {op.step: lowering_of(op) for op in graph.ops}
    op = next(op for op in graph.ops if op.step == "IG1")
    assert steps["IG1"].extents(op, graph.tensors) == {"n": 2, "d1": 5}
    assert steps["IG1"].reductions(op, graph.tensors) == {"d0": 3, "d2": 4}


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("broadcast_add", [(3, 1, 2), (4, 1)]),
        ("class_token", [(4, 3)]),
        ("linear", [(4, 3)]),
    ],
)
def test_gradients_are_the_slopes_of_the_loss(name: str, shapes) -> None:
    options = {"out_features": 2, "bias": True} if name == "linear" else {}
    assert check_gradients(name, options, [DrawnInput(shape) for shape in shapes])


def test_the_gradient_behind_a_position_is_that_before_it_and_no_op() -> None:
    graph, known = made("position", ((4, 3),), batch=2)
    np.testing.assert_allclose(
        known["position.weight.grad"], known["position.out.grad"].sum(axis=0), rtol=1e-6
    )
    assert [op.step for op in graph.ops] == ["FW", "WG"]
    assert graph.tensors["x.grad"].alias_of == "position.out.grad"


def test_a_tile_without_the_first_token_does_not_read_the_class_token() -> None:
    graph, known = made("class_token", ((6, 4),), batch=2)
    op = graph.ops[0]
    ranges = {"n": (0, 2), "features": (0, 4)}
    tiles = [
        lowering_of(op).tile(op, graph.tensors, {**ranges, "tokens": tokens}, KernelChoice("", CODEGEN))
        for tokens in ((0, 1), (0, 3), (3, 7))
    ]
    assert [[operand.name for operand in tile.inputs] for tile in tiles] == [["w"], ["x", "w"], ["x"]]
    np.testing.assert_array_equal(
        known["class_token.out"][:, 0], np.tile(known["class_token.weight"], (2, 1))
    )
    np.testing.assert_array_equal(known["class_token.out"][:, 1:], known["x"])


def test_linear_of_a_sequence_sums_its_weight_gradient_over_tokens_in_parts() -> None:
    graph, known = made("linear", ((7, 5),), {"out_features": 3, "bias": True}, batch=2)
    op = next(op for op in graph.ops if op.step == "WG")
    sizes = {"co": 2, "ci": 5, "n": 1, "tokens": 3}
    results, tiles = run_op(op, graph.tensors, known, sizes, KernelChoice("mm", CODEGEN))
    assert tiles == 2 * (2 * 3)
    for name, array in results.items():
        np.testing.assert_allclose(array, known[name], rtol=0, atol=1e-5, err_msg=name)


def block(width: int, heads: int) -> tuple[LayerSpec, ...]:
    """A pre-norm transformer encoder of one block behind a class token, and a linear head on that token."""

    def layer(name: str, kind: str, inputs: tuple[str, ...] | None = None, **options) -> LayerSpec:
        return LayerSpec(name, kind, options, "here", inputs=inputs)

    return (
        layer("embed", "linear", out_features=width, bias=True),
        layer("token", "class_token"),
        layer("pos", "position"),
        layer("norm1", "layer_norm"),
        layer("attention", "mhsa", heads=heads, bias=True),
        layer("res1", "add", ("attention", "pos")),
        layer("norm2", "layer_norm"),
        layer("up", "linear", out_features=2 * width, bias=True),
        layer("act", "gelu"),
        layer("down", "linear", out_features=width, bias=True),
        layer("res2", "add", ("down", "res1")),
        layer("first", "slice", axis=0, start=0, stop=1),
        layer("flat", "flatten"),
        layer("head", "linear", out_features=3, bias=True),
    )


@pytest.mark.needs_torch
@pytest.mark.parametrize("batch", [1, 2])
def test_a_vision_transformer_of_one_block_trains_as_in_pytorch(batch: int) -> None:
    sgd = OptimizerSpec("sgd", {"learning_rate": 0.1, "momentum": 0.9}, "here")
    loss, layers = LossSpec("cross_entropy"), block(8, 2)
    spec = ModelSpec("vit", "", "", (5, 6), "random", loss, sgd, batch, layers, "here")
    graph = build_training_graph(spec)
    values = initial_values(graph, spec, 0)
    ours, truth = evaluate(graph, values), evaluate_torch(graph, values)
    names = [graph.loss, graph.output, *graph.gradients.values(), *(f"{w}_updated" for w in graph.gradients)]
    found = compare(ours, truth, names)
    assert {name for name, found_here in found.items() if found_here.max_rel_error > 1e-5} == set()

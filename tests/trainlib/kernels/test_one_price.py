# SPDX-License-Identifier: Apache-2.0
"""One operation, one nest, one price: transpositions and vector adds, whoever asks for them."""

from __future__ import annotations

import pytest

from arch.spec.isa import TeamWork
from configs.dtypes import FP32
from shared.primitive_harness import CODEGEN
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import KernelCall, KernelChoice
from trainlib.primitives.definition import DrawnInput
from trainlib.primitives.lowering.calls import transpose_call, vector_add_call
from trainlib.primitives.lowering.pieces import Piece, TileBuilder
from trainlib.registry import lowering_of, matmul_of
from trainlib.training.phases import build_layer_graph

CHOICE = KernelChoice("mm", CODEGEN)
CORES = 8


def priced(call: KernelCall, *places: int) -> TeamWork:
    """The work of a call on buffers at these addresses, those read first."""
    names = dict.fromkeys((*call.reads, *call.writes))
    return call.work(CORES, dict(zip(names, places, strict=True)))


def calls_of(graph: TrainingGraph, step: str) -> list[KernelCall]:
    """The calls of a step as one tile."""
    (op,) = (op for op in graph.ops if op.step == step)
    lowering = lowering_of(op)
    whole = {name: (0, size) for name, size in lowering.extents(op, graph.tensors).items()}
    choice = KernelChoice(matmul_of(op, graph.tensors, CODEGEN), CODEGEN)
    return list(lowering.tile(op, graph.tensors, whole, choice).calls)


def test_a_transposition_has_one_price() -> None:
    pieces = transpose_call(CHOICE, Piece("x", (16, 32)), Piece("y", (32, 16)), FP32)
    (layer,) = calls_of(build_layer_graph("transpose", {"axes": [1, 0]}, [DrawnInput((16, 32))]), "FW")
    found = [priced(call, 0, 4096) for call in (pieces, layer)]
    assert found[0].kernel == pieces.kernel == "transpose_matrix"
    assert found == [found[0]] * 2


def test_a_batch_of_matrices_is_a_fork_each() -> None:
    graph = build_layer_graph("transpose", {"axes": [1, 0]}, [DrawnInput((16, 32))], batch=3)
    assert [call.kernel for call in calls_of(graph, "FW")] == ["transpose_matrix"] * 3


@pytest.mark.parametrize("axes", [[2, 0, 1], [0, 2, 1], [2, 1, 0]])
def test_other_orders_keep_their_nest(axes: list[int]) -> None:
    (call,) = calls_of(build_layer_graph("transpose", {"axes": axes}, [DrawnInput((3, 4, 5))]), "FW")
    assert call.kernel in ("permute_nd", "transpose_matrix")
    assert (call.kernel == "transpose_matrix") == (axes == [2, 0, 1])


def test_a_vector_add_has_one_price() -> None:
    in_place = vector_add_call(CHOICE, total="x", term="g", elements=512)
    build = TileBuilder(CHOICE, FP32)
    build.add(Piece("x", (512,)), Piece("g", (512,)))
    assert priced(in_place, 0, 4096) == priced(build.calls()[0], 0, 4096)
    adds = [
        calls_of(build_layer_graph(name, {}, [DrawnInput((16, 32)), DrawnInput((16, 32))]), "FW")
        for name in ("add", "broadcast_add")
    ]
    found = [priced(call, 0, 4096, 8192) for (call,) in adds]
    assert found[0] == found[1]
    assert {team.kernel for team in (*found, priced(in_place, 0, 4096))} == {"vect_sum"}


def test_the_gradient_of_an_add_that_repeats_nothing_is_a_copy() -> None:
    graph = build_layer_graph("broadcast_add", {}, [DrawnInput((4, 3)), DrawnInput((4, 3))])
    assert [call.kernel for call in calls_of(graph, "IG")] == ["copy"]

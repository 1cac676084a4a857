# SPDX-License-Identifier: Apache-2.0
"""Concat, split, slice, pad, transpose, reshape: where elements go, and where the loops really walk."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.spec.isa import Op as Code
from configs.dtypes import BF16, FP32
from configs.errors import ShapeError
from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec
from shared.primitive_harness import CODEGEN, poisoned, run_op, run_tile
from trainlib.ir.graph import Tensor
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.shapes.box_copies import Walk
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.builder import GraphBuilder
from trainlib.training.phases import build_layer_graph, build_training_graph

CHOICE = KernelChoice("", CODEGEN)


def ramp(*shape):
    return np.arange(prod(shape), dtype=np.float32).reshape(shape)


def run(name, options, *arrays):
    """The layer on these arrays (batch first), its output as its own output gradient."""
    cases = [DrawnInput(array.shape[1:]) for array in arrays]
    graph = build_layer_graph(name, options, cases, batch=len(arrays[0]))
    values = {f"x{number or ''}": array for number, array in enumerate(arrays)}
    for seed in (name for name in graph.needed_values if name.endswith(".grad")):
        values[seed] = ramp(*graph.tensors[seed].shape)
    return graph, evaluate(graph, values)


# Where the loops walk


def visits(nodes, streams, counters=()):
    """(kind, address) of every access of a nest, in order."""
    for node in nodes:
        if hasattr(node, "body"):
            for trip in range(node.trips):
                yield from visits(node.body, streams, (*counters, trip))
        elif node.stream >= 0:
            stream = streams[node.stream]
            strides = (*stream.strides_bytes, *(0,) * len(counters))
            steps = sum(count * stride for count, stride in zip(counters, strides, strict=False))
            yield node.op, stream.base_bytes + steps


def moves(team):
    """Source address -> target address over all cores; every target is written once."""
    found, targets = {}, []
    for core in team.cores:
        accesses = list(visits(core.body, core.streams))
        for (kind, source), (other, target) in zip(accesses[::2], accesses[1::2], strict=True):
            assert (kind, other) == (Code.LOAD, Code.STORE)
            found[source] = target
            targets.append(target)
    assert len(targets) == len(set(targets))
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    cores=st.sampled_from((1, 3, 8)),
    dtype=st.sampled_from((FP32, BF16)),
    data=st.data(),
)
def test_the_loops_of_a_transposition_touch_every_element_at_its_place(shape, cores, dtype, data) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    size = np.dtype(dtype).itemsize
    source = size * np.arange(prod(shape)).reshape(shape)
    target = 0x4000 + size * np.arange(prod(shape)).reshape([shape[axis] for axis in order])
    back = np.argsort(order)
    strides = tuple(step // size for step in source.astype(f"i{size}").strides)
    target_strides = tuple(
        target.astype(f"i{size}").transpose(back).strides[axis] // size for axis in range(len(shape))
    )
    walk = Walk(tuple(shape), strides, target_strides)
    nest, sizes, *strides = walk.nest(len(shape), "transpose_matrix")
    arrays = {"X": Piece("x", strides=strides[0]), "Y": Piece("y", strides=strides[1])}
    call = kernel_call(CHOICE, nest, sizes, arrays, "x", "y", tuple, dtype)
    team = call.work(cores, {"x": 0, "y": 0x4000})
    wanted = dict(zip(source.ravel().tolist(), target.transpose(back).ravel().tolist(), strict=True))
    assert moves(team) == wanted


@pytest.mark.parametrize("axes", [[0], [2], [0, 2], [0, 1, 2]])
def test_the_loops_of_a_flip_walk_a_box_from_its_last_element(axes) -> None:
    graph = build_layer_graph("flip", {"axes": axes}, [DrawnInput((3, 4, 5))])
    forward = graph.ops[0]
    task = lowering_of(forward).tile(forward, graph.tensors, {"d1": (0, 3)}, CHOICE)
    (call,), shape = task.calls, (3, 3, 5)
    source = 4 * np.arange(prod(shape)).reshape(shape)
    wanted = dict(
        zip(np.flip(source, axes).ravel().tolist(), (0x1000 + source).ravel().tolist(), strict=True)
    )
    assert moves(call.work(3, {"x": 0, "y": 0x1000})) == wanted


def test_dimensions_that_are_contiguous_on_both_sides_become_one_loop() -> None:
    assert Walk((2, 3, 4), (12, 4, 1), (12, 4, 1)).merged() == Walk((24,), (1,), (1,))
    assert Walk((2, 3, 4), (24, 8, 1), (12, 4, 1)).merged() == Walk((6, 4), (8, 1), (4, 1))
    assert Walk((1, 1), (1, 1), (1, 1)).merged() == Walk((1,), (1,), (1,))


def test_a_matrix_is_transposed_by_the_measured_loop_of_the_library() -> None:
    graph = build_layer_graph("transpose", {"axes": [1, 0]}, [DrawnInput((4, 6))])
    forward = graph.ops[0]
    ranges = {"d0": (0, 6), "d1": (0, 4)}
    (call,) = lowering_of(forward).tile(forward, graph.tensors, ranges, CHOICE).calls
    assert call.work(2, {"x": 0, "y": 0x1000}).kernel == "transpose_matrix"


# What comes out


def test_transpose_of_the_library_s_own_test() -> None:
    x = ramp(1, 13, 15, 17)
    graph, values = run("transpose", {"axes": [2, 0, 1]}, x)
    assert values["transpose.out"].shape == (1, 17, 13, 15)
    assert np.array_equal(values["transpose.out"][0, 3], x[0, :, :, 3])
    # The gradient goes the way back: here dy counts up in the order of y.
    assert values["x.grad"][0, 0, 1, 0] == 1
    assert graph.tensors["x.grad"].shape == x.shape


def test_a_rim_wider_than_one_at_the_left_and_top_is_zero_where_the_library_leaves_data() -> None:
    x = 1 + ramp(1, 1, 2, 2)
    _, values = run("pad", {"pads": [[0, 0], [3, 0], [2, 1]]}, x)
    image = values["pad.out"][0, 0]
    assert image.shape == (5, 5)
    assert np.array_equal(image[3:, 2:4], x[0, 0])
    assert image.sum() == x.sum()


def test_tiles_that_see_only_the_rim_only_fill() -> None:
    graph, values = run("pad", {"pads": [[6, 0]], "value": 7.0}, ramp(1, 3))
    forward = graph.ops[0]
    task = lowering_of(forward).tile(forward, graph.tensors, {"d0": (0, 4)}, CHOICE)
    assert [call.kernel for call in task.calls] == ["set_to_value"]
    results = {"pad.out": poisoned((1, 9), "float32")}
    run_tile(forward, graph.tensors, task, values, results, {"pad.out": np.zeros((1, 9), int)})
    assert results["pad.out"][0, :4].tolist() == [7, 7, 7, 7]
    task = lowering_of(forward).tile(forward, graph.tensors, {"d0": (7, 9)}, CHOICE)
    assert [call.kernel for call in task.calls] == ["copy"]


def test_padding_is_shared_among_the_cores() -> None:
    graph = build_layer_graph("pad", {"pads": [[0, 0], [1, 1], [1, 1]]}, [DrawnInput((2, 3, 3))])
    forward = graph.ops[0]
    ranges = {"d0": (0, 2), "d1": (0, 5)}
    for call in lowering_of(forward).tile(forward, graph.tensors, ranges, CHOICE).calls:
        team = call.work(8, {"x": 0, "y": 0x1000})
        stores = [
            {address for kind, address in visits(core.body, core.streams) if kind == Code.STORE}
            for core in team.cores
        ]
        assert sum(map(len, stores)) == len(set().union(*stores)) > 0


def test_split_undoes_concat_and_back() -> None:
    first, second = ramp(2, 3, 4), 100 + ramp(2, 5, 4)
    _, joined = run("concat", {"axis": 0}, first, second)
    _, parts = run("split", {"axis": 0, "sizes": [3, 5]}, joined["concat.out"])
    assert np.array_equal(parts["split.out"], first)
    assert np.array_equal(parts["split.out1"], second)


def test_a_piece_of_split_nobody_uses_has_a_gradient_of_zero() -> None:
    builder = GraphBuilder()
    builder.add(Tensor("x", (1, 5), "input"))
    builder.differentiable.add("x")
    outputs = builder.add_layer(LayerSpec("split", "split", {"sizes": [2, 3]}, "here"), ["x"])
    seed = builder.add(Tensor("seed", (1, 3), "input"))
    builder.propagate({seed: outputs[1]})
    backward = builder.ops[-1]
    assert backward.reads == ("dy1",)
    results, _ = run_op(backward, builder.tensors, {"seed": 1 + ramp(1, 3)}, {}, CHOICE)
    assert results["x.grad"].tolist() == [[0, 0, 1, 2, 3]]


def test_slice_spreads_its_gradient_into_zeros() -> None:
    _, values = run("slice", {"axis": 0, "start": 1, "stop": 3}, ramp(1, 4))
    assert values["slice.out"].tolist() == [[1, 2]]
    assert values["x.grad"].tolist() == [[0, 0, 1, 0]]


def test_reshape_is_a_view_and_costs_nothing() -> None:
    graph, values = run("reshape", {"shape": [2, -1]}, ramp(1, 12))
    assert graph.ops == ()
    assert values["reshape.out"].shape == (1, 2, 6)
    assert values["x.grad"].shape == (1, 12)


def test_a_network_may_part_and_join_its_tensors() -> None:
    def spec(*layers):
        return ModelSpec(
            name="parts",
            description="",
            source="",
            input_shape=(6,),
            dataset="random",
            loss=LossSpec("mse", {}, "here"),
            optimizer=OptimizerSpec("sgd", {"learning_rate": 0.1}, "here"),
            layers=tuple(
                LayerSpec(name, kind, options, "here", inputs=inputs)
                for name, kind, options, inputs in layers
            ),
            where="here",
            batch=1,
        )

    graph = build_training_graph(
        spec(
            ("fc", "linear", {"out_features": 8}, None),
            ("cut", "split", {"sizes": [4, 4]}, None),
            ("gate", "swiglu", {}, ("cut", "cut.1")),
            ("join", "concat", {}, ("gate", "cut.1")),
            ("out", "linear", {"out_features": 2}, None),
        )
    )
    assert [op.name for op in graph.ops if op.step == "IG"] == ["out.IG", "join.IG", "gate.IG", "cut.IG"]
    with pytest.raises(ShapeError, match="cannot join"):
        build_training_graph(
            spec(
                ("cut", "split", {"axis": 0, "sizes": [2, 4]}, None),
                ("fc", "reshape", {"shape": [2, 2]}, ("cut.1",)),
                ("join", "concat", {}, ("fc", "cut")),
            )
        )

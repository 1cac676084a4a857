# SPDX-License-Identifier: Apache-2.0
"""Any cut of any step gives the numbers of PyTorch: tiles are run here by hand, boxes copied in and out.

Without PyTorch the untiled NumPy evaluation is the truth.
"""

import random
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.model_file import LayerSpec, LossSpec, ModelSpec, OptimizerSpec, load_model
from configs.values import replace
from shared.initial_values import initial_values
from shared.oracle_torch import evaluate_torch
from shared.primitive_harness import assert_close, random_sizes, run_op, run_tile, terms
from shared.tiers import examples
from trainlib.ir.steps import KernelChoice
from trainlib.primitives.definition import DrawnInput
from trainlib.references.reference import evaluate, run_reference
from trainlib.registry import lowering_of
from trainlib.training.phases import build_layer_graph, build_training_graph
from truth.source import torch_available

TOLERANCE = 1e-5
CHOICE = KernelChoice("mm", "pulp-gcc7")


def check_graph(spec, seed, batch=1):
    """Each op from the truth's inputs to its outputs: untiled reference, and tiles of random sizes."""
    spec = replace(spec, batch=batch)
    graph = build_training_graph(spec)
    values = initial_values(graph, spec, seed)
    truth = evaluate_torch(graph, values) if torch_available() else evaluate(graph, values)
    assert set(truth) == set(graph.tensors)
    rounded = {name: array.astype(np.float32) for name, array in truth.items()}
    chooser = random.Random(seed)
    tiles = {}
    for op in graph.ops:
        reference = run_reference(op, graph.tensors, rounded)
        sizes = random_sizes(op, graph.tensors, chooser)
        results, tiles[op.name] = run_op(op, graph.tensors, rounded, sizes, CHOICE)
        for name in op.outputs:
            for ours in (reference, results):
                what = f"{op.name} {name} {sizes}"
                assert_close(
                    ours[name],
                    truth[name],
                    TOLERANCE,
                    what,
                    lambda op=op, name=name: terms([op], graph, rounded)[name],
                )
    return tiles


def two_layers(layer, input_shape, loss="mse"):
    """`layer` behind a 1x1 convolution (or a linear layer), so that its input gradient is computed too."""
    first = {"conv2d": {"out_channels": input_shape[0], "kernel": 1}, "linear": {"out_features": 4}}
    kind = "conv2d" if len(input_shape) == 3 else "linear"
    layers = (LayerSpec("before", kind, first[kind], "x:1"), layer)
    sgd = OptimizerSpec("sgd", {"learning_rate": 0.05}, "x:1")
    return ModelSpec("two", "test", "test", input_shape, "random", LossSpec(loss), sgd, 1, layers, "x:1")


@st.composite
def convolutions(draw):
    kernel = draw(st.integers(1, 4))
    padding = draw(st.integers(0, kernel - 1))
    smallest = max(1, kernel - 2 * padding)
    shape = (
        draw(st.integers(1, 4)),
        draw(st.integers(smallest, smallest + 6)),
        draw(st.integers(smallest, smallest + 6)),
    )
    attributes = {
        "out_channels": draw(st.integers(1, 5)),
        "kernel": kernel,
        "padding": padding,
        "stride": draw(st.integers(1, 3)),
    }
    return two_layers(LayerSpec("conv", "conv2d", attributes, "x:2"), shape)


@examples(500)
@given(spec=convolutions(), seed=st.integers(0, 2**16), batch=st.integers(1, 3))
def test_convolution_of_any_shape_padding_and_stride_in_any_tiles(spec, seed, batch):
    check_graph(spec, seed, batch)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    ci=st.integers(1, 20),
    co=st.integers(1, 12),
    loss=st.sampled_from(["mse", "cross_entropy"]),
    bias=st.booleans(),
    batch=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_linear_layer_and_losses_in_any_tiles(ci, co, loss, bias, batch, seed):
    fc = LayerSpec("fc", "linear", {"out_features": co, "bias": bias}, "x:2")
    check_graph(two_layers(fc, (ci,), loss), seed, batch)


@pytest.mark.parametrize("shape", [(7,), (3, 5, 4)])
@pytest.mark.parametrize("seed", range(5))
def test_relu_of_vectors_and_images_in_any_tiles(shape, seed):
    check_graph(two_layers(LayerSpec("act", "relu", {}, "x:2"), shape), seed)


@pytest.mark.parametrize("name", ["relu", "add", "concat", "expand", "broadcast_add"])
def test_one_long_row_behind_dimensions_of_size_1_is_cut(name):
    """A [1, 1, 1, 18250] of others needs 73,000 B in fp32, more than an L1; every tile takes a part of it."""
    inputs = {"relu": [(1, 1, 9)], "expand": [(1, 1, 1)], "broadcast_add": [(1, 1, 1), (1, 1, 9)]}
    attributes = {"concat": {"axis": 1}, "expand": {"shape": [1, 1, 9]}}.get(name, {})
    shapes = inputs.get(name, [(1, 1, 9)] * 2)
    graph = build_layer_graph(name, attributes, [DrawnInput(shape) for shape in shapes])
    values = {
        name: np.arange(prod(tensor.shape), dtype=np.float32).reshape(tensor.shape) - 4
        for name, tensor in graph.tensors.items()
    }
    for op in graph.ops:
        cut = {**lowering_of(op).extents(op, graph.tensors), **lowering_of(op).reductions(op, graph.tensors)}
        assert 9 in cut.values(), op.name
        sizes = {axis: min(size, 2) for axis, size in cut.items()}
        made, _ = run_op(op, graph.tensors, values, sizes, CHOICE)
        for tensor, whole in run_reference(op, graph.tensors, values).items():
            np.testing.assert_array_equal(made[tensor], whole)


@pytest.mark.parametrize("name", ["digits-cnn", "tutorial-cnn"])
@pytest.mark.parametrize("seed", range(4))
def test_every_step_of_the_models_in_any_tiles(name, seed):
    tiles = check_graph(load_model(name), seed)
    assert max(tiles.values()) > 1
    assert (tiles["loss.LOSS"] > 1) == (name == "tutorial-cnn"), "one over classes is never cut"


def test_input_rows_that_reach_no_output_get_a_zero_gradient():
    # Kernel 1, stride 3: rows 1 and 2 of each three are never read, and neither is the last one.
    attributes = {"out_channels": 2, "kernel": 1, "stride": 3}
    spec = two_layers(LayerSpec("conv", "conv2d", attributes, "x:2"), (1, 6, 6))
    graph = build_training_graph(spec)
    values = evaluate(graph, initial_values(graph, spec, 0))
    op = next(op for op in graph.ops if op.name == "conv.IG")
    results, tiles = run_op(op, graph.tensors, values, {"ci": 1, "hi": 1}, CHOICE)
    assert tiles == 6
    gradient = results["before.out.grad"]
    assert np.array_equal(gradient, values["before.out.grad"])
    assert [bool(row.any()) for row in gradient[0, 0]] == [True, False, False, True, False, False]


def test_halo_rows_are_clipped_at_the_borders():
    graph = build_training_graph(load_model("digits-cnn"))
    op = graph.ops[0]
    assert op.name == "conv1.FW"
    rows = []
    for ho in ((0, 2), (2, 6), (6, 8)):
        task = lowering_of(op).tile(op, graph.tensors, {"co": (0, 8), "ho": ho}, CHOICE)
        rows.append(task.inputs[0].region[2])
        assert [call.kernel for call in task.calls] == ["im2row", "mm"]
        assert task.scratch[0].shape == ((ho[1] - ho[0]) * 8, 9)
    assert rows == [(0, 3), (1, 7), (5, 8)]


def test_input_gradient_calls_kernels_in_the_library_s_order():
    graph = build_training_graph(load_model("digits-cnn"))
    op = next(op for op in graph.ops if op.name == "conv2.IG")
    ranges = {"ci": (2, 5), "hi": (3, 4)}
    task = lowering_of(op).tile(op, graph.tensors, ranges, CHOICE)
    assert [(call.kernel, call.fork) for call in task.calls] == [
        ("im2row", True), ("blocktransp", True), ("mm", True),
    ]  # fmt: skip
    # Input row 3 of an unpadded 3x3 convolution is read by output rows 1..3.
    assert task.inputs[0].region == ((0, 1), (0, 16), (1, 4), (0, 6))
    assert task.inputs[1].region == ((0, 16), (2, 5), (0, 3), (0, 3))
    assert {scratch.name: scratch.shape for scratch in task.scratch} == {
        "im2row": (8, 144),
        "weights_transposed": (3, 144),
    }


def test_losses_run_on_the_master_core_alone():
    graph = build_training_graph(load_model("digits-cnn"))
    op = next(op for op in graph.ops if op.step == "LOSS")
    task = lowering_of(op).tile(op, graph.tensors, {}, CHOICE)
    assert [(call.kernel, call.fork) for call in task.calls] == [
        ("cross_entropy_fw", False), ("cross_entropy_bw", False),
    ]  # fmt: skip


def test_a_wrong_box_would_be_noticed():
    """The test of the tests: shift one input box by a row and the numbers change."""
    graph = build_training_graph(load_model("tutorial-cnn"))
    spec = load_model("tutorial-cnn")
    values = evaluate(graph, initial_values(graph, spec, 0))
    op = graph.ops[0]
    task = lowering_of(op).tile(op, graph.tensors, {"co": (0, 16), "ho": (0, 3)}, CHOICE)
    image = task.inputs[0]
    shifted = replace(image, region=(*image.region[:2], (1, 6), image.region[3]))
    outcomes = []
    for inputs in ((image, task.inputs[1]), (shifted, task.inputs[1])):
        results = {"conv1.out": np.zeros((1, 16, 6, 6), np.float32)}
        written = {"conv1.out": np.zeros((1, 16, 6, 6), int)}
        run_tile(op, graph.tensors, task.but(inputs=inputs), values, results, written)
        outcomes.append(results["conv1.out"][:, :, :3])
    np.testing.assert_allclose(outcomes[0], values["conv1.out"][:, :, :3], rtol=1e-5, atol=1e-5)
    assert not np.allclose(outcomes[1], values["conv1.out"][:, :, :3], atol=1e-2)

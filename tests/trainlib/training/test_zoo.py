# SPDX-License-Identifier: Apache-2.0
"""The installed models: as large as their papers say, and an iteration of each agrees with PyTorch."""

from math import prod

import numpy as np
import pytest

from configs.library import list_names
from configs.model_file import load_model
from configs.values import replace
from shared.agreement import ROUNDING_MARGIN, compare, gradient_scales, graph_tolerance, own_rounding
from shared.initial_values import initial_values
from shared.oracle_torch import evaluate_torch
from trainlib.ir.graph import TrainingGraph
from trainlib.primitives.definition import is_forward
from trainlib.references.reference import evaluate
from trainlib.registry import lowering_of
from trainlib.training.phases import build_training_graph

MODELS = list_names("models")


def graph_of(name: str) -> TrainingGraph:
    return build_training_graph(load_model(name))


def parameters(graph: TrainingGraph) -> int:
    return sum(prod(graph.tensors[name].shape) for name in graph.weights)


def statistics(graph: TrainingGraph) -> int:
    """Running means and variances, which some papers count as parameters."""
    return sum(prod(graph.tensors[name].shape) for name in graph.of_kind("buffer"))


def forward_macs(graph: TrainingGraph) -> int:
    return sum(lowering_of(op).macs(op, graph.tensors) for op in graph.ops if is_forward(op.step))


def left_out_biases(graph: TrainingGraph) -> int:
    """Biases a batch norm would cancel: one per channel it normalises by the statistics of the batch."""
    names = [name for name in graph.weights if "bn" in name and name.endswith(".bias")]
    return sum(prod(graph.tensors[name].shape) for name in names)


@pytest.mark.parametrize(
    ("name", "published"), [("resnet8", 78_666), ("ds-cnn", 24_908), ("mobilenet-v1", 221_794)]
)
def test_mlperf_tiny_parameters(name: str, published: int) -> None:
    """As the reference models count them: with running statistics, and biases before batch norms."""
    graph = graph_of(name)
    assert parameters(graph) + statistics(graph) + left_out_biases(graph) == published


def test_deep_autoencoder_parameters() -> None:
    graph = graph_of("deep-autoencoder")
    assert parameters(graph) + statistics(graph) == 269_992


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("resnet8", 12.5),
        ("ds-cnn", 2.66),
        ("mobilenet-v1", 7.49),
        ("deep-autoencoder", 0.264),
        ("cct", 35.6),  # 71 MFLOP
    ],
)
def test_multiply_accumulates_of_the_forward_pass(name: str, millions: float) -> None:
    assert forward_macs(graph_of(name)) / 1e6 == pytest.approx(millions, rel=0.02)


def test_speechnet_blocks() -> None:
    """Multiply-accumulates per block of the published training step, and its 61,956 B of weights."""
    graph = graph_of("speechnet")
    ops = {op.name: op for op in graph.ops}
    assert (4 * parameters(graph), len(graph.gradients)) == (61_956, 22)
    published = {"b0": 314_048, "b1": 2_523_136, "b2": 659_456, "b3": 143_360, "b4": 71_680}
    for block, macs in published.items():
        assert lowering_of(ops[f"{block}_conv.FW"]).macs(ops[f"{block}_conv.FW"], graph.tensors) == macs
    assert "b0_conv.IG" not in ops, "first layer without input gradient"


def test_deeploy_models() -> None:
    mlp, transformer = graph_of("simple-mlp"), graph_of("tiny-transformer")
    assert (parameters(mlp), len(mlp.gradients)) == (592, 2)
    assert (parameters(transformer), len(transformer.gradients)) == (10_240, 13)


def test_gru_keywords_size() -> None:
    """78.8 kB of 8-bit weights and 3.8 M operations, as published; ours has two biases per gate."""
    graph = graph_of("gru-keywords")
    assert parameters(graph) == pytest.approx(78_800, rel=0.01)
    assert 2 * forward_macs(graph) == pytest.approx(3.8e6, rel=0.01)


def test_compact_transformer_size() -> None:
    assert parameters(graph_of("cct")) == pytest.approx(0.28e6, rel=0.02)


def test_trainlib_resnet_shapes() -> None:
    """Channels and size behind every layer with weights, as PULP-TrainLib's test has them."""
    graph = graph_of("trainlib-resnet-cifar10")
    expected = {
        **{"dw1": (3, 26), "pw1": (8, 26), "dw2": (8, 20), "pw2": (16, 20), "skip_dw": (16, 10)},
        **{"skip_pw": (32, 10), "dw3": (16, 14), "pw3": (24, 14), "dw4": (24, 10), "pw4": (32, 10)},
    }
    for layer, (channels, size) in expected.items():
        assert graph.tensors[f"{layer}.out"].shape == (1, channels, size, size), layer
    assert graph.tensors["fc.weight"].shape == (2, 3200)


@pytest.mark.needs_torch
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_whole_iteration_agrees_with_torch(name: str, dtype: str) -> None:
    """Output, loss, every gradient and every updated tensor; fp32 to 1e-5 unless PyTorch itself is worse."""
    spec = replace(load_model(name), dtype=dtype)
    graph = build_training_graph(spec)
    values = initial_values(graph, spec, 0)
    # With 27 batch norms a value halfway between two 16-bit numbers changes all behind it; PyTorch in float64
    # and in float32 differ by 1.8 there. Our statistics are fp32, so PyTorch's float32 is the truth for them.
    precision = "float32" if (name, dtype) == ("mobilenet-v1", "bf16") else "float64"
    ours, truth = evaluate(graph, values), evaluate_torch(graph, values, precision)
    gradients = (*graph.gradients.values(), *graph.backward.values())
    names = [name for name in (*graph.results, *gradients, *graph.updates.values()) if name in truth]
    assert set(graph.gradients.values()) <= set(names)
    errors = compare(ours, truth, names, gradient_scales(graph, truth))
    worst = max(names, key=lambda item: errors[item].max_rel_error)
    tolerance = graph_tolerance(graph)
    if precision == "float32":
        tolerance = 8 * 2**-8  # four roundings to bf16, where the float64 truth would need more than 1
    elif name == "mobilenet-v1":
        # 27 batch norms, the last over 9 elements each: PyTorch rounded alike is as far off.
        own = own_rounding(graph, values, truth, names)
        tolerance = ROUNDING_MARGIN * own
        assert own < 2.5e-4
    assert errors[worst].max_rel_error <= tolerance, worst


@pytest.mark.parametrize("name", ["tiny-transformer", "gru-keywords", "resnet8", "ds-cnn"])
def test_recomputing_three_of_four_layers_gives_the_same_bits(name: str) -> None:
    """Through attention and recurrence in several ops, residuals, batch norms, drop-out masks and views."""
    spec = load_model(name)
    layers = tuple(replace(layer, recompute=number % 4 != 3) for number, layer in enumerate(spec.layers))
    plain, again = build_training_graph(spec), build_training_graph(replace(spec, layers=layers))
    assert len(again.ops) > len(plain.ops)
    values = initial_values(plain, spec, 0)
    expected, ours = evaluate(plain, values), evaluate(again, values)
    for tensor in (*plain.updates.values(), *plain.gradients.values()):
        assert np.array_equal(ours[tensor], expected[tensor]), tensor

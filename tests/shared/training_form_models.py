# SPDX-License-Identifier: Apache-2.0
"""Small networks for the tests of training forms, and how an iteration of one is checked against PyTorch."""

from pathlib import Path

import numpy as np

from configs.model_file import load_model
from configs.values import replace
from shared.agreement import compare, gradient_scales, graph_tolerance
from shared.initial_values import initial_values
from shared.oracle_torch import evaluate_torch
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.numerics import rounded
from trainlib.references.reference import evaluate
from trainlib.training.phases import build_training_graph

HEADER = """\
name: form
description: small network for one training form
source: tests
input: {{shape: {shape}}}
dataset: random
loss: mse
optimizer: {{{optimizer}}}
batch: {batch}
{model}
layers:
"""

CNN = (
    "{name: conv1, type: conv2d, out_channels: 6, kernel: 3, padding: 1}",
    "{name: norm1, type: batch_norm}",
    "{name: act1, type: tanh}",
    "{name: pw, type: pointwise, out_channels: 5, bias: true}",
    "{name: act2, type: silu}",
    "{name: dw, type: depthwise, kernel: 3, padding: 1, bias: true}",
    "{name: flatten, type: flatten}",
    "{name: fc, type: linear, out_features: 4, bias: true}",
)
"""One layer of each kind that a sparse update and an adapter know, with smooth activations."""


def written(
    folder: Path,
    layers: tuple[str, ...] = CNN,
    *,
    shape: str = "[3, 5, 4]",
    batch: int = 1,
    model: str = "",
    optimizer: str = "name: sgd, learning_rate: 0.5",
) -> str:
    """Path of the model file with these layers; `model` are further lines of the model itself."""
    path = folder / "form.yaml"
    header = HEADER.format(shape=shape, batch=batch, model=model, optimizer=optimizer)
    path.write_text(header + "".join(f"  - {layer}\n" for layer in layers), encoding="utf-8")
    return str(path)


def changed(layers: tuple[str, ...], name: str, more: str) -> tuple[str, ...]:
    """The layers with further options for one of them."""
    assert any(f"name: {name}," in layer for layer in layers)
    return tuple(layer[:-1] + f", {more}}}" if f"name: {name}," in layer else layer for layer in layers)


def graph_of(path: str, dtype: str = "fp32") -> TrainingGraph:
    """Its training graph in this format."""
    return build_training_graph(replace(load_model(path), dtype=dtype))


def values_of(graph: TrainingGraph, path: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Values of a first iteration in which no weight starts at zero, so that every gradient is alive."""
    values = initial_values(graph, load_model(path), seed)
    generator = np.random.default_rng(seed)
    for name in graph.weights:
        if not np.any(values[name]):
            drawn = generator.uniform(-0.5, 0.5, graph.tensors[name].shape).astype(np.float32)
            values[name] = rounded(drawn, graph.tensors[name].dtype)
    return values


def check_against_torch(graph: TrainingGraph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Output, loss, gradients and updated tensors agree with PyTorch; returns all tensors."""
    ours, truth = evaluate(graph, values), evaluate_torch(graph, values)
    updated = [name for name in graph.updates.values() if name in truth]
    names = [graph.output, graph.loss, *graph.gradients.values(), *updated]
    tolerance = graph_tolerance(graph)
    for name, error in compare(ours, truth, names, gradient_scales(graph, truth)).items():
        assert error.max_rel_error <= tolerance, (name, error.max_rel_error, tolerance)
    return ours

# SPDX-License-Identifier: Apache-2.0
"""Training graphs in both dialects, built from the published op lists, with goldens by PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from importers.training.graph import ImportedTraining
from shared.onnx_models import NodeText, model, node, saved, value
from trainlib.references.reference import evaluate

MICROSOFT = "com.microsoft:"


def softmax_loss(logits: str, gradient: str, *, seed: str = "") -> list[NodeText]:
    """The loss and its gradient; ONNX Runtime's gradient reads that of the loss first."""
    reads = [seed, "log_prob", "labels"] if seed else ["log_prob", "labels"]
    return [
        node("SoftmaxCrossEntropyLoss", [logits, "labels"], ["the_loss", "log_prob"], reduction="mean"),
        node(f"{MICROSOFT}SoftmaxCrossEntropyLossGrad", reads, [gradient], reduction="mean"),
    ]


def accumulated(weights: Sequence[str]) -> list[NodeText]:
    """An accumulator per weight."""
    return [
        node(
            f"{MICROSOFT}InPlaceAccumulatorV2",
            [f"{name}_grad.accumulation.buffer", f"{name}_grad", "lazy_reset_grad"],
            [f"{name}_grad.accumulation.out"],
        )
        for name in weights
    ]


def updated(weights: Sequence[str], rate: float) -> list[NodeText]:
    """An SGD node per weight, in the graph itself."""
    return [node("SGD", [name, f"{name}_grad"], [f"{name}_updated"], lr=rate) for name in weights]


def with_accumulation(
    nodes: Sequence[NodeText], shape: Sequence[int], weights: Mapping[str, Any], constants: Mapping[str, Any]
) -> Any:
    """A graph whose weights and totals are inputs, as the harnesses of both dialects have it."""
    inputs = [value("input", shape), value("labels", shape[:1], "int64")]
    inputs += [value(name, array.shape) for name, array in weights.items()]
    inputs += [value(f"{name}_grad.accumulation.buffer", array.shape) for name, array in weights.items()]
    inputs.append(value("lazy_reset_grad", [1], "bool"))
    # Totals of biases are declared with shape [1] in such files, whatever their shape.
    outputs = [value("the_loss", [])] + [value(f"{name}_grad.accumulation.out", [1]) for name in weights]
    return model([*nodes, *accumulated(list(weights))], inputs, outputs, constants)


def optimizer_model(weights: Mapping[str, Any], rate: float) -> Any:
    """Deeploy's optimizer graph: an SGD node per weight, inputs interleaved."""
    inputs, nodes, outputs = [], [], []
    for name, array in weights.items():
        total = f"{name}_grad.accumulation.buffer"
        inputs += [value(name, array.shape), value(total, array.shape)]
        nodes.append(node("SGD", [name, total], [f"{name}_updated"], lr=rate))
        outputs.append(value(f"{name}_updated", array.shape))
    return model(nodes, inputs, outputs)


def one_update(
    imported: ImportedTraining, start: Mapping[str, Any], sample: Mapping[str, Any]
) -> dict[str, Any]:
    """Weights after one update by the references, from these weights and this sample."""
    kept = {}
    graph, update = imported.phases.mini_batch, imported.phases.update
    for name in graph.of_kind("weight", "buffer", "optimizer_state"):
        tensor = graph.tensors[name]
        kept[name] = np.zeros(tensor.shape, tensor.dtype)
    kept |= {**imported.values, **{name: array for name, array in start.items() if name in kept}}
    values = evaluate(graph, {**kept, **imported.sample(sample)})
    loss = float(values["loss"][0])
    kept |= {name: values[after] for name, after in graph.updates.items()}
    if update is not None:
        values = evaluate(update, kept)
        kept |= {name: values[after] for name, after in update.updates.items()}
    return {**kept, "loss": loss}


def mlp_nodes() -> list[NodeText]:
    """Two linear layers with ReLU between them, backward pass included, nodes in no topological order."""
    return [
        node("Gemm", ["h", "w2", "b2"], ["output"], transB=1),
        node("Gemm", ["input", "w1", "b1"], ["z"], transB=1),
        node("Relu", ["z"], ["h"]),
        *softmax_loss("output", "output_grad"),
        node("Gemm", ["output_grad", "h"], ["w2_grad"], transA=1),
        node("Gemm", ["output_grad", "w2"], ["h_grad"]),
        node("ReduceSum", ["output_grad"], ["b2_grad"], axes=[0], keepdims=0),
        node(f"{MICROSOFT}ReluGrad", ["h_grad", "h"], ["z_grad"]),
        node("Gemm", ["z_grad", "input"], ["w1_grad"], transA=1),
        node("ReduceSum", ["z_grad"], ["b1_grad"], axes=[0], keepdims=0),
    ]


def mlp_weights(seed: int = 3) -> dict[str, Any]:
    """Start of the weights of `mlp_nodes`."""
    generator = np.random.default_rng(seed)
    shapes = {"w1": (6, 10), "b1": (6,), "w2": (4, 6), "b2": (4,)}
    return {name: generator.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def mlp_samples(count: int, batch: int = 1) -> list[tuple[Any, Any]]:
    """Inputs and labels of `mlp_case`."""
    generator = np.random.default_rng(9)
    return [
        (generator.uniform(-1, 1, (batch, 10)).astype(np.float32), generator.integers(4, size=batch))
        for _ in range(count)
    ]


def mlp_case(
    folder: Path,
    mini_batches: int,
    updates: int = 3,
    rate: float = 0.05,
    batch: int = 1,
    weights: Mapping[str, Any] | None = None,
) -> Path:
    """A folder as Deeploy has them: ``mlp_train`` with goldens by PyTorch, ``mlp_optimizer`` beside it."""
    import torch

    weights = weights or mlp_weights()
    count = mini_batches * updates
    samples = mlp_samples(count, batch)
    parameters = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    losses = []
    for number, (x, label) in enumerate(samples):
        h = torch.relu(torch.tensor(x) @ parameters["w1"].T + parameters["b1"])
        logits = h @ parameters["w2"].T + parameters["b2"]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(label))
        loss.backward()  # gradients are summed, not averaged
        losses.append(float(loss.detach()))
        if (number + 1) % mini_batches == 0:
            with torch.no_grad():
                for parameter in parameters.values():
                    parameter.sub_(rate * parameter.grad)
                    parameter.grad = None
    train, optimizer = folder / "mlp_train", folder / "mlp_optimizer"
    for path in (train, optimizer):
        path.mkdir(parents=True)
    saved(train, with_accumulation(mlp_nodes(), [batch, 10], weights, {}), "network.onnx")
    saved(optimizer, optimizer_model(weights, rate), "network.onnx")
    arrays = [*samples[0], *weights.values(), np.ones(1, bool)]
    inputs = {f"arr_{index:04d}": array for index, array in enumerate(arrays)}
    for number, sample in enumerate(samples[1:], start=1):
        inputs |= {f"mb{number}_arr_{index:04d}": array for index, array in enumerate(sample)}
    np.savez(train / "inputs.npz", **inputs, meta_data_size=[count], meta_n_batches=[count])
    after = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
    np.savez(train / "outputs.npz", **after, loss=np.array(losses, np.float32))
    return folder

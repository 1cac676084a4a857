"""The same training iteration by PyTorch autograd: an oracle that knows nothing of our backward rules.

PyTorch is imported only here and only when asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from trainlib.graph import TrainingGraph
from trainlib.registry import layer_primitive, loss_primitive, optimizer_primitive
from trainlib.steps import Array


def torch_available() -> bool:
    """Whether PyTorch can be imported."""
    return find_spec("torch") is not None


def evaluate_torch(
    graph: TrainingGraph, values: Mapping[str, Array], dtype: str = "float64"
) -> dict[str, Array]:
    """Every tensor of the graph, as `reference.evaluate`, but gradients by autograd, update by torch.optim.

    Only the forward ops, the loss and the optimizer of the graph are used. `values` needs input, label and
    weights, shapes as in the graph. `dtype` is that of the whole computation and of the result.
    float64 measures our rounding alone; in float32 the gradient softmax - target of a confident network
    (loss below 1e-4) is off by 1e-3 and more in PyTorch itself.
    """
    torch: Any = import_module("torch")
    precision = getattr(torch, dtype)
    given = {
        name: torch.tensor(values[name], dtype=precision)
        for name in (graph.input, graph.label, *graph.weights)
    }
    weights = {name: given[name].requires_grad_() for name in graph.weights}
    tensors: dict[str, Any] = {graph.input: given[graph.input][None].requires_grad_()}
    for op in graph.ops:
        if op.step == "FW":
            x = _of(graph, tensors, op.inputs[0])
            w = weights[op.inputs[1]] if len(op.inputs) > 1 else None
            y = layer_primitive(op.primitive).torch_forward(torch, op.attributes, x, w)
            y.retain_grad()
            tensors[op.outputs[0]] = y
        elif op.step == "LOSS":
            output = _of(graph, tensors, graph.output)[0]
            loss = loss_primitive(op.primitive).torch_loss(torch, output, given[graph.label])
            loss.backward()
            tensors[graph.loss] = loss[None, None]
    result: dict[str, Array] = {graph.label: values[graph.label].astype(dtype)}
    for name, tensor in tensors.items():
        result[name] = tensor.detach().numpy()[0]
        if f"{name}.grad" in graph.tensors:
            result[f"{name}.grad"] = tensor.grad.numpy()[0]
    for name, weight in weights.items():
        result[name] = values[name].astype(dtype)
        result[graph.gradients[name]] = weight.grad.numpy().copy()
    _update(torch, graph, weights, result)
    for name, tensor in graph.tensors.items():
        if name not in result:
            owner = next(key for key in result if graph.storage_of(key) == graph.storage_of(name))
            result[name] = np.ascontiguousarray(result[owner]).reshape(tensor.shape)
    return result


def _of(graph: TrainingGraph, tensors: dict[str, Any], name: str) -> Any:
    """The tensor, or the view of the one that flatten (or another view) takes its bytes from."""
    if name not in tensors:
        source = _of(graph, tensors, str(graph.tensors[name].alias_of))
        tensors[name] = source.reshape(1, *graph.tensors[name].shape)
        tensors[name].retain_grad()
    return tensors[name]


def _update(torch: Any, graph: TrainingGraph, weights: Mapping[str, Any], result: dict[str, Array]) -> None:
    for op in graph.ops:
        if op.step == "UPD":
            parameter = weights[op.inputs[0]]
            optimizer_primitive(op.primitive).torch_optimizer(torch, [parameter], op.attributes).step()
            result[op.outputs[0]] = parameter.detach().numpy().copy()

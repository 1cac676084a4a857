"""Untiled NumPy evaluation of a training graph: the fallback truth, and the training loop's fast path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from configs.errors import InputError
from trainlib.graph import Tensor, TrainingGraph
from trainlib.registry import layer_primitive, step_of
from trainlib.steps import Array


def evaluate(graph: TrainingGraph, values: Mapping[str, Array]) -> dict[str, Array]:
    """One training iteration: every tensor of the graph, from the input, label and weights in `values`.

    Each op runs whole, by its primitive's own reference, which shares no code with the tiles. Raises
    InputError if a value is missing or has another shape than its tensor.
    """
    required = (graph.input, graph.label, *graph.weights)
    for name in required:
        if name not in values:
            raise InputError(f"no value for tensor '{name}'", where=graph.name)
        if values[name].shape != graph.tensors[name].shape:
            raise InputError(
                f"value of shape {values[name].shape} for a tensor of shape {graph.tensors[name].shape}",
                where=f"{graph.name}: {name}",
            )
    known: dict[str, Array] = {name: values[name] for name in required}
    views = [tensor for tensor in graph.tensors.values() if graph.is_view(tensor.name)]
    _complete(views, known)
    for op in graph.ops:
        results = step_of(op).reference(op, [known[name] for name in op.inputs])
        known.update(zip(op.outputs, results, strict=True))
        _complete(views, known)
    return known


def _complete(views: Iterable[Tensor], values: dict[str, Array]) -> None:
    """Add the views whose source has a value by now (a view comes after its source in `views`)."""
    for view in views:
        if view.name not in values and view.alias_of in values:
            values[view.name] = values[view.alias_of].reshape(view.shape)


def predict(graph: TrainingGraph, weights: Mapping[str, Array], images: Array) -> Array:
    """Output of the network, [batch, *output shape], for images [batch, *input shape], fp32."""
    values: dict[str, Array] = {graph.input: images}
    for op in graph.ops:
        if op.step != "FW":
            continue
        source = op.inputs[0]
        if source not in values:
            values[source] = _batched_view(graph, values, source)
        arrays = [values[source], *(weights[name] for name in op.inputs[1:])]
        values[op.outputs[0]] = layer_primitive(op.primitive).batched(op.attributes, arrays)
    return values[graph.output] if graph.output in values else _batched_view(graph, values, graph.output)


def _batched_view(graph: TrainingGraph, values: Mapping[str, Array], name: str) -> Array:
    source = name
    while source not in values:
        source = str(graph.tensors[source].alias_of)
    return values[source].reshape(-1, *graph.tensors[name].shape)


def accuracy(graph: TrainingGraph, weights: Mapping[str, Array], images: Array, classes: Array) -> float:
    """Share of images [batch, *input shape] whose largest output is at their class (integers [batch])."""
    return float(np.mean(np.argmax(predict(graph, weights, images), axis=1) == classes))


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor is from the truth: max|a - b|, and that over max|b|."""

    max_abs_error: float
    max_rel_error: float


def compare(
    ours: Mapping[str, Array], truth: Mapping[str, Array], names: Iterable[str] | None = None
) -> dict[str, Difference]:
    """Difference per tensor of `names` (default: all tensors of `truth`).

    The relative error is max|a - b| / max|b|: 0 if both are zero throughout, infinite if only the truth is
    or if `ours` holds a NaN. Raises InputError if `ours` lacks a tensor or has another shape.
    """
    result: dict[str, Difference] = {}
    for name in truth if names is None else names:
        if name not in ours or ours[name].shape != truth[name].shape:
            raise InputError(f"tensor '{name}' is missing or has another shape than the truth")
        expected = truth[name].astype(np.float64)
        worst = float(np.max(np.abs(ours[name].astype(np.float64) - expected), initial=0.0))
        scale = float(np.max(np.abs(expected), initial=0.0))
        if worst == 0.0:
            result[name] = Difference(0.0, 0.0)
        elif np.isnan(worst) or scale == 0.0:
            result[name] = Difference(float("inf") if np.isnan(worst) else worst, float("inf"))
        else:
            result[name] = Difference(worst, worst / scale)
    return result

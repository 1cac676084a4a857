# SPDX-License-Identifier: Apache-2.0
"""Untiled NumPy evaluation of a training graph: the fallback truth, and the training loop's fast path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from configs.dtypes import FP32, is_float
from configs.errors import InputError, NotFiniteError
from configs.values import replace
from trainlib.ir.graph import Op, Tensor, TrainingGraph
from trainlib.ir.numerics import rounded, widened
from trainlib.ir.steps import Array
from trainlib.primitives.definition import is_forward
from trainlib.registry import step_of


def check_values(graph: TrainingGraph, values: Mapping[str, Array]) -> None:
    """Every given tensor has a value that `check_values_of` accepts; InputError otherwise."""
    for name in graph.needed_values:
        if name not in values:
            raise InputError(f"tensor '{name}' has no value", where=graph.name, cure=f"pass '{name}', too")
    check_values_of(graph, {name: values[name] for name in graph.needed_values})


def check_values_of(graph: TrainingGraph, values: Mapping[str, Array]) -> None:
    """Values of some tensors: right shape, no NaN. InputError names tensor and first op reading it."""
    for name, array in values.items():
        tensor = graph.tensors[name]
        if array.shape != tensor.shape:
            raise InputError(
                f"the value has shape {array.shape}, but the tensor has shape {tensor.shape}",
                where=f"{graph.name}: {name}",
                cure=f"pass an array of shape {tensor.shape}",
            )
        if is_float(array.dtype) and not np.isfinite(widened(array)).all():
            user = next((op.name for op in graph.ops if name in op.inputs), graph.name)
            value = "NaN" if np.isnan(widened(array)).any() else "an infinity"
            raise InputError(
                f"op {user} reads tensor '{name}', which holds {value}",
                where=user,
                cure="use finite data and weights, and a smaller learning rate",
            )


def run_reference(
    op: Op, tensors: Mapping[str, Tensor], arrays: Mapping[str, Array], *, rounds: bool = True
) -> dict[str, Array]:
    """The op by its own reference: arrays by tensor name in (at least its inputs) and out (its outputs).

    16-bit inputs are widened, results rounded to the dtype of their tensor if it `rounds`: `reference`
    accumulation.
    """
    values = {role: widened(arrays[name]) for role, name in zip(op.reads, op.inputs, strict=True)}
    results = step_of(op).reference(op, values)
    made = {name: np.asarray(results[role]) for role, name in zip(op.writes, op.outputs, strict=True)}
    return {name: rounded(array, tensors[name].dtype) if rounds else array for name, array in made.items()}


def evaluate(
    graph: TrainingGraph,
    values: Mapping[str, Array],
    reading: Callable[[Op, str, Array], Array] = lambda op, name, array: array,
    *,
    rounds: bool = True,
) -> dict[str, Array]:
    """One training iteration: every tensor of the graph, from the given ones in `values`.

    An op reads a tensor as `reading` returns it; what it makes is left in fp64 unless it `rounds`.

    Each op runs whole, by its primitive's own reference, which shares no code with the tiles. Raises
    InputError if a value is missing or wrong (`check_values_of`), and if an op makes an infinity or a NaN.
    """
    check_values(graph, values)
    evaluated = {name: values[name] for name in graph.needed_values}
    views = views_of(graph)
    complete(views, evaluated)
    for op in graph.ops:
        with np.errstate(all="ignore"):
            read = {name: reading(op, name, evaluated[name]) for name in op.inputs}
            results = run_reference(op, graph.tensors, read, rounds=rounds)
        astray = not_finite(op.name, results)
        if astray is not None:
            raise astray
        evaluated.update(results)
        complete(views, evaluated)
    return evaluated


def not_finite(op: str, results: Mapping[str, Array]) -> NotFiniteError | None:
    """The first of an op's results that is not finite throughout, as the error it is."""
    for name, array in results.items():
        if is_float(array.dtype) and not np.isfinite(widened(array)).all():
            value = "NaN" if np.isnan(widened(array)).any() else "infinity"
            return NotFiniteError(op, name, value, str(array.dtype))
    return None


def views_of(graph: TrainingGraph) -> list[Tensor]:
    """The tensors that are only others in another shape, each after its source."""
    written = {name for op in graph.ops for name in op.outputs}
    return [
        tensor
        for name, tensor in graph.tensors.items()
        if tensor.alias_of is not None and name not in written
    ]


def overwritten(graph: TrainingGraph, written: Mapping[str, Array]) -> dict[str, Array]:
    """What the tensors hold whose storage these have taken over (an old weight holds the new one)."""
    values: dict[str, Array] = {}
    for name, array in written.items():
        target = graph.tensors[name].alias_of
        while target is not None:
            tensor = graph.tensors[target]
            values[target] = array.reshape(tensor.shape)
            target = tensor.alias_of
    return values


def complete(views: Iterable[Tensor], values: dict[str, Array]) -> None:
    """Add the views whose source has a value by now."""
    for view in views:
        if view.name not in values and view.alias_of in values:
            values[view.name] = values[view.alias_of].reshape(view.shape)


def predict(
    graph: TrainingGraph, weights: Mapping[str, Array], images: Array | Mapping[str, Array], output: str = ""
) -> Array:
    """Output of the network, [samples, *output shape], for images [samples, *input shape], fp32.

    `images` are those of every input by its name, or of the only one; `output` is another than the first.
    `weights` are all kept tensors. References see the attribute ``inference``: running statistics instead of
    those of the batch, and no dropout.
    """
    fed = images if isinstance(images, Mapping) else {graph.input: images}
    values: dict[str, Array] = {**fed, **weights}
    output = output or graph.output
    for name, draw in graph.draws.items():
        shape = (len(values[graph.input]), *graph.tensors[name].shape[1:])
        values[name] = np.full(shape, draw.inference, np.float32)
    for op in graph.ops:
        if op.step == "LOSS":
            break  # what is computed again for the backward pass is not needed here
        if not is_forward(op.step):
            continue
        for name in op.inputs:
            if name not in values:
                values[name] = _batched_view(graph, values, name)
        quiet = replace(op, attributes={**op.attributes, "inference": True})
        arrays = {role: widened(values[name]) for role, name in zip(op.reads, op.inputs, strict=True)}
        results = step_of(op).reference(quiet, arrays)
        for role, array in results.items():
            if role in op.writes:
                given = np.asarray(array)
                values[op[role]] = rounded(given, FP32) if given.dtype.kind == "f" else given
    return values[output] if output in values else _batched_view(graph, values, output)


def _batched_view(graph: TrainingGraph, values: Mapping[str, Array], name: str) -> Array:
    source = name
    while source not in values:
        source = str(graph.tensors[source].alias_of)
    return values[source].reshape(-1, *graph.tensors[name].shape[1:])


def accuracy(
    graph: TrainingGraph,
    weights: Mapping[str, Array],
    images: Array | Mapping[str, Array],
    classes: Array,
    output: str = "",
) -> float:
    """Share of images whose largest output is at their class (integers [batch]); the rest as of `predict`."""
    return float(np.mean(np.argmax(predict(graph, weights, images, output), axis=1) == classes))

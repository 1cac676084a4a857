# SPDX-License-Identifier: Apache-2.0
"""How far whole networks agree with PyTorch: tensors of one evaluation against those of another.

What `run` checks is stricter and goes op by op (`pulptrain.running.number_check`); here references and
lowerings are compared from end to end, where rounding adds up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from configs.dtypes import FP32, DType
from configs.errors import InputError
from shared.oracle_torch import evaluate_torch
from shared.tolerances import tolerance
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import Array
from trainlib.registry import lowering_of


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor is from the truth: max|a - b|, and that over max|b|."""

    max_abs_error: float
    max_rel_error: float


def gradient_scales(graph: TrainingGraph, truth: Mapping[str, Array]) -> dict[str, float]:
    """What the error of a parameter's gradient is relative to: the largest gradient of its layer.

    Some gradients are zero but for rounding, and then have no size of their own: that of a scale which a
    later norm divides out, or of a bias which it subtracts. They are sums of the same terms as the other
    gradients of their layer, so they round as these do.
    """
    layers: dict[str, list[str]] = {}
    for weight, gradient in graph.gradients.items():
        if gradient in truth:
            layers.setdefault(weight.rpartition(".")[0], []).append(gradient)
    return {
        name: max(float(np.max(np.abs(truth[other]), initial=0.0)) for other in names)
        for names in layers.values()
        for name in names
    }


def compare(
    ours: Mapping[str, Array],
    truth: Mapping[str, Array],
    names: Iterable[str] | None = None,
    scales: Mapping[str, float] | None = None,
) -> dict[str, Difference]:
    """Difference per tensor of `names` (default: all tensors of `truth`).

    The relative error is max|a - b| / max|b|, or / the tensor's entry in `scales`: 0 if both are zero
    throughout, infinite if only the truth is or if `ours` holds a NaN. Raises InputError if `ours` lacks a
    tensor or has another shape.
    """
    result: dict[str, Difference] = {}
    for name in truth if names is None else names:
        if name not in ours or ours[name].shape != truth[name].shape:
            raise InputError(f"tensor '{name}' is missing or has another shape than the truth")
        expected = truth[name].astype(np.float64)
        worst = float(np.max(np.abs(ours[name].astype(np.float64) - expected), initial=0.0))
        scale = float(np.max(np.abs(expected), initial=0.0))
        if scales is not None:
            scale = scales.get(name, scale)
        if worst == 0.0:
            result[name] = Difference(0.0, 0.0)
        elif np.isnan(worst) or scale == 0.0:
            result[name] = Difference(float("inf") if np.isnan(worst) else worst, float("inf"))
        else:
            result[name] = Difference(worst, worst / scale)
    return result


def graph_tolerance(graph: TrainingGraph, accumulation: str = "reference") -> float:
    """Largest relative error allowed to a tensor of an iteration (`tolerances.tolerance`).

    fp32 throughout: the fp32 tolerance. Else that of the coarsest narrow format for one rounding per op that
    writes it, over the ops that lie one behind the other; with the longest reduction of the graph for
    `kernel` accumulation.
    """
    worst, length = tolerance(FP32), 0
    for op in graph.ops:
        if accumulation == "kernel" and lowering_of(op).default_kernel(op):
            results = sum(int(np.prod(graph.tensors[name].shape)) for name in op.outputs)
            length = max(length, -(-lowering_of(op).macs(op, graph.tensors) // results))
    for dtype in {tensor.dtype for tensor in graph.tensors.values() if tensor.dtype.is_narrow}:
        worst = max(worst, tolerance(dtype, roundings=_rounded_in_a_row(graph, dtype), length=length))
    return worst


def _rounded_in_a_row(graph: TrainingGraph, dtype: DType) -> int:
    """The most ops that round to `dtype` on any way through the graph."""
    roundings: dict[str, int] = {}
    for op in graph.ops:
        before = max((roundings.get(graph.storage_of(name), 0) for name in op.inputs), default=0)
        for name in op.outputs:
            roundings[graph.storage_of(name)] = before + (graph.tensors[name].dtype == dtype)
    return max(roundings.values(), default=0)


def own_rounding(
    graph: TrainingGraph, values: Mapping[str, Array], truth: Mapping[str, Array], names: Sequence[str]
) -> float:
    """Largest relative difference of PyTorch in float32 from `truth`, PyTorch in float64, over these tensors.

    It says how much a network magnifies rounding: a batch norm over few elements, or rounding to 16 bit
    before many layers, can make of 1e-7 what no tolerance per operation covers.
    """
    single = evaluate_torch(graph, values, "float32")
    errors = compare(single, truth, names, gradient_scales(graph, truth))
    return max((error.max_rel_error for error in errors.values()), default=0.0)


ROUNDING_MARGIN = 4
"""How many times PyTorch's own rounding error ours may be: its sums have another order, and other errors.

Measured on the models installed: below 3 (mobilenet-v1, the one that magnifies most).
"""

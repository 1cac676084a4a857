# SPDX-License-Identifier: Apache-2.0
"""Tiles of the norms in several steps, for groups of elements that L1 need not hold.

A step that sums may be cut along its sum, one that works per element along everything. Forks: one per tile,
or per sample in instance and group norm, as in `norm_lowering`. The loops are those of the norms in one step,
taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainlib.graph import Op
from trainlib.primitives.definition import Values
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.norms.norm import BIASED, Rows, geometry_of
from trainlib.primitives.norms.norm_lowering import NormLowering, given_xhat, named, operands_of, samples_of
from trainlib.steps import Array, KernelChoice, Ranges, Tensors, TileTask

Compute = Callable[[Op, Values], tuple[Array, ...]]
"""What a call computes: arrays by role to the arrays of the roles written, in that order."""

_ARRAYS = {
    **{"X": "x", "G": "dy", "M": "mean", "R": "inv_std", "W": "w", "B": "b"},
    **{"V": "var", "P": "mean_g", "Q": "mean_gx"},
}
"""Arrays of the nests, and the roles that lie in them."""

READ_IN_PREDICTION = ("running_mean",)
"""What FW_MEAN reads in prediction alone, so that no tile loads it."""


@dataclass(frozen=True, slots=True)
class _Pass(NormLowering):
    """A pass over x (and dy) in the loop `nest`; `compute` is what one call does, `result` per element."""

    nest: str
    compute: Compute
    result: str = "y"

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """One box of x, and what it gives to the step."""
        geometry = geometry_of(op)
        regions = geometry.regions(ranges)
        reads = tuple(role for role in op.reads if role not in READ_IN_PREDICTION)
        streams = {**_ARRAYS, "Y": self.result}
        sizes = {**self.sizes(geometry, regions[0]), **self.flags(op), "centred": int(geometry.centred)}
        sizes |= {"biased": int("b" in op)}

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            return self.compute(op, dict(zip(reads, arrays, strict=True)))

        calls = []
        for sample in samples_of(geometry, regions[0]):
            arrays = self.arrays(op, tensors, regions[0], streams, sample)
            calls.append(
                kernel_call(
                    choice, self.nest, sizes, arrays, named(reads, sample), named(op.writes, sample), function
                )
            )
        return TileTask(
            operands_of(op, reads, regions), operands_of(op, op.writes, regions), (), tuple(calls)
        )


@dataclass(frozen=True, slots=True)
class SumPass(_Pass):
    """A step that sums over all elements of a mean: a result is one number per mean."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples and rows or groups, or channels."""
        return geometry_of(op).statistics_extents()

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """What the elements of a mean count: samples, rows, columns, or elements of a row."""
        return geometry_of(op).statistics_reductions()


@dataclass(frozen=True, slots=True)
class ElementPass(_Pass):
    """A step whose results are one per element of x."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Everything."""
        return geometry_of(op).dimensions


class InverseDeviation(NormLowering):
    """FW_INV: 1 / sqrt(variance + eps); running statistics. One fork on one number per mean."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """That of the statistics; running ones are a mean over the batch, which then is whole."""
        geometry = geometry_of(op)
        extents = geometry.statistics_extents()
        return {name: size for name, size in extents.items() if not (geometry.running and name == BATCH)}

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some statistics."""
        geometry = geometry_of(op)
        regions = geometry.regions(ranges)
        statistics = int(np.prod([stop - start for start, stop in regions[1]]))
        streams = {"V": "var", "R": "inv_std", "M": "mean", "A": "running_mean", "B": "running_var"}
        streams |= {"X": "running_mean_updated", "Y": "running_var_updated"}
        elements = regions[2][0][1] - regions[2][0][0] if geometry.running else statistics
        arrays = {
            name: Piece(role if role in op else "var", strides=(elements, 1) if name in "VRM" else (1,))
            for name, role in streams.items()
        }
        sizes = {"elements": elements, "samples": statistics // elements, "running": int(geometry.running)}

        def function(given: Sequence[Array]) -> tuple[Array, ...]:
            values = dict(zip(op.reads, given, strict=True))
            variance = values["var"].astype(np.float64)
            results = {"inv_std": 1 / np.sqrt(variance + op.attributes["eps"])}
            if geometry.running:
                count = geometry.elements
                kept = variance if BIASED in op.attributes else variance * (count / (count - 1))
                for role, new in (("running_mean", values["mean"]), ("running_var", kept)):
                    fresh = new.reshape(-1, elements).mean(axis=0, dtype=np.float64)
                    step = op.attributes["momentum"] * (fresh - values[role])
                    results[f"{role}_updated"] = values[role] + step
            return tuple(results[role].astype(np.float32) for role in op.writes)

        call = kernel_call(choice, "norm_inv", sizes, arrays, op.reads, op.writes, function)
        return TileTask(operands_of(op, op.reads, regions), operands_of(op, op.writes, regions), (), (call,))


class KnownStatistics(NormLowering):
    """FW_KNOWN: the running statistics, given on as they are. One fork on one number per mean."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Channels; those of all samples together."""
        extents = geometry_of(op).statistics_extents()
        return {name: size for name, size in extents.items() if name != BATCH}

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some channels, in the loop of `InverseDeviation`."""
        regions = geometry_of(op).regions(ranges)
        (channels,) = regions[2]
        elements = channels[1] - channels[0]
        shape = tuple(stop - start for start, stop in regions[1])
        streams = {"V": "running_var", "R": "inv_std", "M": "running_mean", "A": "running_mean"}
        streams |= {"B": "running_var", "X": "running_mean_updated", "Y": "running_var_updated"}
        arrays = {
            name: Piece(role, strides=(1, 0) if name in "VM" else (elements, 1) if name == "R" else (1,))
            for name, role in streams.items()
        }
        sizes = {"elements": elements, "samples": int(np.prod(shape)) // elements, "running": 1}

        def function(given: Sequence[Array]) -> tuple[Array, ...]:
            mean, variance = given
            inverse = (1 / np.sqrt(variance.astype(np.float64) + op.attributes["eps"])).astype(np.float32)
            wide = [np.broadcast_to(values, shape).copy() for values in (mean, inverse)]
            return (*wide, mean.copy(), variance.copy())

        call = kernel_call(choice, "norm_inv", sizes, arrays, op.reads, op.writes, function)
        return TileTask(operands_of(op, op.reads, regions), operands_of(op, op.writes, regions), (), (call,))


def _statistic(op: Op, x: Array, sums: Array) -> Array:
    """One sum per row of a tile, over D, as the box of a statistic."""
    geometry = geometry_of(op)
    if geometry.family == "batch":
        shape: tuple[int, ...] = (len(sums),)
    else:
        shape = x.shape[: 1 + len(geometry.leading)] if geometry.family == "row" else (len(x), -1)
    return (sums / geometry.elements).reshape(shape).astype(np.float32)


def _mean(op: Op, values: Values) -> tuple[Array, ...]:
    x = values["x"]
    return (_statistic(op, x, Rows(geometry_of(op)).of(x).sum(axis=1)),)


def _variance(op: Op, values: Values) -> tuple[Array, ...]:
    x = values["x"]
    offset = Rows(geometry_of(op)).of(x)
    if "mean" in values:
        offset = offset - values["mean"].astype(np.float64).reshape(-1, 1)
    return (_statistic(op, x, np.einsum("re,re->r", offset, offset)),)


def _normalised(op: Op, values: Values) -> tuple[Array, ...]:
    x = values["x"]
    rows = Rows(geometry_of(op))
    _, result = given_xhat(op, tuple(values), tuple(values.values()))
    result = result * rows.parameters(values.get("w"), x)
    if "b" in values:
        result = result + rows.parameters(values["b"], x)
    return (rows.back(result, x.shape),)


def _gradient_means(op: Op, values: Values) -> tuple[Array, ...]:
    rows, x = Rows(geometry_of(op)), values["x"]
    _, xhat = given_xhat(op, tuple(values), tuple(values.values()))
    g = rows.of(values["dy"]) * rows.parameters(values.get("w"), x)
    sums = {"mean_g": g.sum(axis=1), "mean_gx": np.einsum("re,re->r", g, xhat)}
    return tuple(_statistic(op, x, sums[role]) for role in op.writes)


def _input_gradient(op: Op, values: Values) -> tuple[Array, ...]:
    geometry = geometry_of(op)
    rows, x = Rows(geometry), values["x"]
    _, xhat = given_xhat(op, tuple(values), tuple(values.values()))
    weights = rows.parameters(values.get("w"), x)
    g = rows.of(values["dy"]) * weights
    # In batch norm the means come from WG, which knows no w: a factor of the whole row.
    factor = weights if geometry.family == "batch" else 1.0
    for role, term in (("mean_g", 1.0), ("mean_gx", xhat)):
        if role in values:
            g = g - values[role].astype(np.float64).reshape(-1, 1) * factor * term
    return (rows.back(g * values["inv_std"].astype(np.float64).reshape(-1, 1), x.shape),)


def _scaled(op: Op, values: Values) -> tuple[Array, ...]:
    rows, dy = Rows(geometry_of(op)), values["dy"]
    g = rows.of(dy) * rows.parameters(values.get("w"), dy)
    return (rows.back(g * values["inv_std"].astype(np.float64).reshape(-1, 1), dy.shape),)


MEAN = SumPass("norm_mean", _mean)
VARIANCE = SumPass("norm_var", _variance)
APPLY = ElementPass("norm_apply", _normalised)
GRADIENT_MEANS = SumPass("norm_ig_sums", _gradient_means)
INPUT_GRADIENT = ElementPass("norm_ig_apply", _input_gradient, "dx")
SCALE = ElementPass("norm_ig_scale", _scaled, "dx")

# SPDX-License-Identifier: Apache-2.0
"""Tiles of the norms in several steps, for groups of elements that L1 need not hold.

A step that sums may be cut along its sum, one that works per element along everything. Forks: one per tile,
or per sample in instance and group norm, as in `norm_lowering`. The loops are those of the norms in one step,
taken apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainlib.ir.graph import Op
from trainlib.ir.steps import Array, KernelCall, KernelChoice, Region, Tensors
from trainlib.primitives.definition import Values
from trainlib.primitives.formulas import Formula
from trainlib.primitives.lowering.axes import Area
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.norms import norm_formulas as formulas
from trainlib.primitives.norms.norm import BIASED, geometry_of
from trainlib.primitives.norms.norm_lowering import (
    Nest,
    NormLowering,
    Regions,
    known_statistics,
)

_ARRAYS = {
    **{"X": "x", "G": "dy", "M": "mean", "R": "inv_std", "W": "w", "B": "b"},
    **{"V": "var", "P": "mean_g", "Q": "mean_gx"},
}
"""Arrays of the nests, and the roles that lie in them."""

READ_IN_PREDICTION = ("running_mean",)
"""What FW_MEAN reads in prediction alone, so that no tile loads it."""


@dataclass(frozen=True)
class _Pass(NormLowering):
    """A pass over x (and dy) in the nest `loop`; `formula` is its row program."""

    streams = _ARRAYS

    loop: str
    formula: Formula

    def read(self, op: Op, sample: int | None) -> Sequence[str]:
        """All but what is read in prediction alone."""
        return tuple(role for role in op.reads if role not in READ_IN_PREDICTION)

    def loaded(self, area: Area) -> Sequence[str]:
        """What calls read."""
        return self.read(area.op, None)

    def nest(self, op: Op, tensors: Tensors, image: Region, sample: int | None) -> Nest:
        """The loop, on what there is of its arrays."""
        arrays = self.arrays(op, tensors, image, self.arrays_of(op), sample)
        flags = {"centred": int(geometry_of(op).centred), "biased": int("b" in op)}
        return self.loop, {**self.sizes(op, image), **flags}, arrays

    def arrays_of(self, op: Op) -> Mapping[str, str]:
        """With what is made of an element."""
        return {**self.streams, "Y": "dx" if "dx" in op else "y"}

    def reference(self, op: Op, values: Values) -> Values:
        """In prediction the running mean is the mean."""
        if op.attributes.get("inference") and "running_mean" in values:
            return known_statistics(op, {**values, "running_var": values["running_mean"]})
        return super().reference(op, values)


@dataclass(frozen=True)
class SumPass(_Pass):
    """A step that sums over all elements of a mean: a result is one number per mean."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples and rows or groups, or channels."""
        return geometry_of(op).own(geometry_of(op).axes()[1])

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """What the elements of a mean count: samples, rows, columns, or elements of a row."""
        return geometry_of(op).own(geometry_of(op).axes()[1], summed=True)


@dataclass(frozen=True)
class ElementPass(_Pass):
    """A step whose results are one per element of x."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Everything."""
        return geometry_of(op).dimensions


class InverseDeviation(NormLowering):
    """FW_INV: 1 / sqrt(variance + eps); running statistics. One fork on one number per mean."""

    def calls(self, op: Op, tensors: Tensors, regions: Regions, choice: KernelChoice) -> list[KernelCall]:
        """On some statistics."""
        geometry = geometry_of(op)
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
            made = self.results(op, dict(zip(op.reads, given, strict=True)))
            return tuple(made[role].astype(np.float32) for role in op.writes)

        details = {"mean_of": geometry.elements, "biased_kept": int(BIASED in op.attributes)}
        return [
            kernel_call(choice, "norm_inv", sizes, arrays, op.reads, op.writes, function, details=details)
        ]

    def reference(self, op: Op, values: Values) -> Values:
        """In prediction by the running variance."""
        if not op.attributes.get("inference") or "running_var" not in values:
            return self.results(op, values)
        used = {"var": np.broadcast_to(values["running_var"], values["var"].shape)}
        kept = {f"{role}_updated": values[role] for role in ("running_mean", "running_var")}
        return {**self.results(op, {**values, **used}), **kept}

    def results(self, op: Op, values: Values, *, whole: bool = False) -> Values:
        """In float64; with the running statistics, as means over the samples, if there are any."""
        variance = values["var"].astype(np.float64)
        results = {"inv_std": 1 / np.sqrt(variance + op.attributes["eps"])}
        if "running_mean" in values:
            count = geometry_of(op).elements
            kept = variance if BIASED in op.attributes else variance * (count / (count - 1))
            for role, new in (("running_mean", values["mean"]), ("running_var", kept)):
                fresh = new.reshape(-1, len(values[role])).mean(axis=0, dtype=np.float64)
                step = op.attributes["momentum"] * (fresh - values[role])
                results[f"{role}_updated"] = values[role] + step
        return results


class KnownStatistics(InverseDeviation):
    """FW_KNOWN: the running statistics, given on as they are. One fork on one number per mean."""

    def results(self, op: Op, values: Values, *, whole: bool = False) -> Values:
        """Of all samples."""
        return known_statistics(op, values)

    def calls(self, op: Op, tensors: Tensors, regions: Regions, choice: KernelChoice) -> list[KernelCall]:
        """On some channels, in the loop of `InverseDeviation`."""
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
            made = known_statistics(op, dict(zip(op.reads, given, strict=True)), shape)
            return tuple(made[role].copy() for role in op.writes)

        details = {"source": "norm_known"}
        return [
            kernel_call(choice, "norm_inv", sizes, arrays, op.reads, op.writes, function, details=details)
        ]


MEAN = SumPass("norm_mean", formulas.mean_of)
VARIANCE = SumPass("norm_var", formulas.variance)
APPLY = ElementPass("norm_apply", formulas.normalised)
GRADIENT_MEANS = SumPass("norm_ig_sums", formulas.gradient_means)
INPUT_GRADIENT = ElementPass("norm_ig_apply", formulas.from_means)
SCALE = ElementPass("norm_ig_scale", formulas.scaled)

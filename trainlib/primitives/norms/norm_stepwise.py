# SPDX-License-Identifier: Apache-2.0
"""Tiles of the norms in several steps, for groups of elements that L1 need not hold.

A step that sums may be cut along its sum, one that works per element along everything. Forks: one per tile,
or per sample in instance and group norm, as in `norm_lowering`. The loops are those of the norms in one step,
taken apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainlib.ir.graph import Op
from trainlib.primitives.definition import Values
from trainlib.primitives.formulas import Formula
from trainlib.primitives.lowering.axes import Area
from trainlib.primitives.norms import norm_formulas as formulas
from trainlib.primitives.norms.norm import OF_ELEMENTS, OF_STATISTICS, geometry_of
from trainlib.primitives.norms.norm_lowering import Nest, NormLowering, StatisticsStep, known_statistics

_ARRAYS = {
    **{"X": "x", "G": "dy", "M": "mean", "R": "inv_std", "W": "w", "B": "b"},
    **{"V": "var", "P": "mean_g", "Q": "mean_gx"},
}
"""Arrays of the nests, and the roles that lie in them."""

READ_IN_PREDICTION = ("running_mean",)
"""What FW_MEAN reads in prediction alone, so that no tile loads it."""


@dataclass(frozen=True)
class _Pass(NormLowering):
    """A pass over x (and dy) in the nest `loop`, of everything or to sums; `formula` is its row program."""

    loop: str
    formula: Formula
    cut: int = OF_ELEMENTS
    is_sum: bool = False

    def read(self, op: Op, *, later: bool = False) -> Sequence[str]:
        """All but what is read in prediction alone."""
        return tuple(role for role in op.reads if role not in READ_IN_PREDICTION)

    def loaded(self, area: Area) -> Sequence[str]:
        return self.read(area.op)

    def nest(self, op: Op) -> Nest:
        """The loop, with what is made of an element."""
        flags = self.flags(op, centred=int(geometry_of(op).centred), biased=int("b" in op))
        return self.loop, {**_ARRAYS, "Y": "dx" if "dx" in op else "y"}, {}, flags

    def reference(self, op: Op, values: Values) -> Values:
        """In prediction the running mean is the mean."""
        if op.attributes.get("inference") and "running_mean" in values:
            return known_statistics(op, {**values, "running_var": values["running_mean"]})
        return super().reference(op, values)


class _InverseDeviation(StatisticsStep):
    """FW_INV: 1 / sqrt(variance + eps); running statistics."""

    def reference(self, op: Op, values: Values) -> Values:
        """In prediction by the running variance."""
        if not op.attributes.get("inference") or "running_var" not in values:
            return super().reference(op, values)
        used = {"var": np.broadcast_to(values["running_var"], values["var"].shape)}
        kept = {f"{role}_updated": values[role] for role in ("running_mean", "running_var")}
        return {**super().reference(op, {**values, **used}), **kept}


class _KnownStatistics(StatisticsStep):
    """FW_KNOWN: the running statistics, given on as they are."""

    def reference(self, op: Op, values: Values) -> Values:
        return known_statistics(op, values)


_UPDATED = "X:running_mean_updated Y:running_var_updated"
INVERSE_DEVIATION = _InverseDeviation(
    "norm_inv",
    f"V:var R:inv_std M:mean A:running_mean B:running_var {_UPDATED}",
    formulas.inverse_deviation,
)
KNOWN_STATISTICS = _KnownStatistics(
    "norm_inv",
    f"A:running_mean B:running_var V:running_var R:inv_std M:running_mean {_UPDATED}",
    formulas.known_statistics,
    "norm_known",
)
MEAN = _Pass("norm_mean", formulas.mean_of, OF_STATISTICS, is_sum=True)
VARIANCE = _Pass("norm_var", formulas.variance, OF_STATISTICS, is_sum=True)
APPLY = _Pass("norm_apply", formulas.normalised)
GRADIENT_MEANS = _Pass("norm_ig_sums", formulas.gradient_means, OF_STATISTICS, is_sum=True)
INPUT_GRADIENT = _Pass("norm_ig_apply", formulas.from_means)
SCALE = _Pass("norm_ig_scale", formulas.scaled)

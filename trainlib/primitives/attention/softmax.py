# SPDX-License-Identifier: Apache-2.0
"""Softmax over the last axis: e = exp(x - max), y = e / sum(e); dx = (dy - sum(dy · y)) · y.

`exponential` says which exp: ``exact``, or one of PULP-TrainLib's: ``schraudolph`` (its bit trick, what the
library always uses, and a layer in the variant as-published) and ``taylor`` (its polynomial for powers of
two, zero from 2^-3.14 on; scaled here by log2 e, so that it approximates e^x). IG is the formula above on the
y there is, as in the library.

Passes as in the library: row maxima, exponentials with their row sums, division; and row sums, scaling. Rows
are split over the cores. Maxima and sums are kept in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from configs.dtypes import FP32
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, Tensors
from trainlib.primitives.definition import AsPublished, DrawnInput, Example, LayerPlan, LayerPrimitive
from trainlib.primitives.elementwise.functions import schraudolph, taylor
from trainlib.primitives.lowering.axes import Form, Groups, LeadingBoxes
from trainlib.primitives.lowering.boxes import leading_extents, rows_of
from trainlib.primitives.lowering.forks import Fork, ForkLowering

MAXIMA, SUMS = VECTORS = ("maxima", "sums")
"""Names of the scratch buffers of one number per row."""

_EXPONENTIALS: Mapping[str, tuple[str, Callable[[Array], Array]]] = {
    "exact": ("exp_sum_exact", np.exp),
    "schraudolph": ("exp_sum", schraudolph),
    "taylor": ("exp_sum_taylor", taylor),
}
"""Nest and function of each kind of exponential."""


class _Schema(LayerSchema):
    exponential: Literal["exact", "schraudolph", "taylor"] = "exact"
    """How e^x is computed: exactly, by the bits of the exponent (PULP-TrainLib), or by a Taylor series."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = rows_of(inputs[0], "softmax", where)
    return LayerPlan(shape, attributes={"exponential": attributes["exponential"]})


def over_rows(form: Form, nest: str, buffers: str, moves: str, formula: Callable[..., Any]) -> Fork:
    """A pass, ``x maxima -> y sums``, over rows; `buffers` are those of the arrays of the nest."""
    *rows, column = form.axes(form.op.writes[0])
    return Fork(nest, buffers, moves, formula, {"N": tuple(rows), "M": (column,)}, ("N",), ("M",))


class RowLowering(ForkLowering):
    """These `passes` over rows, which go over the cores, with scratch buffers of one number per row."""

    def __init__(self, passes: Callable[[Form], Sequence[Fork]], vectors: Sequence[str] = VECTORS) -> None:
        self.passes, self.vectors = passes, vectors

    def kernels(self, form: Form) -> Sequence[Fork]:
        """One after the other."""
        return self.passes(form)

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """A number per row."""
        return dict.fromkeys(self.vectors, (form.axes(form.op.writes[0])[:-1],))


class Rows(RowLowering, LeadingBoxes):
    """Tiles are some rows of everything."""

    of_scratch = FP32

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """``n`` and up to two dimensions before the last, which is reduced over."""
        shape = tensors[op.outputs[0]].shape
        return leading_extents(shape, range(len(shape) - 2))


def row_maxima(form: Form, x: str) -> Fork:
    """The largest element of every row of x, into `MAXIMA`."""
    return over_rows(form, "row_max", f"X:{x} R:{MAXIMA}", f"{x} -> {MAXIMA}", lambda x: x.max(axis=1))


def softmax_passes(form: Form, x: str, y: str, kind: str = "exact") -> list[Fork]:
    """Row maxima of x; exponentials into y, and their sums; y divided by the sums."""
    nest, exponential = _EXPONENTIALS[kind]

    def exponentials(x: Array, highest: Array) -> tuple[Array, ...]:
        values = exponential(x - highest).astype(x.dtype)
        return values, values.sum(axis=1)

    arrays, moves = f"X:{x} Y:{y} R:{MAXIMA} Z:{SUMS}", f"{x} {MAXIMA} -> {y} {SUMS}"
    return [
        row_maxima(form, x),
        over_rows(form, nest, arrays, moves, exponentials),
        over_rows(form, "row_div", f"X:{y} Z:{SUMS}", f"{y} {SUMS} -> {y}", lambda y, sums: y / sums),
    ]


def softmax_gradient_passes(form: Form, y: str, dy: str, dx: str) -> list[Fork]:
    """Row sums of dy · y; then (dy - sum) · y."""
    arrays, moves = f"X:{y} G:{dy} Z:{SUMS}", f"{y} {dy} -> {SUMS}"
    scaled, result = f"{arrays} Y:{dx}", f"{y} {dy} {SUMS} -> {dx}"
    return [
        over_rows(form, "softmax_bw_sum", arrays, moves, lambda y, dy: (y * dy).sum(axis=1)),
        over_rows(form, "softmax_bw_scale", scaled, result, lambda y, dy, sums: (dy - sums) * y),
    ]


_FORWARD = Rows(lambda form: softmax_passes(form, "x", "y", form.op.attributes["exponential"]))
_BACKWARD = Rows(lambda form: softmax_gradient_passes(form, "y", "dy", "dx"), (SUMS,))

PRIMITIVE = LayerPrimitive(
    name="softmax",
    schema=_Schema,
    plan=_plan,
    steps=(_FORWARD.step("FW", "x -> y"), _BACKWARD.step("IG", "y dy -> dx")),
    published=AsPublished(options={"exponential": "schraudolph"}),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=(DrawnInput((3, 4, 5), low=-9, high=9),)),
        Example(inputs=(DrawnInput((2, 9), low=-4, high=4),)),
        Example({"exponential": "schraudolph"}, (DrawnInput((3, 8), low=-4, high=4),)),
        Example({"exponential": "taylor"}, (DrawnInput((2, 3, 6), low=-2, high=2),)),
        Example({"variant": "as-published"}, (DrawnInput((2, 5), low=-4, high=4),)),
    ),
)

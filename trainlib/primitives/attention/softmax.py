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
from math import prod
from typing import Any, Literal

import numpy as np

from configs.dtypes import FP32, DType
from configs.model_file import LayerSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, Scratch, Tensors
from trainlib.primitives.definition import (
    AsPublished,
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    Step,
    Values,
)
from trainlib.primitives.elementwise.functions import schraudolph, taylor
from trainlib.primitives.lowering.axes import Area, LeadingBoxes
from trainlib.primitives.lowering.boxes import leading_extents, rows_of
from trainlib.primitives.lowering.kernel_call import Piece
from trainlib.primitives.lowering.pieces import TileBuilder

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


class RowPasses:
    """Calls on boxes of one shape, taken as matrices whose rows are split over the cores.

    Vectors of one number per row are kept as `of_rows`.
    """

    def __init__(self, build: TileBuilder, shape: tuple[int, ...], of_rows: DType = FP32) -> None:
        self.build = build
        self.shape = shape
        self._rows, self._columns = prod(shape[:-1]), shape[-1]
        self._of_rows = of_rows

    def vector(self, name: str) -> None:
        """A scratch buffer of one number per row, `MAXIMA` or `SUMS`."""
        self.build.scratch.append(Scratch(name, (self._rows,), self._of_rows))

    def over_rows(self, nest: str, arrays: str, moves: str, compute: Callable[..., Any]) -> None:
        """A pass ``x maxima -> y sums``, of a nest whose arrays are these buffers, ``X:x R:maxima ...``.

        `compute` takes matrices [rows, columns] and vectors, and gives one of them or several.
        """
        sizes = {"N": self._rows, "M": self._columns}
        places = dict(item.split(":") for item in arrays.split())
        shapes = {
            place: (self._rows,) if place in VECTORS else tuple(sizes.values()) for place in places.values()
        }
        reads, writes = (side.split() for side in moves.split("->"))

        def function(*given: Array) -> tuple[Array, ...]:
            made = compute(*(array.reshape(shapes[place]) for place, array in zip(reads, given, strict=True)))
            several = made if isinstance(made, tuple) else (made,)
            return tuple(
                array if place in VECTORS else array.reshape(self.shape)
                for place, array in zip(writes, several, strict=True)
            )

        pieces = {name: Piece(place, shapes[place]) for name, place in places.items()}
        self.build.run(nest, pieces, reads, writes, function, **sizes)


class Rows(LeadingBoxes):
    """What FW and IG share: tiles are some rows of everything."""

    def __init__(self, passes: Callable[[RowPasses, Op], None]) -> None:
        self.passes = passes

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """``n`` and up to two dimensions before the last, which is reduced over."""
        shape = tensors[op.outputs[0]].shape
        return leading_extents(shape, range(len(shape) - 2))

    def compute(self, area: Area, build: TileBuilder) -> None:
        """The passes of the step."""
        self.passes(RowPasses(build, area.sizes(area.op.writes[0])), area.op)


def row_maxima(rows: RowPasses, x: str = "x") -> None:
    """The largest element of every row of x, into `MAXIMA`."""
    rows.vector(MAXIMA)
    rows.vector(SUMS)
    rows.over_rows("row_max", f"X:{x} R:{MAXIMA}", f"{x} -> {MAXIMA}", lambda x: x.max(axis=1))


def softmax_passes(rows: RowPasses, x: str, y: str, kind: str = "exact") -> None:
    """Row maxima of x; exponentials into y, and their sums; y divided by the sums."""
    nest, exponential = _EXPONENTIALS[kind]

    def exponentials(x: Array, highest: Array) -> tuple[Array, ...]:
        values = exponential(x - highest[:, None])
        return values, values.sum(axis=1)

    row_maxima(rows, x)
    arrays = f"X:{x} Y:{y} R:{MAXIMA} Z:{SUMS}"
    rows.over_rows(nest, arrays, f"{x} {MAXIMA} -> {y} {SUMS}", exponentials)
    rows.over_rows("row_div", f"X:{y} Z:{SUMS}", f"{y} {SUMS} -> {y}", lambda y, sums: y / sums[:, None])


def softmax_gradient_passes(rows: RowPasses, y: str, dy: str, dx: str) -> None:
    """Row sums of dy · y; then (dy - sum) · y."""
    rows.vector(SUMS)
    arrays = f"X:{y} G:{dy} Z:{SUMS}"
    rows.over_rows("softmax_bw_sum", arrays, f"{y} {dy} -> {SUMS}", lambda y, dy: (y * dy).sum(axis=1))
    rows.over_rows(
        "softmax_bw_scale",
        f"{arrays} Y:{dx}",
        f"{y} {dy} {SUMS} -> {dx}",
        lambda y, dy, sums: (dy - sums[:, None]) * y,
    )


def _forward(op: Op, values: Values) -> Values:
    kind = op.attributes["exponential"]
    x = values["x"]
    if kind == "exact":
        shifted = x.astype(np.float64)
        shifted -= shifted.max(
            axis=-1, keepdims=True
        )  # beside large x the logarithm of the sum would be lost
        return {"y": np.exp(shifted - np.logaddexp.reduce(shifted, axis=-1, keepdims=True))}
    below = x - np.amax(x, axis=-1, keepdims=True)
    weights = _EXPONENTIALS[kind][1](below).astype(np.float64)
    return {"y": weights / np.sum(weights, axis=-1, keepdims=True)}


def _backward(op: Op, values: Values) -> Values:
    y, dy = values["y"].astype(np.float64), values["dy"].astype(np.float64)
    inner = np.einsum("...i,...i->...", y, dy)
    return {"dx": y * dy - y * inner[..., None]}


PRIMITIVE = LayerPrimitive(
    name="softmax",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of(
            "FW",
            "x -> y",
            _forward,
            Rows(lambda rows, op: softmax_passes(rows, "x", "y", op.attributes["exponential"])),
        ),
        Step.of(
            "IG",
            "y dy -> dx",
            _backward,
            Rows(lambda rows, op: softmax_gradient_passes(rows, "y", "dy", "dx")),
        ),
    ),
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

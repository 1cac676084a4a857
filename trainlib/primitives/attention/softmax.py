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
from trainlib.primitives.formulas import wide
from trainlib.primitives.lowering.axes import Area, LeadingBoxes
from trainlib.primitives.lowering.boxes import leading_extents, rows_of
from trainlib.primitives.lowering.kernel_call import Piece
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.lowering.row_loop import RowLoop

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
                (array if place in VECTORS else array.reshape(self.shape)).astype(np.float32, copy=False)
                for place, array in zip(writes, several, strict=True)
            )

        pieces = {name: Piece(place, shapes[place]) for name, place in places.items()}
        self.build.run(nest, pieces, reads, writes, function, **sizes)
        self.build.known(rows=_loop(arrays, moves, compute))


class WholeRows(RowPasses):
    """The same passes at once on whole tensors, by role: the untiled reference."""

    def __init__(self, values: Values) -> None:
        self.values = {role: array.reshape(-1, array.shape[-1]) for role, array in wide(values).items()}

    def vector(self, name: str) -> None:
        """None is needed."""

    def over_rows(self, nest: str, arrays: str, moves: str, compute: Callable[..., Any]) -> None:
        """A pass."""
        reads, writes = (side.split() for side in moves.split("->"))
        made = compute(*(self.values[place] for place in reads))
        self.values |= zip(writes, made if isinstance(made, tuple) else (made,), strict=True)


def _loop(arrays: str, moves: str, compute: Callable[..., Any]) -> RowLoop:
    letters = {place: name for name, place in (item.split(":") for item in arrays.split())}
    reads, writes = ("".join(letters[place] for place in side.split()) for side in moves.split("->"))
    places = {letter: "r" if place in VECTORS else "r*M + i" for place, letter in letters.items()}
    return RowLoop(compute, reads, writes, places, rows=("N",), elements=("M",))


class Rows(LeadingBoxes):
    """What FW and IG share: tiles are some rows of everything."""

    def __init__(self, passes: Callable[[RowPasses, Op], None]) -> None:
        self.passes = passes

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """``n`` and up to two dimensions before the last, which is reduced over."""
        shape = tensors[op.outputs[0]].shape
        return leading_extents(shape, range(len(shape) - 2))

    def reference(self, op: Op, values: Values) -> Values:
        """The passes of the step on whole tensors."""
        rows = WholeRows(values)
        self.passes(rows, op)
        return {role: rows.values[role].reshape(values[op.reads[0]].shape) for role in op.writes}

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
        values = exponential(x - highest[:, None]).astype(x.dtype)
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


_FORWARD = Rows(lambda rows, op: softmax_passes(rows, "x", "y", op.attributes["exponential"]))
_BACKWARD = Rows(lambda rows, op: softmax_gradient_passes(rows, "y", "dy", "dx"))

PRIMITIVE = LayerPrimitive(
    name="softmax",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x -> y", _FORWARD.reference, _FORWARD, formula=True),
        Step.of("IG", "y dy -> dx", _BACKWARD.reference, _BACKWARD, formula=True),
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

# SPDX-License-Identifier: Apache-2.0
"""ReLU with a trained slope: y = x where x > 0, else w x, one w for all or one per channel (He et al. 2015).

dx = dy where x > 0, else w dy; dw = sum of x dy where x <= 0, over all that has the slope.
Slopes start at 0.25, as in PyTorch. PULP-TrainLib has none: its nests are estimates. A single slope's dw is
summed row by row over the cores, the rows then by one core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from configs.dtypes import FP32
from configs.model_file import LayerSchema
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.ir.steps import Array, Scratch, Tensors
from trainlib.primitives.definition import (
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    Parameter,
    Step,
    Values,
)
from trainlib.primitives.lowering.axes import LEADING, ONE, Area, Axes, AxesLowering, LeadingBoxes
from trainlib.primitives.lowering.boxes import rows_of
from trainlib.primitives.lowering.pieces import Piece, TileBuilder

START = Initial("constant", 0.25)

ROWS = "dw_of_rows"
"""Name of the scratch buffer of the sums of rows."""


class _Schema(LayerSchema):
    per_channel: bool = False
    """A slope per channel (the first dimension behind the batch) in place of one for all."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape, per_channel = rows_of(inputs[0], "prelu", where), attributes["per_channel"]
    slopes = shape[1] if per_channel else 1
    return LayerPlan(shape, {"w": Parameter((slopes,), START)}, attributes={"per_channel": per_channel})


def _sizes(op: Op, shape: tuple[int, ...]) -> dict[str, int]:
    """Samples, channels with a slope of their own, and elements behind each, of a box."""
    if not op.attributes["per_channel"]:
        return {"samples": 1, "channels": 1, "elements": prod(shape)}
    return {"samples": shape[0], "channels": shape[1], "elements": prod(shape[2:])}


def slope_axes(op: Op, tensors: Tensors, role: str) -> Axes:
    """Of w (and dw) a dimension of channels, or one element."""
    axes = LEADING[: len(tensors[op["x"]].shape)]
    return (axes[1] if op.attributes["per_channel"] else ONE,) if role.endswith("w") else axes


def _spread(w: Array, rank: int) -> Array:
    """w as it is multiplied with x."""
    return w.reshape(1, -1, *(1,) * (rank - 2))


def _sloped(x: Array, source: Array, w: Array) -> Array:
    """What is passed on where x is above 0, times the slope elsewhere."""
    return np.where(x > 0, source, _spread(w, x.ndim) * source)


def _terms(x: Array, dy: Array) -> Array:
    """What dw is a sum of."""
    return np.where(x > 0, 0, x.astype(np.float64) * dy)


class _Elementwise(LeadingBoxes):
    """FW and IG: any box; `source` is what is passed on, or multiplied with the slope."""

    def __init__(self, nest: str, source: str, result: str) -> None:
        self.nest, self.source, self.result = nest, source, result

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """w has a slope per channel, or one."""
        return slope_axes(op, tensors, role)

    def loaded(self, area: Area) -> Sequence[str]:
        """The slopes last."""
        return (*dict.fromkeys(("x", self.source)), "w")

    def compute(self, area: Area, build: TileBuilder) -> None:
        """One fork."""
        op = area.op
        sizes = _sizes(op, area.sizes("x"))
        shape = tuple(sizes.values())

        def function(x: Array, *others: Array) -> Array:
            return _sloped(x, *(x, *others)[-2:])

        placed = {"X": "x", "Y": self.result, **({"G": self.source} if self.source != "x" else {})}
        arrays = {name: Piece(role, shape, dtype=area.dtype(role)) for name, role in placed.items()}
        arrays["W"] = Piece("w", dtype=area.dtype("w"))
        build.run(self.nest, arrays, self.loaded(area), (self.result,), function, **sizes)


class _SlopeGradient(AxesLowering):
    """WG: some channels of dw; samples and the dimension behind the channels are summed and may be cut."""

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """As `_Elementwise` has them."""
        return slope_axes(op, tensors, role)

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Channels of slopes of their own."""
        return self._sizes(op, tensors, ("d0",) if op.attributes["per_channel"] else ())

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, channels of one slope, and the next dimension."""
        axes = LEADING[: min(3, len(tensors[op["x"]].shape))]
        kept = self.extents(op, tensors)
        return self._sizes(op, tensors, tuple(name for name in axes if name not in kept))

    def compute(self, area: Area, build: TileBuilder) -> None:
        """One fork; of a single slope a second one, on the sums of rows."""
        shape = area.sizes("x")

        def sums(target: Piece, sizes: tuple[int, int, int], *axes: int) -> None:
            def function(x: Array, dy: Array) -> Array:
                return np.asarray(_terms(x, dy).sum(axis=axes).astype(np.float32)).reshape(-1)

            x, dy = (Piece(role, sizes, dtype=area.dtype(role)) for role in ("x", "dy"))
            named = dict(zip(("samples", "channels", "elements"), sizes, strict=True))
            arrays = {"X": x, "G": dy, "Y": target}
            build.run("prelu_wg", arrays, ("x", "dy"), (target.name,), function, **named)

        inner = range(2, len(shape))
        if area.op.attributes["per_channel"]:
            sums(Piece("dw", shape[1:2]), (shape[0], shape[1], prod(shape[2:])), 0, *inner)
            return
        rows = prod(shape[:2])
        build.scratch.append(Scratch(ROWS, (rows,)))
        sums(Piece(ROWS, (rows,), dtype=FP32), (1, rows, prod(shape[2:])), *inner)
        arrays = {"X": Piece(ROWS, (1, 1, rows), dtype=FP32), "Y": Piece("dw", (1,))}
        build.run(
            "row_sum",
            arrays,
            (ROWS,),
            ("dw",),
            lambda x: x.sum(dtype=np.float64).astype(np.float32).reshape(1),
            **{"P": 1, "N": 1, "M": rows},
        )


def _forward(op: Op, values: Values) -> Values:
    return {"y": _sloped(values["x"], values["x"], values["w"])}


def _backward(op: Op, values: Values) -> Values:
    return {"dx": _sloped(values["x"], values["dy"], values["w"])}


def _weights(op: Op, values: Values) -> Values:
    terms = _terms(values["x"], values["dy"])
    kept = terms.shape[1] if op.attributes["per_channel"] else 1
    return {"dw": np.moveaxis(terms, 1, 0).reshape(kept, -1).sum(axis=1)}


PRIMITIVE = LayerPrimitive(
    name="prelu",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w -> y", _forward, _Elementwise("prelu_fw", "x", "y")),
        Step.of("WG", "x dy -> dw", _weights, _SlopeGradient()),
        Step.of("IG", "x w dy -> dx", _backward, _Elementwise("prelu_bw", "dy", "dx")),
    ),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=((3, 4, 5),)),
        Example({"per_channel": True}, ((3, 4, 5),)),
        Example({"per_channel": True}, (DrawnInput((9,), low=-0.5, high=0.2),)),
        Example({"per_channel": True}, ((3, 2, 3, 2),)),
    ),
)

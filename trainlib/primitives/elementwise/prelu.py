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
from configs.values import replace
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
from trainlib.primitives.formulas import Formula, parameters
from trainlib.primitives.lowering.axes import LEADING, ONE, Area, Axes, LeadingBoxes
from trainlib.primitives.lowering.boxes import rows_of
from trainlib.primitives.lowering.pieces import EXACT_ROW_SUM, Piece, TileBuilder
from trainlib.primitives.lowering.row_loop import RowLoop

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


def _terms(x: Array, dy: Array) -> Any:
    """The sum of what every element gives to dw."""
    return np.where(x > 0, 0, x.astype(np.float64) * dy).sum(axis=(0, 2))


class _Slopes(LeadingBoxes):
    """A formula of roles, seen as [samples, channels, elements]; w has a number for each channel, or one.

    `arrays` are the roles of the arrays of the nest. The larger of channels and elements goes over the cores,
    but of a sum the channels.
    """

    def __init__(self, nest: str, arrays: str, formula: Formula) -> None:
        self.nest, self.formula, self.reads = nest, formula, parameters(formula)
        self.arrays = dict(item.split(":") for item in arrays.split())
        self.result = self.arrays["Y"]

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """w has a slope per channel, or one."""
        return slope_axes(op, tensors, role)

    def loaded(self, area: Area) -> Sequence[str]:
        """The slopes last."""
        return self.reads

    def made(self, arrays: Sequence[Array], sizes: Mapping[str, int]) -> Array:
        """The result of what is read."""
        shapes = ((1, -1, 1) if role == "w" else tuple(sizes.values()) for role in self.reads)
        return np.asarray(self.formula(*map(np.reshape, arrays, shapes)))

    def reference(self, op: Op, values: Values) -> Values:
        """The formula of whole tensors."""
        shape = values["x"].shape
        made = self.made([values[role] for role in self.reads], _sizes(op, shape))
        return {self.result: made.reshape(shape if self.result != "dw" else -1)}

    def call(self, area: Area, build: TileBuilder, sizes: Mapping[str, int], target: Piece) -> None:
        """One fork; `target` is in the shape of its buffer."""
        image, sums = tuple(sizes.values()), self.result == "dw"
        pieces = {
            name: Piece(role, () if role == "w" else image, dtype=area.dtype_of(role))
            for name, role in self.arrays.items()
        }
        pieces["Y"] = target if sums else replace(target, shape=image)

        def compute(*arrays: Array) -> Array:
            return self.made(arrays, sizes).astype(np.float32, copy=False).reshape(target.shape)

        build.run(self.nest, pieces, self.reads, (target.name,), compute, **sizes)
        across = sizes["elements"] > sizes["channels"] and not sums
        rows, n, c = (("samples", "channels"), "r", "s") if across else (("channels", "samples"), "s", "r")
        places = dict.fromkeys("XGY", f"{n}*channels*elements + {c}*elements + i") | {"W": c}
        reads = "".join(name for role in self.reads for name in self.arrays if self.arrays[name] == role)
        loop = RowLoop(self.formula, reads, "Y", places, rows, across=across)
        if sums:
            loop = replace(loop, places={**places, "Y": c}, rows=rows[:1], elements=("samples", "elements"))
        build.known(rows=replace(loop, mark="" if across or sums else "_channels"))

    def compute(self, area: Area, build: TileBuilder) -> None:
        """One fork."""
        shape = area.sizes("x")
        target = Piece(self.result, shape, dtype=area.dtype_of(self.result))
        self.call(area, build, _sizes(area.op, shape), target)


class _SlopeGradient(_Slopes):
    """WG: some channels of dw; samples and the dimension behind the channels are summed and may be cut."""

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
        if area.op.attributes["per_channel"]:
            self.call(area, build, _sizes(area.op, shape), Piece("dw", shape[1:2]))
            return
        rows = prod(shape[:2])
        build.scratch.append(Scratch(ROWS, (rows,)))
        sizes = {"samples": 1, "channels": rows, "elements": prod(shape[2:])}
        self.call(area, build, sizes, Piece(ROWS, (rows,), dtype=FP32))
        arrays = {"X": Piece(ROWS, (1, 1, rows), dtype=FP32), "Y": Piece("dw", (1,))}
        build.loop("row_sum", arrays, EXACT_ROW_SUM, P=1, N=1, M=rows)


_FORWARD = _Slopes("prelu_fw", "X:x Y:y W:w", lambda x, w: np.where(x > 0, x, w * x))
_BACKWARD = _Slopes("prelu_bw", "X:x Y:dx G:dy W:w", lambda x, dy, w: np.where(x > 0, dy, w * dy))
_WEIGHTS = _SlopeGradient("prelu_wg", "X:x G:dy Y:dw", _terms)

PRIMITIVE = LayerPrimitive(
    name="prelu",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w -> y", _FORWARD.reference, _FORWARD, formula=True),
        Step.of("WG", "x dy -> dw", _WEIGHTS.reference, _WEIGHTS, formula=True),
        Step.of("IG", "x w dy -> dx", _BACKWARD.reference, _BACKWARD, formula=True),
    ),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=((3, 4, 5),)),
        Example({"per_channel": True}, ((3, 4, 5),)),
        Example({"per_channel": True}, (DrawnInput((9,), low=-0.5, high=0.2),)),
        Example({"per_channel": True}, ((3, 2, 3, 2),)),
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""ReLU with a trained slope: y = x where x > 0, else w x, one w for all or one per channel (He et al. 2015).

dx = dy where x > 0, else w dy; dw = sum of x dy where x <= 0, over all that has the slope.
Slopes start at 0.25, as in PyTorch. PULP-TrainLib has none: its nests are estimates. A single slope's dw is
summed row by row over the cores, the rows then by one core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.dtypes import FP32
from configs.model_file import LayerSchema
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.ir.steps import Array, Tensors
from trainlib.primitives.definition import (
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    Parameter,
    Shape,
    Values,
)
from trainlib.primitives.formulas import Formula, parameters
from trainlib.primitives.lowering.axes import LEADING, ONE, Area, Axes, Form, Groups, LeadingBoxes
from trainlib.primitives.lowering.boxes import rows_of
from trainlib.primitives.lowering.forks import Fork, ForkLowering, row_sum

START = Initial("constant", 0.25)

ROWS = "dw_of_rows"
"""Name of the scratch buffer of the sums of rows."""


class _Schema(LayerSchema):
    per_channel: bool = False
    """One slope per channel (first axis of a sample) instead of one for all."""


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape, per_channel = rows_of(inputs[0], "prelu", where), attributes["per_channel"]
    slopes = shape[1] if per_channel else 1
    return LayerPlan(shape, {"w": Parameter((slopes,), START)}, attributes={"per_channel": per_channel})


def _terms(x: Array, dy: Array) -> Any:
    """The sum of what every element gives to dw."""
    return np.where(x > 0, 0, x.astype(np.float64) * dy).sum(axis=(0, 2))


class _Slopes(ForkLowering, LeadingBoxes):
    """A formula of roles, seen as [samples, channels, elements]; w has a number for each channel, or one.

    `arrays` are the roles of the arrays of the nest. The larger of channels and elements goes over the cores,
    but of a sum the channels.
    """

    of_scratch = FP32

    def __init__(self, nest: str, arrays: str, formula: Formula) -> None:
        self.nest, self.arrays, self.formula, self.reads = nest, arrays, formula, parameters(formula)

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """w (and dw) has a slope per channel, or one."""
        axes = LEADING[: len(tensors[op["x"]].shape)]
        return (axes[1] if op.attributes["per_channel"] else ONE,) if role.endswith("w") else axes

    def loaded(self, area: Area) -> Sequence[str]:
        """The slopes last."""
        return self.reads

    def sizes(self, form: Form) -> dict[str, Axes]:
        """Samples, channels with a slope of their own, and elements behind each."""
        samples, *image = form.axes("x")
        if not form.op.attributes["per_channel"]:
            return {"samples": (), "channels": (), "elements": (samples, *image)}
        return {"samples": (samples,), "channels": (image[0],), "elements": tuple(image[1:])}

    def kernels(self, form: Form) -> Sequence[Fork]:
        rows, elements = ("samples", "channels"), ("elements",)
        moves = f"{' '.join(self.reads)} -> {form.op.writes[0]}"
        return (
            Fork(
                *(self.nest, self.arrays, moves, self.formula, self.sizes(form), rows, elements),
                across=True,
                larger="_channels",
                holds={"w": ("channels",)},
            ),
        )


class _SlopeGradient(_Slopes):
    """WG: some channels of dw; samples and the dimension behind the channels are summed and may be cut."""

    def shapes(self, op: Op, values: Values) -> Mapping[str, Shape]:
        """A number for each channel, or one."""
        return {"dw": values["x"].shape[1:2] if op.attributes["per_channel"] else (1,)}

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Channels of slopes of their own."""
        return self._sizes(op, tensors, ("d0",) if op.attributes["per_channel"] else ())

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, channels of one slope, and the next dimension."""
        axes = LEADING[: min(3, len(tensors[op["x"]].shape))]
        kept = self.extents(op, tensors)
        return self._sizes(op, tensors, tuple(name for name in axes if name not in kept))

    def scratch(self, form: Form) -> Mapping[str, Groups]:
        """The sums of rows."""
        return {} if form.op.attributes["per_channel"] else {ROWS: (form.axes("x")[:2],)}

    def kernels(self, form: Form) -> Sequence[Fork]:
        """One fork; of a single slope a second one, on the sums of rows."""
        sizes, target = self.sizes(form), "dw"
        if not form.op.attributes["per_channel"]:
            image, target = form.axes("x"), ROWS
            sizes = {"samples": (), "channels": image[:2], "elements": image[2:]}
        rows = ("channels",)
        terms = Fork(
            self.nest,
            f"{self.arrays} Y:{target}",
            f"x dy -> {target}",
            self.formula,
            sizes,
            rows,
            ("samples", "elements"),
            holds={target: rows},
            scratch=FP32,
        )
        total = [] if target == "dw" else [row_sum(ROWS, "dw", (), (), sizes["channels"], exact=True)]
        return terms, *total


_FORWARD = _Slopes("prelu_fw", "X:x Y:y W:w", lambda x, w: np.where(x > 0, x, w * x))
_BACKWARD = _Slopes("prelu_bw", "X:x Y:dx G:dy W:w", lambda x, dy, w: np.where(x > 0, dy, w * dy))
_WEIGHTS = _SlopeGradient("prelu_wg", "X:x G:dy", _terms)

PRIMITIVE = LayerPrimitive(
    name="prelu",
    schema=_Schema,
    plan=_plan,
    steps=(
        _FORWARD.step("FW", "x w -> y"),
        _WEIGHTS.step("WG", "x dy -> dw"),
        _BACKWARD.step("IG", "x w dy -> dx"),
    ),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=((3, 4, 5),)),
        Example({"per_channel": True}, ((3, 4, 5),)),
        Example({"per_channel": True}, (DrawnInput((9,), low=-0.5, high=0.2),)),
        Example({"per_channel": True}, ((3, 2, 3, 2),)),
    ),
)

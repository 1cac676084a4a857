# SPDX-License-Identifier: Apache-2.0
"""A trained tensor added to every sample: y = x + w, as the positional embedding of a transformer.

dw is dy summed over the batch, dx is dy itself: a view, no op. It starts as normal numbers of the standard
deviation that ViT uses (Dosovitskiy et al. 2021: 0.02).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.model_file import LayerSchema
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.ir.steps import Tensors
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Parameter, Step, Values
from trainlib.primitives.lowering.axes import LEADING, Axes, Form, LeadingBoxes
from trainlib.primitives.lowering.boxes import CUT_DIMENSIONS, rows_of
from trainlib.primitives.lowering.calls import BATCH, VECTOR_ADD
from trainlib.primitives.lowering.forks import EVERY, Fork, column_sum, copying

START = Initial("normal", 0.02)


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = rows_of(inputs[0], "position", where)
    return LayerPlan(shape, {"w": Parameter(shape[1:], START)})


class PositionForward(LeadingBoxes):
    """FW: any box of y; w is read once for all samples of a tile, and added to x if there is one."""

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """w has no samples."""
        axes = LEADING[: len(tensors[op["y"]].shape)]
        return axes[1:] if role == "w" else axes

    def kernels(self, form: Form) -> Sequence[Fork]:
        """A fork for each sample."""
        sizes = {"elements": form.axes("w")}
        if "x" not in form.op:
            return (copying("w", "y", sizes, each=EVERY),)
        flags = {"repeated": 0}
        return (Fork(VECTOR_ADD, "X:x G:w Y:y", "x w -> y", np.add, sizes, each=EVERY, flags=flags),)


class PositionGradient(LeadingBoxes):
    """WG: any box of dw; the batch is summed and may be cut."""

    summed = (BATCH,)

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """dw has no samples."""
        axes = LEADING[: len(tensors[op["dy"]].shape)]
        return axes[1:] if role == "dw" else axes

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The first two dimensions of dw."""
        return dict(zip(LEADING[1:], tensors[op["dw"]].shape[:CUT_DIMENSIONS], strict=False))

    def kernels(self, form: Form) -> Sequence[Fork]:
        """One fork."""
        return (column_sum("dy", "dw", (BATCH,), form.axes("dw")),)


def _reference(op: Op, values: Values) -> Values:
    return {"y": values["x"] + values["w"][None]}


PRIMITIVE = LayerPrimitive(
    name="position",
    schema=LayerSchema,
    plan=_plan,
    steps=(
        Step.of("FW", "x w -> y", _reference, PositionForward()),
        Step.of("WG", "dy -> dw", lambda op, values: {"dw": values["dy"].sum(axis=0)}, PositionGradient()),
    ),
    examples=(
        Example(inputs=((5, 4),), batches=(1, 3)),
        Example(inputs=((7,),), batches=(1, 2)),
        Example(inputs=((2, 3, 5),), batches=(2,)),
    ),
    layouts=None,
)

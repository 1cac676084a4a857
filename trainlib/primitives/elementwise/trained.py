# SPDX-License-Identifier: Apache-2.0
"""Trained tensors: `parameter`, y = w for every sample, `position`, y = x + w, and `projected`, w = y = x.

The input of a parameter only says how many samples there are: it has no gradient.
Frozen (`trainable: false`) it is a constant: a mask of attention, a table of positions, whatever an imported
graph has as an operand. A position is the positional embedding of a transformer; dx is dy: a view, no op.
dw is the sum of dy. Projected is what layers compute of a weight (max-norm): it takes the weight's place
before that is used, and the gradient goes to the weight as if it had been that all along.
The two others start as normal numbers of standard deviation 0.02, as in ViT (Dosovitskiy et al. 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.dtypes import INT32
from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.ir.steps import Tensors
from trainlib.primitives.definition import (
    DrawnInput,
    Example,
    LayerPlan,
    LayerPrimitive,
    Output,
    Parameter,
    Positive,
    Step,
    Values,
)
from trainlib.primitives.lowering.axes import LEADING, Axes, Form, LeadingBoxes
from trainlib.primitives.lowering.boxes import CUT_DIMENSIONS, rows_of
from trainlib.primitives.lowering.calls import BATCH, VECTOR_ADD
from trainlib.primitives.lowering.forks import EVERY, Fork, column_sum, copying

START = Initial("normal", 0.02)

COUNTED = DrawnInput((1,), INT32, low=0, high=9)
"""An input that has no gradient."""


class _ParameterSchema(LayerSchema):
    shape: Annotated[list[Positive], Field(min_length=1)]
    """Shape of the trained tensor, without a batch."""
    once: bool = False
    """The output has one sample, whatever the batch: for layers that compute a weight from it
    (`weights_of: {weight: LAYER.out}`)."""
    integers: bool = False
    """The tensor holds integers and is not trained: row numbers for an `embedding`."""


def _parameter_plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    batch, shape = 1 if attributes["once"] else inputs[0].shape[0], tuple(attributes["shape"])
    integers = Parameter(shape, Initial(), trainable=False, dtype=INT32)
    weight = integers if attributes["integers"] else Parameter(shape, START)
    return LayerPlan(Output((batch, *shape), weight.dtype), {"w": weight}, attributes={"batch": batch})


def _position_plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    shape = rows_of(inputs[0], "position", where)
    return LayerPlan(shape, {"w": Parameter(shape[1:], START)})


def _projected_plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    samples, *sizes = inputs[0].shape
    if samples != 1:
        raise ShapeError(
            f"a weight has no samples, but the input has {samples}",
            where=where,
            cure="compute the input from the weight: a `parameter` with `once`",
        )
    return LayerPlan((1, *sizes), {"w": Parameter(tuple(sizes), START)})


class _Trained(LeadingBoxes):
    """Boxes of a result, and of the trained tensor, which has no samples."""

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """A weight and its gradient have no samples."""
        axes = LEADING[: len(tensors[op["y" if "y" in op else "dy"]].shape)]
        return axes[1:] if role in ("w", "dw", "w_updated") else axes


class _Forward(_Trained):
    """FW: any box of y; w is read once for all samples of a tile, and added to x if there is one."""

    def kernels(self, form: Form) -> Sequence[Fork]:
        sizes = {"elements": form.axes("w")}
        if "x" not in form.op:
            return (copying("w", "y", sizes, each=EVERY),)
        flags = {"repeated": 0}
        return (Fork(VECTOR_ADD, "X:x G:w Y:y", "x w -> y", np.add, sizes, each=EVERY, flags=flags),)


class _Projection(_Trained):
    """FW: any box of y, the same one of the weight."""

    def kernels(self, form: Form) -> Sequence[Fork]:
        sizes = {"elements": form.axes("w_updated")}
        return tuple(copying("x", role, sizes) for role in ("y", "w_updated"))


class _Gradient(_Trained):
    """WG: any box of dw; the batch is summed and may be cut."""

    summed = (BATCH,)

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """The first two dimensions of dw."""
        return dict(zip(LEADING[1:], tensors[op["dw"]].shape[:CUT_DIMENSIONS], strict=False))

    def kernels(self, form: Form) -> Sequence[Fork]:
        return (column_sum("dy", "dw", (BATCH,), form.axes("dw")),)


_GRADIENT = Step.of("WG", "dy -> dw", lambda op, values: {"dw": values["dy"].sum(axis=0)}, _Gradient())


def _repeated(op: Op, values: Values) -> Values:
    w = values["w"]
    return {"y": np.broadcast_to(w, (op.attributes["batch"], *w.shape))}


PARAMETER = LayerPrimitive(
    name="parameter",
    schema=_ParameterSchema,
    plan=_parameter_plan,
    steps=(Step.of("FW", "w -> y", _repeated, _Forward()), _GRADIENT),
    examples=(
        Example({"shape": [5, 4]}, (COUNTED,), batches=(1, 3)),
        Example({"shape": [7]}, (COUNTED,), batches=(1, 2)),
        Example({"shape": [3, 2], "once": True}, (COUNTED,), batches=(1, 2)),
        Example({"shape": [6], "integers": True}, (COUNTED,), batches=(2,)),
    ),
    layouts=None,
)

POSITION = LayerPrimitive(
    name="position",
    schema=LayerSchema,
    plan=_position_plan,
    steps=(
        Step.of("FW", "x w -> y", lambda op, values: {"y": values["x"] + values["w"][None]}, _Forward()),
        _GRADIENT,
    ),
    examples=(
        Example(inputs=((5, 4),), batches=(1, 3)),
        Example(inputs=((7,),), batches=(1, 2)),
        Example(inputs=((2, 3, 5),), batches=(2,)),
    ),
    layouts=None,
)

PROJECTED = LayerPrimitive(
    name="projected",
    schema=LayerSchema,
    plan=_projected_plan,
    steps=(
        Step.of(
            "FW",
            "x -> y w_updated",
            lambda op, values: {"y": (x := values["x"]), "w_updated": x[0]},
            _Projection(),
        ),
        _GRADIENT,
    ),
    examples=(Example(inputs=((5, 4),), batches=(1,)), Example(inputs=((7,),), batches=(1,))),
    layouts=None,
    overwrites="w",
)

PRIMITIVES = (PARAMETER, POSITION, PROJECTED)

"""Residual add: y = x + x1, both of one shape. Both input gradients are dy itself: views, no op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Refused, Step, Values
from trainlib.primitives.lowering.calls import VECTOR_ADD, ElementwiseLowering
from trainlib.steps import Function


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    first, second = inputs
    if first.shape != second.shape:
        raise ShapeError(f"cannot add shapes {first.shape} and {second.shape}", where=where)
    return LayerPlan(first.shape)


def _tile(op: Op) -> Function:
    return lambda arrays: (arrays[0] + arrays[1],)


def _reference(op: Op, values: Values) -> Values:
    return {"y": np.sum([values["x"], values["x1"]], axis=0)}


PRIMITIVE = LayerPrimitive(
    name="add",
    schema=LayerSchema,
    plan=_plan,
    steps=(
        Step(
            "FW",
            ("x", "x1"),
            ("y",),
            _reference,
            ElementwiseLowering(VECTOR_ADD, _tile),
        ),
    ),
    torch_forward=lambda torch, attributes, tensors: tensors["x"] + tensors["x1"],
    examples=(Example(inputs=((7,), (7,))), Example(inputs=((2, 3, 5), (2, 3, 5)))),
    refused=(Refused({}, ((3,), (4,)), "cannot add shapes"),),
    inputs=(2, 2),
    layouts=None,
)

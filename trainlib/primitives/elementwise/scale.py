"""Multiplication by a constant: y = factor · x; dx = factor · dy."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from configs.model_file import LayerSchema
from trainlib.graph import Op
from trainlib.primitives.definition import Example, LayerPrimitive, Refused, Step, Values
from trainlib.primitives.elementwise.activations import Numbers, lowering, same_shape


class _Schema(LayerSchema):
    factor: Annotated[float, Field(allow_inf_nan=False)]


def _tile(op: Op) -> Numbers:
    factor = np.float32(op.attributes["factor"])
    return lambda x: factor * x


def _forward(op: Op, values: Values) -> Values:
    return {"y": values["x"].astype(np.float64) * op.attributes["factor"]}


def _backward(op: Op, values: Values) -> Values:
    return {"dx": values["dy"].astype(np.float64) * op.attributes["factor"]}


PRIMITIVE = LayerPrimitive(
    name="scale",
    schema=_Schema,
    plan=same_shape,
    steps=(
        Step("FW", ("x",), ("y",), _forward, lowering(lambda op: "scale_by_number", ("x",), "y", _tile)),
        Step("IG", ("dy",), ("dx",), _backward, lowering(lambda op: "scale_by_number", ("dy",), "dx", _tile)),
    ),
    torch_forward=lambda torch, attributes, tensors: tensors["x"] * attributes["factor"],
    examples=(
        Example({"factor": 0.3}, ((7,),)),
        Example({"factor": -2.0}, ((3, 4, 5),)),
        Example({"factor": 4.0}, ((2, 9),)),
    ),
    refused=(Refused({}, ((3,),), "no 'factor'"), Refused({"factor": float("nan")}, ((3,),), "factor")),
    layouts=None,
)

"""Leaky ReLU: y = x where x > 0, else slope · x; dx is dy or slope · dy alike (the latter at 0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.model_file import LayerSchema
from trainlib.graph import Op
from trainlib.primitives.definition import Example, InputCase, LayerPrimitive, Refused, Step, Values
from trainlib.primitives.elementwise.activations import Numbers, lowering, same_shape


class _Schema(LayerSchema):
    slope: Annotated[float, Field(ge=0, lt=1)] = 0.01


def _tile_forward(op: Op) -> Numbers:
    slope = np.float32(op.attributes["slope"])
    return lambda x: np.where(x > 0, x, slope * x)


def _tile_backward(op: Op) -> Numbers:
    slope = np.float32(op.attributes["slope"])
    return lambda x, dy: np.where(x > 0, dy, slope * dy)


def _forward(op: Op, values: Values) -> Values:
    # With a slope below 1 the larger of the two branches is the right one.
    return {"y": np.maximum(values["x"], values["x"] * np.float32(op.attributes["slope"]))}


def _backward(op: Op, values: Values) -> Values:
    slope = np.float32(op.attributes["slope"])
    return {"dx": values["dy"] * (slope + (1 - slope) * (values["x"] > 0))}


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    return torch.nn.functional.leaky_relu(tensors["x"], attributes["slope"])


PRIMITIVE = LayerPrimitive(
    name="leaky_relu",
    schema=_Schema,
    plan=same_shape,
    steps=(
        Step("FW", ("x",), ("y",), _forward, lowering(lambda op: "leakyrelu_fw", ("x",), "y", _tile_forward)),
        Step(
            "IG",
            ("x", "dy"),
            ("dx",),
            _backward,
            lowering(lambda op: "leakyrelu_bw", ("x", "dy"), "dx", _tile_backward),
        ),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example(inputs=((7,),)),
        Example({"slope": 0.2}, ((3, 4, 5),)),
        Example({"slope": 0.0}, (InputCase((2, 9), low=-0.1, high=0.1),)),
    ),
    refused=(Refused({"slope": 1.5}, ((3,),), "slope"), Refused({"slope": -0.1}, ((3,),), "slope")),
    layouts=None,
)

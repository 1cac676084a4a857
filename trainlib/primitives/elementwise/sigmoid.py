"""Sigmoid: y = 1 / (1 + exp(-x)), without overflow; dx = dy · y · (1 - y) from the stored output."""

from __future__ import annotations

from configs.model_file import LayerSchema
from trainlib.graph import Op
from trainlib.primitives.definition import Example, InputCase, LayerPrimitive, Step, Values
from trainlib.primitives.elementwise.activations import (
    Numbers,
    lowering,
    same_shape,
    sigmoid_by_tanh,
    stable_sigmoid,
)


def _tile_forward(op: Op) -> Numbers:
    return stable_sigmoid


def _tile_backward(op: Op) -> Numbers:
    return lambda y, dy: dy * y * (1 - y)


def _forward(op: Op, values: Values) -> Values:
    return {"y": sigmoid_by_tanh(values["x"])}


def _backward(op: Op, values: Values) -> Values:
    y = values["y"]
    return {"dx": values["dy"] * (y - y * y)}


PRIMITIVE = LayerPrimitive(
    name="sigmoid",
    schema=LayerSchema,
    plan=same_shape,
    steps=(
        Step("FW", ("x",), ("y",), _forward, lowering(lambda op: "sigmoid_fw", ("x",), "y", _tile_forward)),
        Step(
            "IG",
            ("y", "dy"),
            ("dx",),
            _backward,
            lowering(lambda op: "sigmoid_bw", ("y", "dy"), "dx", _tile_backward),
        ),
    ),
    torch_forward=lambda torch, attributes, tensors: torch.sigmoid(tensors["x"]),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=(InputCase((3, 4, 5), low=-6, high=6),)),
        Example(inputs=(InputCase((4, 16), low=-12, high=12),)),
    ),
    layouts=None,
)

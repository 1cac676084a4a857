"""SiLU (swish): y = x · sigmoid(x); dx = dy · s · (1 + x · (1 - s)) with s = sigmoid(x)."""

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
from trainlib.steps import Array


def _tile_forward(op: Op) -> Numbers:
    return lambda x: x * stable_sigmoid(x)


def _tile_backward(op: Op) -> Numbers:
    def backward(x: Array, dy: Array) -> Array:
        s = stable_sigmoid(x)
        gradient: Array = dy * s * (1 + x * (1 - s))
        return gradient

    return backward


def _forward(op: Op, values: Values) -> Values:
    return {"y": values["x"] * sigmoid_by_tanh(values["x"])}


def _backward(op: Op, values: Values) -> Values:
    s = sigmoid_by_tanh(values["x"])
    y = values["x"] * s
    return {"dx": values["dy"] * (s + y - y * s)}


PRIMITIVE = LayerPrimitive(
    name="silu",
    schema=LayerSchema,
    plan=same_shape,
    steps=(
        Step("FW", ("x",), ("y",), _forward, lowering(lambda op: "silu_fw", ("x",), "y", _tile_forward)),
        Step(
            "IG",
            ("x", "dy"),
            ("dx",),
            _backward,
            lowering(lambda op: "silu_bw", ("x", "dy"), "dx", _tile_backward),
        ),
    ),
    torch_forward=lambda torch, attributes, tensors: torch.nn.functional.silu(tensors["x"]),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=(InputCase((3, 4, 5), low=-6, high=6),)),
        Example(inputs=(InputCase((4, 16), low=-12, high=12),)),
    ),
    layouts=None,
)

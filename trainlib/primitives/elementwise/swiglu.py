"""SwiGLU gate: y = silu(x) · x1, both of one shape. Each input gradient is a loop of its own.

dx = dy · x1 · s · (1 + x · (1 - s)) with s = sigmoid(x), dx1 = dy · silu(x). The library has FW only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import (
    Example,
    InputCase,
    LayerPlan,
    LayerPrimitive,
    Refused,
    Step,
    Values,
)
from trainlib.primitives.elementwise.activations import sigmoid_by_tanh, stable_sigmoid
from trainlib.primitives.lowering.vector_loops import VectorLoop, VectorLowering
from trainlib.steps import Array


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    gate, value = inputs
    if gate.shape != value.shape:
        raise ShapeError(f"cannot gate shape {value.shape} with {gate.shape}", where=where)
    return LayerPlan(gate.shape)


def _gated(arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, value = arrays
    return (x * stable_sigmoid(x) * value,)


def _gate_gradient(arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, value, dy = arrays
    s = stable_sigmoid(x)
    return (dy * value * s * (1 + x * (1 - s)),)


def _value_gradient(arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, dy = arrays
    return (dy * x * stable_sigmoid(x),)


def _forward(op: Op, values: Values) -> Values:
    return {"y": values["x1"] * values["x"] * sigmoid_by_tanh(values["x"])}


def _backward(op: Op, values: Values) -> Values:
    s = sigmoid_by_tanh(values["x"])
    y = values["x"] * s
    return {"dx": values["dy"] * values["x1"] * (s + y - y * s), "dx1": values["dy"] * y}


PRIMITIVE = LayerPrimitive(
    name="swiglu",
    schema=LayerSchema,
    plan=_plan,
    steps=(
        Step(
            "FW",
            ("x", "x1"),
            ("y",),
            _forward,
            VectorLowering(lambda op: (VectorLoop("swiglu_fw", ("x", "x1"), "y", _gated),)),
        ),
        Step(
            "IG",
            ("x", "x1", "dy"),
            ("dx*",),
            _backward,
            VectorLowering(
                lambda op: (
                    VectorLoop("swiglu_bw_gate", ("x", "x1", "dy"), "dx", _gate_gradient),
                    VectorLoop("swiglu_bw_value", ("x", "dy"), "dx1", _value_gradient),
                )
            ),
        ),
    ),
    torch_forward=lambda torch, attributes, tensors: torch.nn.functional.silu(tensors["x"]) * tensors["x1"],
    examples=(
        Example(inputs=((7,), (7,))),
        Example(inputs=(InputCase((3, 4, 5), low=-6, high=6), (3, 4, 5))),
    ),
    refused=(Refused({}, ((3,), (4,)), "cannot gate shape"), Refused({}, ((3,),), "takes 2 inputs")),
    inputs=(2, 2),
    layouts=None,
)

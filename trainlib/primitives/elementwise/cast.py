"""Change of float format: y is x rounded to the dtype `to` (a NumPy name); dx is dy in the dtype of x.

The builder inserts it where a layer's input has another dtype than the layer. Widening is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.dtypes import BY_NAME
from configs.model_file import LayerSchema
from trainlib.graph import Tensor
from trainlib.primitives.definition import Example, InputCase, LayerPlan, LayerPrimitive, Output, Step
from trainlib.primitives.lowering.elementwise import ElementwiseLowering, VectorLoop


class _Schema(LayerSchema):
    to: str


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    return LayerPlan(Output(inputs[0].shape, attributes["to"]), attributes={"to": attributes["to"]})


def _lowering(read: str, write: str) -> ElementwiseLowering:
    """The loop load, one instruction, store of ReLU; loads and stores are as wide as their format."""
    loop = VectorLoop("relu_fw", (read, write), (read,), (write,), lambda op, values: {write: values[read]})
    return ElementwiseLowering(lambda op: (loop,), takes_over=True)


PRIMITIVE = LayerPrimitive(
    name="cast",
    schema=_Schema,
    plan=_plan,
    steps=(
        Step("FW", ("x",), ("y",), lambda op, values: {"y": values["x"]}, _lowering("x", "y")),
        Step("IG", ("dy",), ("dx",), lambda op, values: {"dx": values["dy"]}, _lowering("dy", "dx")),
    ),
    torch_forward=lambda torch, attributes, tensors: tensors["x"],
    examples=tuple(Example({"to": to}, (InputCase((3, 5)),), roundings=2) for to in BY_NAME),
    internal=True,
    layouts=None,
)

"""ReLU: y = max(x, 0); dx = dy where x > 0, else 0 (and 0 at x = 0, as PyTorch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.model_file import LayerSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import Example, InputCase, LayerPlan, LayerPrimitive, Step, Values
from trainlib.primitives.lowering.calls import ElementwiseLowering
from trainlib.steps import Function


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    return LayerPlan(inputs[0].shape)


def _tile_forward(op: Op) -> Function:
    return lambda arrays: (np.where(arrays[0] > 0, arrays[0], np.float32(0)),)


def _tile_backward(op: Op) -> Function:
    return lambda arrays: (np.where(arrays[0] > 0, arrays[1], np.float32(0)),)


def _reference_forward(op: Op, values: Values) -> Values:
    return {"y": np.maximum(values["x"], 0)}


def _reference_backward(op: Op, values: Values) -> Values:
    return {"dx": values["dy"] * np.sign(values["x"]).clip(min=0)}


PRIMITIVE = LayerPrimitive(
    name="relu",
    schema=LayerSchema,
    plan=_plan,
    steps=(
        Step("FW", ("x",), ("y",), _reference_forward, ElementwiseLowering("relu_fw", _tile_forward)),
        Step("IG", ("x", "dy"), ("dx",), _reference_backward, ElementwiseLowering("relu_bw", _tile_backward)),
    ),
    torch_forward=lambda torch, attributes, tensors: torch.relu(tensors["x"]),
    examples=(
        Example(inputs=((7,),)),
        Example(inputs=((3, 5, 4),)),
        Example(inputs=(InputCase((2, 9), low=-0.1, high=0.1, away_from=()),)),
    ),
    layouts=None,
)

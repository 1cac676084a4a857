"""Mean squared error: loss = mean (y - t)², gradient 2 (y - t) / n; y and t of one shape, n elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from configs.model_file import LossSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import Example, LabelPlan, LossPrimitive, Step, Values
from trainlib.primitives.lowering.calls import LossLowering
from trainlib.steps import Array


def _plan(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
    return LabelPlan(output.shape)


def _value(arrays: Sequence[Array]) -> tuple[Array, ...]:
    difference = arrays[0] - arrays[1]
    return (np.mean(np.square(difference), dtype=np.float64).astype(np.float32).reshape(1),)


def _gradient(arrays: Sequence[Array]) -> tuple[Array, ...]:
    difference = arrays[0] - arrays[1]
    return (difference * np.float32(2 / difference.size),)


def _reference(op: Op, values: Values) -> Values:
    output, target = (values[role].astype(np.float64) for role in ("y", "label"))
    loss = np.square(output - target).sum() / output.size
    gradient = 2 * output / output.size - 2 * target / output.size
    return {"loss": np.array([loss]), "dy": gradient}


PRIMITIVE = LossPrimitive(
    name="mse",
    schema=LossSchema,
    step=Step(
        "LOSS",
        ("y", "label"),
        ("loss", "dy"),
        _reference,
        LossLowering("mse_fw", "mse_bw", lambda op: _value, lambda op: _gradient, per_sample=False),
    ),
    plan=_plan,
    torch_loss=lambda torch, attributes, y, label: torch.nn.functional.mse_loss(y, label),
    examples=(Example(inputs=((7,),)), Example(inputs=((2, 3, 4),))),
)

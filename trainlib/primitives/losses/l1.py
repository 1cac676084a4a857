"""Mean absolute error: loss = mean |y - t|, gradient sign(y - t) / n, 0 where they are equal (as PyTorch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from configs.model_file import LossSchema
from trainlib.graph import Op
from trainlib.primitives.definition import Example, LossPrimitive, Step, Values
from trainlib.primitives.losses.regression_loss import RegressionLowering, label_like_output
from trainlib.steps import Array


def _value(arrays: Sequence[Array]) -> tuple[Array, ...]:
    difference = np.abs(arrays[0] - arrays[1])
    return (np.mean(difference, dtype=np.float64).astype(np.float32).reshape(1),)


def _gradient(arrays: Sequence[Array]) -> tuple[Array, ...]:
    share = np.float32(1 / arrays[0].size)
    return (np.sign(arrays[0] - arrays[1]) * share,)


def _reference(op: Op, values: Values) -> Values:
    output, target = values["y"].astype(np.float64), values["label"].astype(np.float64)
    above, below = output > target, output < target
    loss = (output[above] - target[above]).sum() + (target[below] - output[below]).sum()
    gradient = (above.astype(np.float64) - below) / output.size
    return {"loss": np.array([loss / output.size]), "dy": gradient}


PRIMITIVE = LossPrimitive(
    name="l1",
    schema=LossSchema,
    step=Step(
        "LOSS",
        ("y", "label"),
        ("loss", "dy"),
        _reference,
        RegressionLowering("l1_fw", "l1_bw", lambda op: _value, lambda op: _gradient),
    ),
    plan=label_like_output,
    torch_loss=lambda torch, attributes, y, label: torch.nn.functional.l1_loss(y, label),
    examples=(Example(inputs=((7,),)), Example(inputs=((2, 3, 4),))),
)

"""Mean squared error: loss = mean (y - t)², gradient 2 (y - t) / n; y and t of one shape, n elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainlib.graph import Op
from trainlib.primitives.calls import LossLowering
from trainlib.primitives.definition import LossPrimitive, Shape, Step
from trainlib.steps import Array


def _check(output_shape: Shape, where: str) -> None:
    """Any output shape suits."""


def _value(arrays: Sequence[Array]) -> tuple[Array, ...]:
    difference = arrays[0] - arrays[1]
    return (np.mean(np.square(difference), dtype=np.float64).astype(np.float32).reshape(1),)


def _gradient(arrays: Sequence[Array]) -> tuple[Array, ...]:
    difference = arrays[0] - arrays[1]
    return (difference * np.float32(2 / difference.size),)


def _reference(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    output, target = (array.astype(np.float64) for array in arrays)
    loss = np.square(output - target).sum() / output.size
    gradient = 2 * output / output.size - 2 * target / output.size
    return np.array([loss], dtype=np.float32), gradient.astype(np.float32)


PRIMITIVE = LossPrimitive(
    name="mse",
    step=Step(
        ("y", "label"), ("loss", "dy"), _reference, LossLowering("mse_fw", "mse_bw", _value, _gradient)
    ),
    check=_check,
    torch_loss=lambda torch, y, label: torch.nn.functional.mse_loss(y, label),
    label_is_class=False,
)

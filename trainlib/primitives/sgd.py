"""SGD without momentum or decay: w_updated = w - learning_rate · dw, fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from trainlib.graph import Op
from trainlib.primitives.calls import ElementwiseLowering
from trainlib.primitives.definition import OptimizerPrimitive, Step
from trainlib.steps import Array


def _tile(op: Op) -> Callable[[Sequence[Array]], Sequence[Array]]:
    rate = np.float32(op.attributes["learning_rate"])
    return lambda arrays: (arrays[0] - rate * arrays[1],)


def _reference(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    weight, gradient = arrays
    step = np.multiply(gradient, -op.attributes["learning_rate"], dtype=np.float64)
    return (np.add(weight, step).astype(np.float32),)


PRIMITIVE = OptimizerPrimitive(
    name="sgd",
    step=Step(("w", "dw"), ("w_updated",), _reference, ElementwiseLowering("sgd", _tile, in_place=True)),
    torch_optimizer=lambda torch, parameters, attributes: torch.optim.SGD(
        parameters, lr=attributes["learning_rate"]
    ),
)

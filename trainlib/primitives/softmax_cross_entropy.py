"""Softmax cross-entropy of a vector of logits z against a target distribution t (one-hot for a class).

Loss = lse(z)·Σt - t·z with the stable log-sum-exp lse; gradient softmax(z)·Σt - t. As PULP-TrainLib
(reference: its losses since December 2025), which takes logits and applies the softmax itself.
Computed in float64 and rounded once: for a confident network softmax - target cancels almost entirely.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from configs.errors import ShapeError
from trainlib.graph import Op
from trainlib.primitives.calls import LossLowering
from trainlib.primitives.definition import LossPrimitive, Shape, Step
from trainlib.steps import Array


def _check(output_shape: Shape, where: str) -> None:
    """ShapeError unless the output is a vector."""
    if len(output_shape) != 1:
        raise ShapeError(
            f"cross-entropy needs a vector of logits, the network ends with shape {output_shape}",
            where=where,
            cure="end the network with a linear layer, or flatten its output",
        )


def _value(arrays: Sequence[Array]) -> tuple[Array, ...]:
    logits, target = (array.astype(np.float64) for array in arrays)
    shifted = logits - logits.max()
    loss = np.log(np.exp(shifted).sum()) * target.sum() - np.dot(target, shifted)
    return (np.array([loss], dtype=np.float32),)


def _gradient(arrays: Sequence[Array]) -> tuple[Array, ...]:
    logits, target = (array.astype(np.float64) for array in arrays)
    exponentials = np.exp(logits - logits.max())
    return ((exponentials / exponentials.sum() * target.sum() - target).astype(np.float32),)


def _reference(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    logits, target = (array.astype(np.float64) for array in arrays)
    log_probabilities = logits - np.logaddexp.reduce(logits)
    loss = -np.sum(target * log_probabilities)
    gradient = np.exp(log_probabilities) * target.sum() - target
    return np.array([loss], dtype=np.float32), gradient.astype(np.float32)


PRIMITIVE = LossPrimitive(
    name="cross_entropy",
    step=Step(
        ("y", "label"),
        ("loss", "dy"),
        _reference,
        LossLowering("cross_entropy_fw", "cross_entropy_bw", _value, _gradient),
    ),
    check=_check,
    torch_loss=lambda torch, y, label: torch.nn.functional.cross_entropy(y, label),
    label_is_class=True,
)

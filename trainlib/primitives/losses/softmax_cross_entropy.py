"""Softmax cross-entropy of logits z [N, classes] against distributions t (soft) or class numbers (hard).

Loss = mean over the batch of lse(z)·Σt - t·z with the stable log-sum-exp lse; gradient
(softmax(z)·Σt - t) / N. As PULP-TrainLib (reference: its losses since December 2025), which takes logits and
applies the softmax itself.
Computed in float64 and rounded once: for a confident network softmax - target cancels almost entirely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np

from configs.errors import InputError, ShapeError
from configs.model_file import LossSchema
from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import Example, LabelPlan, LossPrimitive, Refused, Step, Values
from trainlib.primitives.lowering.calls import LossLowering
from trainlib.steps import Array


class _Schema(LossSchema):
    labels: Literal["soft", "hard"] = "soft"


def _plan(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
    if len(output.shape) != 2:
        raise ShapeError(
            f"cross-entropy needs a vector of logits, the network ends with shape {output.shape[1:]}",
            where=where,
            cure="end the network with a linear layer, or flatten its output",
        )
    samples, classes = output.shape
    if attributes["labels"] == "hard":
        return LabelPlan((samples,), "int32", classes, hard=True)
    return LabelPlan(output.shape, classes=classes)


def _checked(op: Op, logits: Array, label: Array) -> Array:
    """The label. InputError for a class number that is none, and for a negative share of a class."""
    if label.ndim < logits.ndim:
        classes = logits.shape[1]
        wrong = label[(label < 0) | (label >= classes)]
        if wrong.size:
            raise InputError(
                f"label {int(wrong[0])} is no class: there are {classes}, 0 to {classes - 1}",
                where=op.name,
                cure="as many outputs of the last layer as there are classes; classes counted from 0",
            )
    elif (label < 0).any():
        raise InputError(
            f"a soft label holds {float(label.min()):.3g}: shares of classes are not negative", where=op.name
        )
    return label


def _distribution(op: Op, logits: Array, label: Array) -> Array:
    """The label as a distribution."""
    _checked(op, logits, label)
    if label.ndim == logits.ndim:
        return label.astype(np.float64)
    return np.eye(logits.shape[1])[label]


def _value(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    logits = arrays[0].astype(np.float64)
    target = _distribution(op, logits, arrays[1])
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) * target.sum(axis=1) - (target * shifted).sum(axis=1)
    return (np.array([losses.mean()], dtype=np.float32),)


def _gradient(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    logits = arrays[0].astype(np.float64)
    target = _distribution(op, logits, arrays[1])
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax = exponentials / exponentials.sum(axis=1, keepdims=True)
    gradient = softmax * target.sum(axis=1, keepdims=True) - target
    return ((gradient / len(logits)).astype(np.float32),)


def _reference(op: Op, values: Values) -> Values:
    logits = values["y"].astype(np.float64)
    _checked(op, logits, values["label"])
    log_probabilities = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    rows = np.arange(len(logits))
    if op.attributes["labels"] == "hard":
        loss = -log_probabilities[rows, values["label"]].mean()
        gradient = np.exp(log_probabilities)
        gradient[rows, values["label"]] -= 1
    else:
        target = values["label"].astype(np.float64)
        loss = -np.sum(target * log_probabilities) / len(logits)
        gradient = np.exp(log_probabilities) * target.sum(axis=1, keepdims=True) - target
    return {
        "loss": np.array([loss]),
        "dy": gradient / len(logits),
    }


def _torch_loss(torch: Any, attributes: Mapping[str, Any], y: Any, label: Any) -> Any:
    return torch.nn.functional.cross_entropy(y, label)


PRIMITIVE = LossPrimitive(
    name="cross_entropy",
    schema=_Schema,
    step=Step(
        "LOSS",
        ("y", "label"),
        ("loss", "dy"),
        _reference,
        LossLowering(
            "cross_entropy_fw",
            "cross_entropy_bw",
            lambda op: partial(_value, op),
            lambda op: partial(_gradient, op),
        ),
    ),
    plan=_plan,
    torch_loss=_torch_loss,
    examples=(Example(inputs=((7,),)), Example({"labels": "hard"}, ((5,),))),
    refused=(Refused({}, ((2, 3, 4),), "vector of logits"),),
)

# SPDX-License-Identifier: Apache-2.0
"""Softmax cross-entropy of logits z [N, classes] against distributions t (soft) or class numbers (hard).

Loss = mean over the batch of lse(z)·Σt - t·z with the stable log-sum-exp lse; gradient
(softmax(z)·Σt - t) / N. As PULP-TrainLib (reference: its losses since December 2025), which takes logits and
applies the softmax itself.
Computed in float64 and rounded once: for a confident network softmax - target cancels almost entirely.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from configs.dtypes import INT32
from configs.errors import InputError, ShapeError
from configs.model_file import LossSchema
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array
from trainlib.primitives.definition import Example, LabelPlan, Refused, Values
from trainlib.primitives.losses.entry import loss


class LabelKind(LossSchema):
    """Distributions over the classes, or class numbers."""

    labels: Literal["soft", "hard"] = "soft"
    """Distributions over the classes (soft), or class numbers (hard)."""


def _plan(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
    if len(output.shape) != 2:
        raise ShapeError(
            f"cross-entropy needs a vector of logits, the network ends with shape {output.shape[1:]}",
            where=where,
            cure="end the network with a linear layer, or flatten its output",
        )
    samples, classes = output.shape
    if attributes["labels"] == "hard":
        return LabelPlan((samples,), INT32, classes, hard=True)
    return LabelPlan(output.shape, classes=classes)


def _checked(label: Array, logits: Array, where: str) -> Array:
    """The label. InputError for a class number that is none, and for a negative share of a class."""
    if label.ndim < logits.ndim:
        classes = logits.shape[1]
        wrong = label[(label < 0) | (label >= classes)]
        if wrong.size:
            raise InputError(
                f"label {int(wrong[0])} is no class: there are {classes}, 0 to {classes - 1}",
                where=where,
                cure="as many outputs of the last layer as there are classes; classes counted from 0",
            )
    elif (label < 0).any():
        raise InputError(
            f"a soft label holds {float(label.min()):.3g}: shares of classes are not negative", where=where
        )
    return label


def _distribution(label: Array, logits: Array, where: str) -> Array:
    """The label as a distribution."""
    _checked(label, logits, where)
    if label.ndim == logits.ndim:
        return label.astype(np.float64)
    return np.eye(logits.shape[1])[label]


def _value(y: Array, label: Array, where: str) -> Any:
    logits, target = y.astype(np.float64), _distribution(label, y, where)
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) * target.sum(axis=1) - (target * shifted).sum(axis=1)
    return losses.mean()


def _gradient(y: Array, label: Array, where: str) -> Array:
    logits, target = y.astype(np.float64), _distribution(label, y, where)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax = exponentials / exponentials.sum(axis=1, keepdims=True)
    gradient: Array = (softmax * target.sum(axis=1, keepdims=True) - target) / len(logits)
    return gradient


def _reference(op: Op, values: Values) -> Values:
    logits = values["y"].astype(np.float64)
    _checked(values["label"], logits, op.name)
    logits -= logits.max(axis=1, keepdims=True)  # beside large logits the logarithm of the sum would be lost
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
    return {"loss": np.array([loss]), "dy": gradient / len(logits)}


CROSS_ENTROPY = loss(
    "cross_entropy",
    value=_value,
    gradient=_gradient,
    reference=_reference,
    nests=("cross_entropy_fw", "cross_entropy_bw"),
    options=LabelKind,
    labels=_plan,
    per_sample=True,
    examples=(Example(inputs=((7,),)), Example({"labels": "hard"}, ((5,),))),
    refused=(Refused({}, ((2, 3, 4),), "vector of logits"),),
)
"""The entry of `trainlib.primitives.losses.table`."""

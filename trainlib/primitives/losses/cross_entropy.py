# SPDX-License-Identifier: Apache-2.0
"""Softmax cross-entropy of logits z [N, classes, places] against distributions t (soft) or numbers (hard).

Loss = mean over samples and places of lse(z)·Σt - t·z with the stable log-sum-exp lse; gradient
softmax(z)·Σt - t over their number. As PULP-TrainLib (reference: its losses since December 2025), which takes
logits and applies the softmax itself. Smoothing, weights of classes and ignored labels are in t, as in
torch.nn.CrossEntropyLoss: t becomes w · ((1 - s) · t + s / classes), and a mean over class numbers divides by
the sum of the weights of those that count.
Computed in float64 and rounded once: for a confident network softmax - target cancels almost entirely.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from configs.dtypes import FP32
from configs.errors import InputError, ShapeError
from configs.model_file import LossSchema
from configs.values import replace
from trainlib.ir.graph import Tensor
from trainlib.ir.steps import Array
from trainlib.primitives.definition import DrawnInput, Example, LabelPlan, Shape
from trainlib.primitives.losses.entry import loss
from trainlib.primitives.losses.labels import class_numbers, counted, rows, unrowed
from trainlib.primitives.lowering.elementwise import LossNests

ClassWeights = Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1)]
"""A weight for each class."""


class ClassLossSchema(LossSchema):
    """Options of a loss of class numbers."""

    class_weights: ClassWeights | None = None
    """One weight per class; with `reduction: mean`, the sum is divided by the sum of the weights
    of the labels."""
    ignore_index: int | None = None
    """Label to ignore (default: none)."""


class _LabelForm(LossSchema):
    labels: Literal["soft", "hard"] = "soft"
    """Distributions over the classes (soft), or class numbers (hard)."""


class _CrossEntropySchema(ClassLossSchema, _LabelForm):
    label_smoothing: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of every label that is distributed over all classes (label smoothing)."""


def _plan(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
    plan = class_numbers(attributes, output, where)
    if attributes["labels"] == "hard":
        return plan
    if plan.ignored is not None:
        raise ShapeError(
            "ignore_index needs hard labels (class numbers), but the labels are soft",
            where=where,
            cure="use labels: hard",
        )
    return replace(plan, shape=output.shape, dtype=FP32, hard=False)


def _targets(y: Array, label: Array, where: str, options: Mapping[str, Any]) -> Array:
    """t, a row for each sample and place."""
    classes, smoothing = y.shape[1], options["label_smoothing"]
    if label.ndim == y.ndim:
        if (label < 0).any():
            raise InputError(
                f"a soft label holds the negative class probability {float(label.min()):.3g}",
                where=where,
                cure="use class probabilities of 0 or more",
            )
        target, counts = rows(label), np.full(len(y) * prod(y.shape[2:]), True)
    else:
        flat = label.reshape(-1)
        counts = counted(flat, classes, where, options["ignore_index"])
        target = np.eye(classes)[np.where(counts, flat, 0)] * counts[:, None]
    if smoothing:
        target = target * (1 - smoothing) + counts[:, None] * (smoothing / classes)
    weighted: Array = target * np.array(options["class_weights"] or 1.0)
    return weighted


def _terms(y: Array, label: Array, where: str, options: Mapping[str, Any]) -> Array:
    target = _targets(y, label, where, options)
    logits = rows(y)
    shifted = logits - logits.max(axis=1, keepdims=True)
    sums = np.log(np.exp(shifted).sum(axis=1)) * target.sum(axis=1)
    losses: Array = sums - (target * shifted).sum(axis=1)
    return losses


def _slopes(y: Array, label: Array, where: str, options: Mapping[str, Any]) -> Array:
    target = _targets(y, label, where, options)
    logits = rows(y)
    exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax = exponentials / exponentials.sum(axis=1, keepdims=True)
    return unrowed(softmax * target.sum(axis=1, keepdims=True) - target, y.shape)


def class_count(y: Array, label: Array, where: str, options: Mapping[str, Any]) -> float:
    """What a mean divides by: samples and places, or the weights of the labels that count."""
    weights = options["class_weights"]
    if label.ndim == y.ndim:
        return float(len(y) * prod(y.shape[2:]))
    counts = counted(label, y.shape[1], where, options["ignore_index"])
    return float(counts.sum() if weights is None else np.array(weights)[label[counts]].sum())


def _nests(attributes: Mapping[str, Any], shape: Shape) -> LossNests:
    """PULP-TrainLib's of a vector of logits, if it has no more to do than these."""
    sizes = class_sizes(attributes, shape) | {
        "smoothed": int(attributes["label_smoothing"] > 0),
        "soft": int(attributes["labels"] == "soft"),
    }
    if len(shape) == 2 and not (sizes["weighted"] or sizes["ignoring"] or sizes["smoothed"]):
        return LossNests({"soft": sizes["soft"]}, per_sample=True)
    return LossNests(sizes, cut=may_cut(attributes, shape), name="cross_entropy_rows")


def may_cut(attributes: Mapping[str, Any], shape: Shape) -> str:
    """Places, where they need not be seen together, as for a mean that weighs or leaves out some of them."""
    counted_first = attributes["class_weights"] is not None or attributes["ignore_index"] is not None
    return "places" if len(shape) > 2 and not (counted_first and attributes["reduction"] == "mean") else ""


def class_sizes(attributes: Mapping[str, Any], shape: Shape) -> dict[str, int]:
    """What the nests of a loss of classes name."""
    return {
        "samples": shape[0],
        "classes": shape[1],
        "places": prod(shape[2:]),
        "weighted": int(attributes["class_weights"] is not None),
        "ignoring": int(attributes["ignore_index"] is not None),
    }


_ALL = {"label_smoothing": 0.1, "class_weights": [0.5, 2.0, 0.25, 1.5]}

CROSS_ENTROPY = loss(
    "cross_entropy",
    terms=_terms,
    slopes=_slopes,
    own_slope=True,
    count=class_count,
    nests=_nests,
    options=_CrossEntropySchema,
    labels=_plan,
    examples=(
        Example(inputs=((7,),)),
        Example({"labels": "hard"}, ((5,),)),
        Example({"labels": "hard", "reduction": "sum", "weight": 0.3}, ((5,),)),
        Example({**_ALL, "labels": "hard", "ignore_index": 1}, ((4,),), batches=(6,)),
        Example(_ALL, ((4, 3),)),
        Example({"labels": "hard", "ignore_index": -100}, (DrawnInput((3, 4, 5), low=-3, high=3),)),
    ),
)
"""The entry of `trainlib.primitives.losses.table`."""

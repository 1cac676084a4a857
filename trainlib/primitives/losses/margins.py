# SPDX-License-Identifier: Apache-2.0
"""Losses with a margin, and of angles. Definitions and slopes at the kinks are those of torch.nn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LossSchema
from trainlib.ir.graph import Tensor
from trainlib.ir.steps import Array
from trainlib.primitives.definition import DrawnInput, Example, LabelPlan
from trainlib.primitives.losses.cross_entropy import ClassWeights
from trainlib.primitives.losses.entry import loss
from trainlib.primitives.losses.labels import SIGNS, class_numbers, counted
from trainlib.primitives.lowering.elementwise import LossNests


class _HingeSchema(LossSchema):
    margin: float = 1.0
    """Distance that pairs with label -1 must exceed."""


class _MultiMarginSchema(LossSchema):
    p: Literal[1, 2] = 1
    """Exponent of the violations of the margin."""
    margin: float = 1.0
    """Margin between the score of the label and the others."""
    class_weights: ClassWeights | None = None
    """One weight per class; the loss of a sample is multiplied by the weight of its class."""


def _samples(y: Array) -> int:
    return len(y)


def _excesses(y: Array, label: Array, where: str, margin: float) -> tuple[Array, Array]:
    """How far each score lies within the margin, 0 for that of the label; the labels as a column."""
    counted(label, y.shape[1], where)
    within = np.maximum(margin - np.take_along_axis(y, label[:, None], 1) + y, 0)
    np.put_along_axis(within, label[:, None], 0, 1)
    return within, label[:, None]


def _weights(class_weights: list[float] | None, label: Array) -> Array:
    return np.ones(len(label)) if class_weights is None else np.array(class_weights)[label]


def multi_margin_terms(
    y: Array, label: Array, where: str, p: int, margin: float, class_weights: list[float] | None
) -> Any:
    """w · Σ max(0, margin - y at the label + y)^p / classes over all others, sample by sample."""
    within, _ = _excesses(y, label, where, margin)
    return _weights(class_weights, label) * (within**p).sum(axis=1) / y.shape[1]


def multi_margin_slopes(
    y: Array, label: Array, where: str, p: int, margin: float, class_weights: list[float] | None
) -> Array:
    """w · p · excess^(p - 1) / classes of the others; at the label less their sum."""
    within, at = _excesses(y, label, where, margin)
    slopes = np.where(within > 0, p * within ** (p - 1), 0.0)
    np.put_along_axis(slopes, at, -slopes.sum(axis=1, keepdims=True), 1)
    scaled: Array = slopes * (_weights(class_weights, label) / y.shape[1])[:, None]
    return scaled


def _vector_of_classes(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
    if len(output.shape) != 2:
        raise ShapeError(
            f"multi_margin needs a vector of scores, but the network ends with {list(output.shape[1:])}",
            where=where,
            cure="end the network with a linear layer, or a flatten layer",
        )
    return class_numbers(attributes, output, where)


LEAST_SQUARE = 1e-12
"""Added to the squares of the norms by torch.nn.CosineEmbeddingLoss."""


def _cosine_plan(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
    if len(output.shape) != 2:
        raise ShapeError(
            f"cosine needs a vector per sample, but the network ends with {list(output.shape[1:])}",
            where=where,
            cure="flatten the output of the network",
        )
    return LabelPlan(output.shape)


def _norms(array: Array) -> Array:
    squares: Array = np.square(array).sum(axis=1, keepdims=True) + LEAST_SQUARE
    return np.sqrt(squares)


def cosine_terms(y: Array, label: Array) -> Any:
    """1 - cos of the angle between output and target, sample by sample."""
    return 1 - (y * label).sum(axis=1, keepdims=True) / (_norms(y) * _norms(label))


def cosine_slopes(y: Array, label: Array) -> Any:
    """(cos · y / |y| - t / |t|) / |y|."""
    ours, theirs = _norms(y), _norms(label)
    cosine = (y * label).sum(axis=1, keepdims=True) / (ours * theirs)
    return (cosine * y / ours - label / theirs) / ours


MARGINS = (
    loss(
        "hinge_embedding",
        terms=lambda y, label, margin: np.where(label > 0, y, np.maximum(0, margin - y)),
        slopes=lambda y, label, margin: np.where(label > 0, 1.0, np.where(y <= margin, -1.0, 0.0)),
        options=_HingeSchema,
        values=SIGNS,
        examples=(
            Example(inputs=(DrawnInput((7,), low=-2, high=2, away_from=(1.0,)),)),
            Example({"margin": 0.5, "reduction": "sum"}, (DrawnInput((2, 3), away_from=(0.5,)),)),
        ),
    ),
    loss(  # log(1 + e^(-t·y)), which overflows nowhere
        "soft_margin",
        terms=lambda y, label: np.logaddexp(0, -label * y),
        slopes=lambda y, label: -label * (0.5 - 0.5 * np.tanh(label * y / 2)),
        values=SIGNS,
        examples=(Example(inputs=((7,),)), Example(inputs=(DrawnInput((2, 3), low=-20, high=20),))),
    ),
    loss(
        "multi_margin",
        terms=multi_margin_terms,
        slopes=multi_margin_slopes,
        own_slope=True,
        count=_samples,
        nests=lambda options, shape: LossNests(
            {
                "samples": shape[0],
                "classes": shape[1],
                "squared": int(options["p"] == 2),
                "weighted": int(options["class_weights"] is not None),
            },
        ),
        options=_MultiMarginSchema,
        labels=_vector_of_classes,
        examples=(
            Example(inputs=((5,),)),
            Example({"p": 2, "margin": 0.5, "class_weights": [0.5, 2.0, 1.0]}, ((3,),)),
        ),
    ),
    loss(  # torch.nn.CosineEmbeddingLoss of output and target, which belong together
        "cosine",
        terms=cosine_terms,
        slopes=cosine_slopes,
        own_slope=True,
        count=_samples,
        nests=lambda options, shape: LossNests({"samples": shape[0], "features": shape[1]}),
        labels=_cosine_plan,
        examples=(Example(inputs=((6,),)), Example({"reduction": "sum"}, ((3,),))),
    ),
)
"""Entries of `trainlib.primitives.losses.table`."""

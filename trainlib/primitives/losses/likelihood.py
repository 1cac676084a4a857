# SPDX-License-Identifier: Apache-2.0
"""Losses of probabilities: binary cross-entropy, Kullback-Leibler, Poisson, and of log-probabilities.

Definitions, clamps and what happens at their bounds are those of torch.nn. A number of an option for each
channel belongs to the axis behind the batch. Computed in float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.errors import InputError, ShapeError
from configs.model_file import LossSchema
from trainlib.ir.graph import Tensor
from trainlib.ir.steps import Array
from trainlib.primitives.definition import DrawnInput, Example, LabelPlan, Shape
from trainlib.primitives.losses.cross_entropy import ClassLossSchema, class_count, class_sizes, may_cut
from trainlib.primitives.losses.entry import loss
from trainlib.primitives.losses.labels import (
    COUNTS,
    DISTRIBUTION,
    LOGARITHMS,
    ROUNDING,
    SHARES,
    class_numbers,
    counted,
)
from trainlib.primitives.lowering.elementwise import LossNests

_NotNegative = Annotated[float, Field(ge=0)]

PerChannel = _NotNegative | Annotated[list[_NotNegative], Field(min_length=1)]
"""One number, or one for each channel."""

LEAST_LOG = -100.0
"""Of bce: what a logarithm is at least."""

LEAST_VARIANCE = 1e-12
"""Of the gradient of bce: what y · (1 - y) is at least."""


class _BceSchema(LossSchema):
    element_weights: PerChannel = 1.0
    """Weight of the terms; a list has one for each channel."""


class _BceLogitsSchema(_BceSchema):
    pos_weight: PerChannel = 1.0
    """Weight of the positive share of a target; a list has one for each channel."""


def per_channel(option: float | list[float], y: Any) -> Any:
    """An option for each channel, so that it broadcasts against y."""
    return np.array(option).reshape(-1, *(1,) * (y.ndim - 2)) if isinstance(option, list) else option


def _plan(attributes: Mapping[str, Any], output: Tensor, where: str) -> LabelPlan:
    for name in ("element_weights", "pos_weight"):
        weights = attributes.get(name, 1.0)
        if isinstance(weights, list) and len(weights) != output.shape[1]:
            raise ShapeError(
                f"the loss has {len(weights)} {name}, but {output.shape[1]} channels",
                where=where,
                cure=f"use {output.shape[1]} numbers, or one",
            )
    return LabelPlan(output.shape, values=SHARES)


def _bce_nests(attributes: Mapping[str, Any], shape: Shape) -> LossNests:
    weights = {key: attributes.get(key, 1.0) for key in ("element_weights", "pos_weight")}
    sizes = {
        "positive": int(weights["pos_weight"] != 1.0),
        "weighted": int(weights["element_weights"] != 1.0),
        "lists": sum(isinstance(item, list) for item in weights.values()),
    }
    return LossNests(sizes, cut="" if sizes["lists"] else "elements")


def _check_probabilities(y: Array, where: str) -> None:
    wrong = y[(y < -ROUNDING) | (y > 1 + ROUNDING)]
    if wrong.size:
        raise InputError(
            f"the network's output holds {float(wrong[0]):.3g}, but bce needs probabilities from 0 to 1",
            where=where,
            cure="add a sigmoid at the end, or use bce_with_logits",
        )


def bce_terms(y: Array, label: Array, where: str, element_weights: Any) -> Any:
    """-t · log(y) - (1 - t) · log(1 - y), no logarithm below -100."""
    _check_probabilities(y, where)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs, others = np.fmax(np.log(y), LEAST_LOG), np.fmax(np.log1p(-y), LEAST_LOG)
    return per_channel(element_weights, y) * ((label - 1) * others - label * logs)


def bce_slopes(y: Array, label: Array, element_weights: Any) -> Any:
    """(y - t) / (y · (1 - y)), no divisor below 1e-12."""
    return per_channel(element_weights, y) * (y - label) / np.maximum(y * (1 - y), LEAST_VARIANCE)


def logits_terms(y: Array, label: Array, pos_weight: Any, element_weights: Any) -> Any:
    """(1 - t) · y + (1 + (p - 1) · t) · log(1 + e^-y), which overflows nowhere."""
    positive = 1 + (per_channel(pos_weight, label) - 1) * label
    return per_channel(element_weights, label) * ((1 - label) * y + positive * np.logaddexp(0, -y))


def logits_slopes(y: Array, label: Array, pos_weight: Any, element_weights: Any) -> Any:
    """1 - t - (1 + (p - 1) · t) / (1 + e^y)."""
    positive = 1 + (per_channel(pos_weight, label) - 1) * label
    return per_channel(element_weights, label) * (1 - label - positive * (0.5 - 0.5 * np.tanh(y / 2)))


class _KlSchema(LossSchema):
    log_target: bool = False
    """Whether targets are logarithms of probabilities."""


def kl_terms(y: Array, label: Array, log_target: bool) -> Any:
    """t · (log t - y), 0 where t is."""
    if log_target:
        return np.exp(label) * (label - y)
    return label * (np.log(np.where(label > 0, label, 1)) - y)


class _PoissonSchema(LossSchema):
    log_input: bool = True
    """Whether the output is the logarithm of the rate."""
    full: bool = False
    """Whether Stirling's approximation of log t! is added, for targets above 1."""
    eps: Annotated[float, Field(gt=0)] = 1e-8
    """Added to the rate before its logarithm is taken."""


def poisson_terms(y: Array, label: Array, log_input: bool, full: bool, eps: float) -> Any:
    """rate - t · log(rate), with t·log(t) - t + log(2·pi·t) / 2 if `full`."""
    terms = np.exp(y) - label * y if log_input else y - label * np.log(y + eps)
    if not full:
        return terms
    many = np.where(label > 1, label, 1)
    return terms + (label > 1) * (many * np.log(many) - many + 0.5 * np.log(2 * np.pi * many))


def _own_sizes(*names: str, cut: str = "") -> Any:
    return lambda options, shape: LossNests({key: int(options[key]) for key in names}, cut=cut)


def _at_labels(y: Array, label: Array, where: str, options: Mapping[str, Any]) -> tuple[Array, Array]:
    """Numbers of the classes, those that do not count as 0, and what each counts."""
    counts = counted(label, y.shape[1], where, options["ignore_index"])
    numbers = np.where(counts, label, 0)
    weights = options["class_weights"]
    return numbers[:, None], counts * (1.0 if weights is None else np.array(weights)[numbers])


def nll_terms(y: Array, label: Array, where: str, options: Mapping[str, Any]) -> Any:
    """-w · y at the label."""
    numbers, shares = _at_labels(y, label, where, options)
    return -shares * np.take_along_axis(y, numbers, 1)[:, 0]


def nll_slopes(y: Array, label: Array, where: str, options: Mapping[str, Any]) -> Array:
    """-w at the label, 0 elsewhere."""
    numbers, shares = _at_labels(y, label, where, options)
    slopes = np.zeros(y.shape)
    np.put_along_axis(slopes, numbers, -shares[:, None], 1)
    return slopes


_PROBABILITIES = DrawnInput((6,), low=0.05, high=0.95)
_LOGS = DrawnInput((4, 3), low=-3, high=-0.1)

LIKELIHOODS = (
    loss(
        "bce",
        terms=bce_terms,
        slopes=bce_slopes,
        own_slope=True,
        nests=_bce_nests,
        options=_BceSchema,
        labels=_plan,
        values=SHARES,
        examples=(
            Example(inputs=(_PROBABILITIES,)),
            Example(
                {"element_weights": [0.5, 2.0], "reduction": "sum"}, (DrawnInput((2, 3), low=0.1, high=0.9),)
            ),
        ),
    ),
    loss(
        "bce_with_logits",
        terms=logits_terms,
        slopes=logits_slopes,
        nests=_bce_nests,
        options=_BceLogitsSchema,
        labels=_plan,
        values=SHARES,
        examples=(
            Example(inputs=((7,),)),
            Example({"pos_weight": [0.5, 2.0, 1.0], "weight": 0.4}, (DrawnInput((3, 4, 2), low=-9, high=9),)),
            Example({"pos_weight": 3.0, "element_weights": [1.0, 0.0, 2.0], "reduction": "sum"}, ((3, 5),)),
        ),
    ),
    loss(
        "kl_div",
        terms=kl_terms,
        slopes=lambda y, label, log_target: -np.exp(label) if log_target else -label,
        nests=_own_sizes("log_target"),
        options=_KlSchema,
        values=lambda options: LOGARITHMS if options["log_target"] else DISTRIBUTION,
        examples=(
            Example(inputs=(DrawnInput((6,), low=-4, high=0),)),
            Example({"reduction": "batchmean"}, (_LOGS,)),
            Example({"log_target": True, "reduction": "sum"}, (_LOGS,)),
        ),
    ),
    loss(
        "poisson_nll",
        terms=poisson_terms,
        slopes=lambda y, label, log_input, eps: np.exp(y) - label if log_input else 1 - label / (y + eps),
        nests=_own_sizes("log_input", "full", cut="elements"),
        options=_PoissonSchema,
        values=COUNTS,
        examples=(
            Example(inputs=((6,),)),
            Example({"full": True, "reduction": "sum"}, ((4, 3),)),
            Example({"log_input": False, "eps": 0.1}, (DrawnInput((5,), low=0.2, high=3),)),
        ),
    ),
    loss(
        "nll",
        terms=nll_terms,
        slopes=nll_slopes,
        own_slope=True,
        count=class_count,
        nests=lambda options, shape: LossNests(class_sizes(options, shape), cut=may_cut(options, shape)),
        options=ClassLossSchema,
        labels=class_numbers,
        examples=(
            Example(inputs=(DrawnInput((5,), low=-4, high=0),)),
            Example({"class_weights": [0.5, 2.0, 0.0, 1.0], "ignore_index": 3}, ((4, 3),), batches=(3,)),
            Example({"reduction": "sum", "weight": 2.5}, (DrawnInput((3, 4, 5), low=-3, high=0),)),
        ),
    ),
)
"""Entries of `trainlib.primitives.losses.table`."""

# SPDX-License-Identifier: Apache-2.0
"""Losses: terms, slopes, nests. A new one is an entry of `PRIMITIVES`, nothing else."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.model_file import LossSchema
from trainlib.ir.steps import Array
from trainlib.primitives.definition import DrawnInput, Example, LossPrimitive
from trainlib.primitives.derivative import constant
from trainlib.primitives.losses.cross_entropy import CROSS_ENTROPY
from trainlib.primitives.losses.entry import loss
from trainlib.primitives.losses.likelihood import LIKELIHOODS
from trainlib.primitives.losses.margins import MARGINS
from trainlib.primitives.lowering.elementwise import LossNests


class _BerhuLimit(LossSchema):
    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Error at which it changes from linear to quadratic, as a share of the largest error."""


def berhu_terms(y: Array, label: Array, alpha: float) -> Any:
    """|e| up to c = alpha · max |e|, (e² + c²) / 2c beyond."""
    size = np.abs(y - label)
    limit = alpha * constant(size).max()
    with np.errstate(invalid="ignore"):
        return np.where(size > limit, np.square(size) / (2 * limit) + limit / 2, size)


def berhu_slopes(y: Array, label: Array, alpha: float) -> Any:
    """sign(e) up to c, which is taken as constant, e / c beyond."""
    error = y - label
    size = np.abs(error)
    limit = alpha * size.max()
    with np.errstate(invalid="ignore"):
        return np.where(size > limit, error / limit, np.sign(error))


class _HuberLimit(LossSchema):
    delta: Annotated[float, Field(gt=0)] = 1.0
    """Error at which it changes from quadratic to linear."""


class _SmoothLimit(LossSchema):
    beta: Annotated[float, Field(gt=0)] = 1.0
    """Error at which it changes from quadratic to linear."""


def huber_terms(y: Array, label: Array, delta: float) -> Any:
    """m · (|e| - m / 2) with m = min(|e|, delta): e² / 2, or the line that goes on."""
    size = np.abs(y - label)
    within = np.minimum(size, delta)
    return within * (size - within / 2)


_KINKS = DrawnInput((2, 3, 4), low=-3, high=3)

PRIMITIVES: tuple[LossPrimitive, ...] = (
    CROSS_ENTROPY,
    loss(
        "mse",
        terms=lambda y, label: np.square(y - label),
        slopes=lambda y, label: 2 * (y - label),
        single=True,
        examples=(
            Example(inputs=((7,),)),
            Example(inputs=((2, 3, 4),)),
            Example({"reduction": "sum", "weight": 0.25}, ((5,),)),
            Example({"reduction": "batchmean", "weight": 2.0}, ((5,),)),
        ),
    ),
    loss(  # gradient 0 where output and target are equal, as in PyTorch
        "l1",
        terms=lambda y, label: np.abs(y - label),
        slopes=lambda y, label: np.sign(y - label),
        single=True,
        examples=(Example(inputs=((7,),)), Example(inputs=((2, 3, 4),)), Example({"reduction": "sum"})),
    ),
    loss(  # reversed Huber (Laina et al. 2016); PULP-TrainLib subtracts c² and so drops to 0 at |e| = c
        "berhu",
        terms=berhu_terms,
        slopes=berhu_slopes,
        nests=lambda attributes, shape: LossNests(),  # the limit is of all elements
        options=_BerhuLimit,
        examples=(Example(inputs=((10,),)), Example({"alpha": 0.5}, ((2, 3, 4),))),
    ),
    loss(
        "huber",
        terms=huber_terms,
        slopes=lambda y, label, delta: np.clip(y - label, -delta, delta),
        options=_HuberLimit,
        examples=(Example(inputs=((7,),)), Example({"delta": 0.3, "reduction": "sum"}, (_KINKS,))),
    ),
    loss(  # Huber over its limit, which the constant of the mean takes in
        "smooth_l1",
        terms=lambda y, label, beta: huber_terms(y, label, beta) / beta,
        slopes=lambda y, label, beta: np.clip((y - label) / beta, -1, 1),
        nests=lambda attributes, shape: LossNests(cut="elements", name="huber"),
        options=_SmoothLimit,
        examples=(Example(inputs=((7,),)), Example({"beta": 0.3, "reduction": "sum"}, (_KINKS,))),
    ),
    *LIKELIHOODS,
    *MARGINS,
    loss(  # of a network that ends in its own loss
        "output",
        terms=lambda y: y,
        slopes=lambda y: np.ones(y.shape),
        unlabelled=True,
        examples=(Example(inputs=((1,),)), Example({"reduction": "sum", "weight": 0.5}, ((2, 3),))),
    ),
)
"""Every loss; `trainlib.registry` lists them from here."""

# SPDX-License-Identifier: Apache-2.0
"""Losses: value, gradient, nests. A new one is an entry of `PRIMITIVES`, nothing else."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from configs.model_file import LossSchema
from trainlib.ir.steps import Array
from trainlib.primitives.definition import Example, LossPrimitive
from trainlib.primitives.derivative import constant
from trainlib.primitives.losses.cross_entropy import CROSS_ENTROPY
from trainlib.primitives.losses.entry import loss, mean_of


class BerhuLimit(LossSchema):
    """The limit as a share of the largest error."""

    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The error at which it turns from linear to quadratic, as a share of the largest error."""


def berhu_value(y: Array, label: Array, alpha: float) -> Any:
    """Mean of |e| up to c = alpha · max |e|, of (e² + c²) / 2c beyond."""
    size = np.abs(y.astype(np.float64) - label)
    limit = alpha * size.max()
    beyond = size > limit
    size[beyond] = np.square(size[beyond]) / (2 * limit) + limit / 2
    return size.mean()


def berhu_gradient(y: Array, label: Array, alpha: float) -> Array:
    """sign(e) / n up to c, which is taken as constant, e / (c·n) beyond."""
    error = y.astype(np.float64) - label
    limit = alpha * np.abs(error).max()
    slope: Array = np.sign(error)
    beyond = np.abs(error) > limit
    slope[beyond] = error[beyond] / limit
    return slope / error.size


def berhu_terms(y: Array, label: Array, alpha: float) -> Any:
    """What it is the mean of."""
    size = np.abs(y - label)
    limit = alpha * np.max(constant(size))
    return np.where(size <= limit, size, (size * size + limit * limit) / (2 * limit))


PRIMITIVES: tuple[LossPrimitive, ...] = (
    CROSS_ENTROPY,
    loss(
        "mse",
        value=lambda y, label: np.mean(np.square(y - label), dtype=np.float64),
        gradient=lambda y, label: (y - label) * (2 / y.size),
        reference=mean_of(lambda y, label: (y - label) ** 2),
        nests=("mse_fw", "mse_bw"),
        examples=(Example(inputs=((7,),)), Example(inputs=((2, 3, 4),))),
    ),
    loss(  # gradient 0 where output and target are equal, as in PyTorch
        "l1",
        value=lambda y, label: np.mean(np.abs(y - label), dtype=np.float64),
        gradient=lambda y, label: np.sign(y - label) * (1 / y.size),
        reference=mean_of(lambda y, label: np.abs(label - y)),
        nests=("l1_fw", "l1_bw"),
        examples=(Example(inputs=((7,),)), Example(inputs=((2, 3, 4),))),
    ),
    loss(  # reversed Huber (Laina et al. 2016); PULP-TrainLib subtracts c² and so drops to 0 at |e| = c
        "berhu",
        value=berhu_value,
        gradient=berhu_gradient,
        reference=mean_of(berhu_terms),
        nests=("berhu_fw", "berhu_bw"),
        options=BerhuLimit,
        examples=(Example(inputs=((10,),)), Example({"alpha": 0.5}, ((2, 3, 4),))),
    ),
)
"""Every loss; `trainlib.registry` lists them from here."""

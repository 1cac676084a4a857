# SPDX-License-Identifier: Apache-2.0
"""Optimizers: states, update, nest. A new one is an entry of `PRIMITIVES`, nothing else."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from configs.model_file import OptimizerSchema
from trainlib.primitives.definition import Example, OptimizerPrimitive
from trainlib.primitives.optimizers.entry import State, optimizer

Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Factor of the weight that is added to its gradient."""

Beta = Annotated[float, Field(ge=0, lt=1)]
"""Share of a moment that is kept."""


class SgdOptions(OptimizerSchema):
    """No momentum unless told otherwise."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the last step that goes into this one; 0: none is kept."""
    nesterov: bool = False
    """Look ahead along the momentum."""
    weight_decay: Decay = 0.0
    """Share of the weight that is added to its gradient (adamw: taken off the weight itself)."""

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> SgdOptions:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class MomentumOptions(SgdOptions):
    """A momentum of 0.9 unless told otherwise."""

    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Share of the last step that goes into this one."""


class AdamOptions(OptimizerSchema):
    """Defaults of the paper."""

    beta1: Beta = 0.9
    """Decay of the mean of the gradients."""
    beta2: Beta = 0.999
    """Decay of the mean of their squares."""
    eps: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1e-8
    """Added to the root of that mean."""
    weight_decay: Decay = 0.0
    """Share of the weight that is added to its gradient (adamw: taken off the weight itself)."""


def _sgd(name: str, options: type[SgdOptions], examples: tuple[Example, ...]) -> OptimizerPrimitive:
    """v = momentum · v + g, w -= learning_rate · v, g = dw + weight_decay · w; v only with a momentum.

    Nesterov: w -= learning_rate · (g + momentum · v). PULP-TrainLib has no momentum, and its decay changes
    the stored gradient as well; here dw stays what it is.
    """
    return optimizer(
        name,
        options=options,
        states={"velocity": State(when="momentum")},
        update={
            "g": lambda w, dw, weight_decay: dw + weight_decay * w if weight_decay else dw,
            "velocity": lambda g, momentum, velocity=None: g if velocity is None else momentum * velocity + g,
            "step": lambda g, momentum, nesterov, velocity: g + momentum * velocity if nesterov else velocity,
            "w": lambda w, step, learning_rate: w - learning_rate * step,
        },
        reference={
            "decayed": lambda w, dw, weight_decay: weight_decay * w + dw,
            "velocity": lambda decayed, momentum, velocity=0.0: momentum * velocity + decayed,
            "w": lambda w, decayed, velocity, momentum, nesterov, learning_rate: (
                w - learning_rate * (momentum * velocity + decayed if nesterov else velocity)
            ),
        },
        nest=lambda momentum, weight_decay: (
            "sgd_momentum" if momentum else "sgd_wd" if weight_decay else "sgd"
        ),
        examples=examples,
    )


def _adam(name: str, *, decoupled: bool) -> OptimizerPrimitive:
    """m = beta1·m + (1 - beta1)·g, v = beta2·v + (1 - beta2)·g², t = t + 1, with bias correction:
    w -= learning_rate · m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps). Adam adds weight_decay · w to
    the gradient g, AdamW (`decoupled`) takes learning_rate · weight_decay · w off the weight.

    Moments are kept in fp32 (in bf16 an increment of 1 - beta2 = 0.001 would be lost).
    Source: Kingma and Ba 2015; Loshchilov and Hutter 2019.
    """
    return optimizer(
        name,
        options=AdamOptions,
        states={"m": State(), "v": State(), "t": State(number=True)},
        update={
            "t": lambda t: t + 1,
            "start": lambda w, learning_rate, weight_decay: (
                w * (1 - learning_rate * weight_decay) if decoupled else w
            ),
            "g": lambda w, dw, weight_decay: dw if decoupled else dw + weight_decay * w,
            "m": lambda m, g, beta1: beta1 * m + (1 - beta1) * g,
            "v": lambda v, g, beta2: beta2 * v + (1 - beta2) * np.square(g),
            "root": lambda v, t, beta2, eps: np.sqrt(v) * (1 - beta2 ** int(t[0])) ** -0.5 + eps,
            "w": lambda start, m, root, t, learning_rate, beta1: (
                start - learning_rate / (1 - beta1 ** int(t[0])) * m / root
            ),
        },
        reference={
            "t": lambda t: t + 1,
            "g": lambda w, dw, weight_decay: dw + (0 if decoupled else weight_decay * w),
            "m": lambda m, g, beta1: m + (1 - beta1) * (g - m),
            "v": lambda v, g, beta2: v + (1 - beta2) * (g * g - v),
            "mean": lambda m, t, beta1: m / (1 - beta1 ** int(t[0])),
            "square": lambda v, t, beta2: v / (1 - beta2 ** int(t[0])),
            "direction": lambda w, mean, square, eps, weight_decay: (
                mean / (np.sqrt(square) + eps) + (weight_decay * w if decoupled else 0)
            ),
            "w": lambda w, direction, learning_rate: w - learning_rate * direction,
        },
        nest="adam",
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example({"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 0.001}, ((5,),)),
            Example({"learning_rate": 0.1, "weight_decay": 0.1}, ((2, 3, 3, 2),)),
        ),
    )


PRIMITIVES: tuple[OptimizerPrimitive, ...] = (
    _sgd(
        "sgd",
        SgdOptions,
        (
            Example({"learning_rate": 0.1}, ((4, 3),)),
            Example({"learning_rate": 0.01}, ((5,),)),
            Example({"learning_rate": 0.1, "weight_decay": 0.05}, ((2, 3, 3, 2),)),
            Example({"learning_rate": 0.1, "momentum": 0.5, "weight_decay": 0.1}, ((4, 3),)),
            Example({"learning_rate": 0.05, "momentum": 0.9, "nesterov": True}, ((5,),)),
        ),
    ),
    _sgd(  # the name that models written before `sgd` had a momentum use
        "sgd_momentum",
        MomentumOptions,
        (
            Example({"learning_rate": 0.1}, ((4, 3),)),
            Example({"learning_rate": 0.1, "nesterov": True, "weight_decay": 0.1}, ((2, 3, 3, 2),)),
        ),
    ),
    _adam("adam", decoupled=False),
    _adam("adamw", decoupled=True),
)
"""Every optimizer; `trainlib.registry` lists them from here."""

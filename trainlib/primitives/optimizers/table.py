# SPDX-License-Identifier: Apache-2.0
"""Optimizers: states, update, nest. A new one is an entry of `PRIMITIVES`, nothing else.

Defaults of options are PyTorch's; those of Adam and Lion are those of their papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from configs.model_file import OptimizerSchema
from trainlib.primitives.definition import Example, OptimizerPrimitive
from trainlib.primitives.formulas import Formula
from trainlib.primitives.optimizers.entry import State, optimizer

Decay = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Factor of the weight that is added to its gradient."""

Beta = Annotated[float, Field(ge=0, lt=1)]
"""Share of a moment that is kept."""

Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""What something is divided by, or added to it so that it is not 0."""


class _SgdOptions(OptimizerSchema):
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the last step that is added to this one (0: no momentum)."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    weight_decay: Decay = 0.0
    """Share of the weight that is added to its gradient."""
    dampening: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the gradient that is not added to the momentum, from the second step on."""

    @model_validator(mode="after")
    def _momentum_fits(self) -> _SgdOptions:
        for option in ("nesterov", "dampening"):
            if getattr(self, option) and not self.momentum:
                raise ValueError(f"'{option}' needs a momentum above 0")
        if self.nesterov and self.dampening:
            raise ValueError("'nesterov' needs dampening: 0")
        return self


class _MomentumOptions(_SgdOptions):
    momentum: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """Share of the last step that is added to this one."""


class _DecayOptions(OptimizerSchema):
    weight_decay: Decay = 0.0
    """Share of the weight that is added to its gradient."""


class _RmspropOptions(_DecayOptions):
    alpha: Beta = 0.99
    """Decay of the mean of the squares of the gradients."""
    eps: Above0 = 1e-8
    """Added to the root of the mean of the squares."""
    momentum: Beta = 0.0
    """Share of the last step that is added to this one (0: no momentum)."""
    centered: bool = False
    """Subtract the square of the mean gradient from the mean of the squares (variance)."""


class _AdagradOptions(_DecayOptions):
    lr_decay: Decay = 0.0
    """The learning rate is divided by 1 + lr_decay * (steps done)."""
    initial_accumulator_value: Decay = 0.0
    """Initial value of the sum of squares."""
    eps: Above0 = 1e-10
    """Added to the root of the sum of squares."""


class _AdadeltaOptions(_DecayOptions):
    rho: Beta = 0.9
    """Decay of the means of the squares, of gradients and of steps."""
    eps: Above0 = 1e-6
    """Added to both means before the root."""


class _MomentsOptions(OptimizerSchema):
    beta1: Beta = 0.9
    """Decay of the mean of the gradients."""
    beta2: Beta = 0.999
    """Decay of the mean of the squares of the gradients."""
    eps: Above0 = 1e-8
    """Added to the root of the mean of the squares."""


class _AdamaxOptions(_DecayOptions, _MomentsOptions):
    beta2: Beta = 0.999
    """Decay of the largest magnitude of the gradients."""
    eps: Above0 = 1e-8
    """Added to the magnitude of each gradient."""


class _AdamOptions(_DecayOptions, _MomentsOptions):
    amsgrad: bool = False
    """Divide by the root of the largest mean so far."""


class _AdamwOptions(_AdamOptions):
    weight_decay: Decay = 0.0
    """In each step, weight_decay * learning_rate * weight is subtracted from the weight itself."""


class _RadamOptions(_DecayOptions, _MomentsOptions):
    decoupled_weight_decay: bool = False
    """Subtract weight_decay * learning_rate * weight from the weight itself, as adamw does."""


class _NadamOptions(_RadamOptions):
    momentum_decay: Decay = 4e-3
    """Speed at which the momentum approaches beta1."""


class _LionOptions(_DecayOptions):
    weight_decay: Decay = 0.0
    """In each step, weight_decay * learning_rate * weight is subtracted from the weight itself."""
    beta1: Beta = 0.9
    """Share of the mean in the direction of a step; the rest is the gradient."""
    beta2: Beta = 0.99
    """Decay of the mean of the gradients."""


class _RpropOptions(OptimizerSchema):
    eta_minus: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Factor of the step after a change of the sign of the gradient."""
    eta_plus: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 1.2
    """Factor of the step after an unchanged sign."""
    size_min: Above0 = 1e-6
    """The smallest step."""
    size_max: Above0 = 50.0
    """The largest step."""


class _AsgdOptions(_DecayOptions):
    lambd: Decay = 1e-4
    """Decay of weights and learning rate."""
    alpha: Decay = 0.75
    """Power of the learning rate's decay."""
    t0: Decay = 1e6
    """Steps before the weights are averaged."""


RECTIFIED_FROM = 5
"""Samples a variance must be of, for RAdam to divide by it; PyTorch's, the paper has 4."""


def _sgd(name: str, options: type[_SgdOptions], examples: tuple[Example, ...]) -> OptimizerPrimitive:
    """v = momentum · v + (1 - dampening) · g, w -= learning_rate · v, g = dw + weight_decay · w; v only
    with a momentum, and the first v is g whatever the dampening.

    Nesterov: w -= learning_rate · (g + momentum · v). PULP-TrainLib has no momentum, and its decay changes
    the stored gradient as well; here dw stays what it is.
    """
    return optimizer(
        name,
        options=options,
        states={"velocity": State(when="momentum"), "t": State(number=True, when="dampening")},
        update={
            "g": lambda w, dw, weight_decay: dw + weight_decay * w if weight_decay else dw,
            "new": lambda g, dampening, t=None: g if t is None or t[0] == 0 else (1 - dampening) * g,
            "velocity": lambda new, momentum, velocity=None, t=(1,): (
                new if velocity is None or t[0] == 0 else momentum * velocity + new
            ),
            "t": lambda t=0: t + 1,
            "step": lambda g, momentum, nesterov, velocity: g + momentum * velocity if nesterov else velocity,
            "w": lambda w, step, learning_rate: w - learning_rate * step,
        },
        nest=lambda momentum, weight_decay, dampening: (
            ("sgd_dampened" if dampening else "sgd_momentum")
            if momentum
            else ("sgd_wd" if weight_decay else "sgd")
        ),
        examples=examples,
    )


_DECAYED: Mapping[str, Formula] = {
    "start": lambda w, learning_rate, weight_decay, decoupled_weight_decay: (
        w * (1 - learning_rate * weight_decay) if decoupled_weight_decay else w
    ),
    "g": lambda w, dw, weight_decay, decoupled_weight_decay: (
        dw if decoupled_weight_decay else dw + weight_decay * w
    ),
}
"""Weight and gradient behind a decay that is part of the gradient, or taken off the weight."""

_MOMENTS: Mapping[str, Formula] = {
    "m": lambda m, g, beta1: beta1 * m + (1 - beta1) * g,
    "v": lambda v, g, beta2: beta2 * v + (1 - beta2) * np.square(g),
}
"""Means of gradients and of their squares."""


def _adam(name: str, *, decoupled: bool) -> OptimizerPrimitive:
    """m = beta1·m + (1 - beta1)·g, v = beta2·v + (1 - beta2)·g², t = t + 1, with bias correction:
    w -= learning_rate · m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps). Adam adds weight_decay · w to
    the gradient g, AdamW (`decoupled`) takes learning_rate · weight_decay · w off the weight. With `amsgrad`
    the root is that of the largest v so far.

    Moments are kept in fp32 (in bf16 an increment of 1 - beta2 = 0.001 would be lost) unless `state_dtype`
    says otherwise. Source: Kingma and Ba 2015; Loshchilov and Hutter 2019; Reddi et al. 2018.
    """
    return optimizer(
        name,
        options=_AdamwOptions if decoupled else _AdamOptions,
        states={"m": State(), "v": State(), "t": State(number=True), "highest": State(when="amsgrad")},
        update={
            "t": lambda t: t + 1,
            "start": lambda w, learning_rate, weight_decay: (
                w * (1 - learning_rate * weight_decay) if decoupled else w
            ),
            "g": lambda w, dw, weight_decay: dw if decoupled else dw + weight_decay * w,
            **_MOMENTS,
            "highest": lambda v, highest=None: v if highest is None else np.maximum(highest, v),
            "root": lambda highest, t, beta2, eps: np.sqrt(highest) * (1 - beta2 ** t.item()) ** -0.5 + eps,
            "w": lambda start, m, root, t, learning_rate, beta1: (
                start - learning_rate / (1 - beta1 ** t.item()) * m / root
            ),
        },
        nest=lambda amsgrad: "adam_amsgrad" if amsgrad else "adam",
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example({"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 0.001}, ((5,),)),
            Example({"learning_rate": 0.1, "weight_decay": 0.1}, ((2, 3, 3, 2),)),
            Example({"learning_rate": 0.1, "amsgrad": True, "maximize": True}, ((5,),)),
            Example({"learning_rate": 0.1, "eps": 0.001, "state_dtype": "bf16"}, ((4, 3),)),
        ),
    )


def _rectification(step: int, beta2: float) -> float | None:
    """What the variance of the first few steps is rectified by, eq. 5 of Liu et al.; None: no variance."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * beta2**step / (1 - beta2**step)
    if length <= RECTIFIED_FROM:
        return None
    numerator = (length - 4) * (length - 2) * longest
    rect: float = (numerator / ((longest - 4) * (longest - 2) * length)) ** 0.5
    return rect


PRIMITIVES: tuple[OptimizerPrimitive, ...] = (
    _sgd(
        "sgd",
        _SgdOptions,
        (
            Example({"learning_rate": 0.1}, ((4, 3),)),
            Example({"learning_rate": 0.01}, ((5,),)),
            Example({"learning_rate": 0.1, "weight_decay": 0.05}, ((2, 3, 3, 2),)),
            Example({"learning_rate": 0.1, "momentum": 0.5, "weight_decay": 0.1}, ((4, 3),)),
            Example({"learning_rate": 0.05, "momentum": 0.9, "nesterov": True}, ((5,),)),
            Example({"learning_rate": 0.05, "momentum": 0.9, "dampening": 0.2, "maximize": True}, ((4, 3),)),
            Example({"learning_rate": 0.05, "momentum": 0.9, "state_dtype": "fp16"}, ((4, 3),)),
        ),
    ),
    _sgd(  # the name that models written before `sgd` had a momentum use
        "sgd_momentum",
        _MomentumOptions,
        (
            Example({"learning_rate": 0.1}, ((4, 3),)),
            Example({"learning_rate": 0.1, "nesterov": True, "weight_decay": 0.1}, ((2, 3, 3, 2),)),
        ),
    ),
    _adam("adam", decoupled=False),
    _adam("adamw", decoupled=True),
    optimizer(  # Kingma and Ba 2015, section 7.1
        "adamax",
        options=_AdamaxOptions,
        states={"m": State(), "u": State(), "t": State(number=True)},
        update={
            "t": lambda t: t + 1,
            "g": lambda w, dw, weight_decay: dw + weight_decay * w,
            "m": lambda m, g, beta1: beta1 * m + (1 - beta1) * g,
            "u": lambda u, g, beta2, eps: np.maximum(beta2 * u, np.abs(g) + eps),
            "w": lambda w, m, u, t, learning_rate, beta1: w - learning_rate / (1 - beta1 ** t.item()) * m / u,
        },
        nest="adamax",
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example({"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.9, "eps": 0.001}, ((5,),)),
            Example({"learning_rate": 0.1, "weight_decay": 0.1, "maximize": True}, ((2, 3, 3, 2),)),
        ),
    ),
    optimizer(  # Dozat 2016, with the schedule of the momentum
        "nadam",
        options=_NadamOptions,
        states={
            "m": State(),
            "v": State(),
            "t": State(number=True),
            "product": State(number=True, fractional=True, start=1.0),
        },
        update={
            "t": lambda t: t + 1,
            **_DECAYED,
            **_MOMENTS,
            "now": lambda t, beta1, momentum_decay: beta1 * (1 - 0.5 * 0.96 ** (t.item() * momentum_decay)),
            "next": lambda t, beta1, momentum_decay: (
                beta1 * (1 - 0.5 * 0.96 ** ((t.item() + 1) * momentum_decay))
            ),
            "product": lambda product, now: product * now,
            "ahead": lambda g, m, now, next, product: (
                (1 - now) / (1 - product) * g + next / (1 - product * next) * m
            ),
            "root": lambda v, t, beta2, eps: np.sqrt(v / (1 - beta2 ** t.item())) + eps,
            "w": lambda start, ahead, root, learning_rate: start - learning_rate * ahead / root,
        },
        nest="nadam",
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example(
                {"learning_rate": 0.1, "beta1": 0.8, "momentum_decay": 0.1, "weight_decay": 0.1}, ((5,),)
            ),
            Example(
                {"learning_rate": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}, ((2, 3, 3, 2),)
            ),
        ),
    ),
    optimizer(  # Liu et al. 2020
        "radam",
        options=_RadamOptions,
        states={"m": State(), "v": State(), "t": State(number=True)},
        update={
            "t": lambda t: t + 1,
            **_DECAYED,
            **_MOMENTS,
            "rect": lambda t, beta2: _rectification(t.item(), beta2),
            "scale": lambda v, t, rect, beta2, eps: (
                1 if rect is None else rect * (1 - beta2 ** t.item()) ** 0.5 / (np.sqrt(v) + eps)
            ),
            "w": lambda start, m, t, scale, learning_rate, beta1: (
                start - learning_rate / (1 - beta1 ** t.item()) * m * scale
            ),
        },
        nest="radam",
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example({"learning_rate": 0.1, "beta2": 0.9, "weight_decay": 0.1, "maximize": True}, ((5,),)),
            Example(
                {"learning_rate": 0.1, "weight_decay": 0.1, "decoupled_weight_decay": True}, ((2, 3, 3, 2),)
            ),
        ),
    ),
    optimizer(  # Chen et al. 2023, algorithm 2; 0 stays where it is
        "lion",
        options=_LionOptions,
        states={"m": State()},
        update={
            "ahead": lambda m, dw, beta1: beta1 * m + (1 - beta1) * dw,
            "w": lambda w, ahead, learning_rate, weight_decay: (
                w * (1 - learning_rate * weight_decay) - learning_rate * np.sign(ahead)
            ),
            "m": lambda m, dw, beta2: beta2 * m + (1 - beta2) * dw,
        },
        nest="lion",
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example({"learning_rate": 0.1, "beta1": 0.5, "beta2": 0.8, "maximize": True}, ((5,),)),
            Example({"learning_rate": 0.1, "weight_decay": 0.1, "state_dtype": "bf16"}, ((2, 3, 3, 2),)),
        ),
    ),
    optimizer(  # Tieleman and Hinton 2012; centered: Graves 2013; eps outside the root, as in PyTorch
        "rmsprop",
        options=_RmspropOptions,
        states={"v": State(), "mean": State(when="centered"), "velocity": State(when="momentum")},
        update={
            "g": lambda w, dw, weight_decay: dw + weight_decay * w,
            "v": lambda v, g, alpha: alpha * v + (1 - alpha) * np.square(g),
            "mean": lambda g, alpha, mean=None: None if mean is None else alpha * mean + (1 - alpha) * g,
            "variance": lambda v, mean: v if mean is None else v - np.square(mean),
            "step": lambda g, variance, eps: g / (np.sqrt(variance) + eps),
            "velocity": lambda step, momentum, velocity=None: (
                step if velocity is None else momentum * velocity + step
            ),
            "w": lambda w, velocity, learning_rate: w - learning_rate * velocity,
        },
        nest=lambda centered, momentum: (
            f"rmsprop{'_centered' if centered else ''}{'_momentum' if momentum else ''}"
        ),
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example({"learning_rate": 0.1, "alpha": 0.8, "eps": 0.001, "momentum": 0.5}, ((5,),)),
            Example({"learning_rate": 0.01, "centered": True, "weight_decay": 0.1}, ((2, 3, 3, 2),)),
            Example({"learning_rate": 0.01, "centered": True, "momentum": 0.9, "maximize": True}, ((4, 3),)),
        ),
    ),
    optimizer(  # Duchi, Hazan and Singer 2011
        "adagrad",
        options=_AdagradOptions,
        states={"total": State(start="initial_accumulator_value"), "t": State(number=True)},
        update={
            "t": lambda t: t + 1,
            "g": lambda w, dw, weight_decay: dw + weight_decay * w,
            "total": lambda total, g: total + np.square(g),
            "w": lambda w, g, total, t, learning_rate, lr_decay, eps: (
                w - learning_rate / (1 + (t.item() - 1) * lr_decay) * g / (np.sqrt(total) + eps)
            ),
        },
        nest="adagrad",
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example({"learning_rate": 0.1, "lr_decay": 0.5, "initial_accumulator_value": 0.1}, ((5,),)),
            Example({"learning_rate": 0.1, "weight_decay": 0.1, "maximize": True}, ((2, 3, 3, 2),)),
        ),
    ),
    optimizer(  # Zeiler 2012; the step times a learning rate, as in PyTorch
        "adadelta",
        options=_AdadeltaOptions,
        states={"v": State(), "u": State()},
        update={
            "g": lambda w, dw, weight_decay: dw + weight_decay * w,
            "v": lambda v, g, rho: rho * v + (1 - rho) * np.square(g),
            "step": lambda v, u, g, eps: np.sqrt(u + eps) / np.sqrt(v + eps) * g,
            "u": lambda u, step, rho: rho * u + (1 - rho) * np.square(step),
            "w": lambda w, step, learning_rate: w - learning_rate * step,
        },
        nest="adadelta",
        examples=(
            Example({"learning_rate": 1.0}, ((4, 3),)),
            Example({"learning_rate": 0.5, "rho": 0.5, "eps": 0.001}, ((5,),)),
            Example({"learning_rate": 1.0, "weight_decay": 0.1, "maximize": True}, ((2, 3, 3, 2),)),
        ),
    ),
    optimizer(  # Riedmiller and Braun 1993, without going back where the sign has changed
        "rprop",
        options=_RpropOptions,
        states={"before": State(), "size": State(start="learning_rate")},
        update={
            "agreed": lambda dw, before: np.sign(dw * before),
            "size": lambda size, agreed, eta_minus, eta_plus, size_min, size_max: np.clip(
                size * np.where(agreed > 0, eta_plus, np.where(agreed < 0, eta_minus, 1)).astype(size.dtype),
                size_min,
                size_max,
            ),
            "before": lambda dw, agreed: np.where(agreed < 0, 0, dw).astype(dw.dtype),
            "w": lambda w, before, size: w - np.sign(before) * size,
        },
        nest="rprop",
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example({"learning_rate": 0.1, "eta_minus": 0.3, "eta_plus": 2.0, "size_max": 0.15}, ((5,),)),
        ),
    ),
    optimizer(  # Polyak and Juditsky 1992; the rate decays as PyTorch has it
        "asgd",
        options=_AsgdOptions,
        states={
            "ax": State(),
            "eta": State(number=True, fractional=True, start="learning_rate"),
            "t": State(number=True),
        },
        update={
            "t": lambda t: t + 1,
            "g": lambda w, dw, weight_decay: dw + weight_decay * w,
            "w": lambda w, g, eta, lambd: w * (1 - lambd * eta[0]) - eta[0] * g,
            "kept": lambda t, t0: 1 - 1 / max(1.0, t.item() - 1 - t0),
            # w itself, without a rounding, as long as 0 is kept
            "ax": lambda ax, w, kept: w + kept * (ax - w),
            "eta": lambda eta, t, learning_rate, lambd, alpha: np.full_like(
                eta, learning_rate / (1 + lambd * learning_rate * t.item()) ** alpha
            ),
        },
        nest="asgd",
        examples=(
            Example({"learning_rate": 0.01}, ((4, 3),)),
            Example({"learning_rate": 0.1, "lambd": 0.1, "alpha": 0.5, "t0": 0.0}, ((5,),)),
            Example({"learning_rate": 0.1, "weight_decay": 0.1, "maximize": True}, ((2, 3, 3, 2),)),
        ),
    ),
)
"""Every optimizer; `trainlib.registry` lists them from here."""

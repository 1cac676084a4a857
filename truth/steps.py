# SPDX-License-Identifier: Apache-2.0
"""Every loss and every optimizer by name, in PyTorch; defaults are those of docs/primitives.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, Signature, signature, unwrap
from typing import Any

import torch
from torch.nn import functional as fn

from truth.source import DisagreementError

LossOf = Callable[..., Any]

LOSSES: dict[str, LossOf] = {}
"""Every loss by name: of output and label, with the reduction and the weight that all have."""


UNLABELLED = ("output",)
"""Losses that have no label."""

CLASS_NUMBERS = ("nll", "multi_margin")
"""Losses whose labels are always numbers of classes."""


def _loss(made: LossOf) -> LossOf:
    """An entry: `made` with the weight, under its own name."""

    @wraps(made)
    def weighted(y: Any, label: Any, *, weight: float = 1.0, **options: Any) -> Any:
        return weight * made(y, label, **options)

    signed = signature(made)
    weight = Parameter("weight", Parameter.KEYWORD_ONLY, default=1.0)
    weighted.__signature__ = signed.replace(parameters=[*signed.parameters.values(), weight])  # type: ignore[attr-defined]
    LOSSES[made.__name__] = weighted
    return weighted


def _reduced(terms: Any, y: Any, reduction: str) -> Any:
    """A reduction that a function of PyTorch does not have."""
    return terms.mean() if reduction == "mean" else terms.sum() / (len(y) if reduction == "batchmean" else 1)


def _in_torch(function: LossOf, y: Any, label: Any, reduction: str, **options: Any) -> Any:
    """A function of torch.nn.functional; `batchmean`, which most lack, from its sum."""
    if reduction != "batchmean":
        return function(y, label, reduction=reduction, **options)
    return function(y, label, reduction="sum", **options) / len(y)


def _numbers(given: float | list[float] | None, y: Any) -> Any:
    """Weights as a tensor; a list belongs to the axis behind the batch."""
    if given is None or given == 1.0:
        return None
    return torch.tensor(given, dtype=y.dtype).reshape(-1, *(1,) * (y.ndim - 2))


def _of_classes(class_weights: list[float] | None, ignore_index: int | None, y: Any) -> dict[str, Any]:
    weights = None if class_weights is None else torch.tensor(class_weights, dtype=y.dtype)
    return {"weight": weights, "ignore_index": -100 if ignore_index is None else ignore_index}


@_loss
def cross_entropy(
    y: Any,
    label: Any,
    *,
    labels: str = "soft",
    label_smoothing: float = 0.0,
    class_weights: list[float] | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Any:
    """Of logits; the softmax is its own. Labels are distributions, or numbers of classes."""
    if label.is_floating_point() != (labels == "soft"):
        raise DisagreementError("label", f"holds {label.dtype}, the model says labels: {labels}")
    of_classes = _of_classes(class_weights, ignore_index, y)
    label = label if labels == "soft" else label.long()
    return _in_torch(fn.cross_entropy, y, label, reduction, label_smoothing=label_smoothing, **of_classes)


@_loss
def nll(
    y: Any,
    label: Any,
    *,
    class_weights: list[float] | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Any:
    """Of log-probabilities."""
    return _in_torch(fn.nll_loss, y, label.long(), reduction, **_of_classes(class_weights, ignore_index, y))


@_loss
def mse(y: Any, label: Any, *, reduction: str = "mean") -> Any:
    """Squares."""
    return _in_torch(fn.mse_loss, y, label, reduction)


@_loss
def l1(y: Any, label: Any, *, reduction: str = "mean") -> Any:
    """Sizes."""
    return _in_torch(fn.l1_loss, y, label, reduction)


@_loss
def berhu(y: Any, label: Any, *, alpha: float = 0.2, reduction: str = "mean") -> Any:
    """Reversed Huber: linear up to a share of the largest error, taken as constant, then quadratic."""
    size = torch.abs(y - label)
    limit = alpha * size.detach().max()
    return _reduced(torch.where(size <= limit, size, (size.square() + limit**2) / (2 * limit)), y, reduction)


@_loss
def huber(y: Any, label: Any, *, delta: float = 1.0, reduction: str = "mean") -> Any:
    """Huber 1964."""
    return _in_torch(fn.huber_loss, y, label, reduction, delta=delta)


@_loss
def smooth_l1(y: Any, label: Any, *, beta: float = 1.0, reduction: str = "mean") -> Any:
    """Girshick 2015."""
    return _in_torch(fn.smooth_l1_loss, y, label, reduction, beta=beta)


@_loss
def bce(y: Any, label: Any, *, element_weights: float | list[float] = 1.0, reduction: str = "mean") -> Any:
    """Of probabilities; of anything else NaN, where PyTorch raises."""
    weights = _numbers(element_weights, y)
    if not ((y >= 0) & (y <= 1)).all():
        return (y * math.nan).sum()
    return _in_torch(
        fn.binary_cross_entropy, y, label, reduction, weight=None if weights is None else weights.expand_as(y)
    )


@_loss
def bce_with_logits(
    y: Any,
    label: Any,
    *,
    pos_weight: float | list[float] = 1.0,
    element_weights: float | list[float] = 1.0,
    reduction: str = "mean",
) -> Any:
    """Of logits; the sigmoid is its own."""
    weights = {"pos_weight": _numbers(pos_weight, y), "weight": _numbers(element_weights, y)}
    return _in_torch(fn.binary_cross_entropy_with_logits, y, label, reduction, **weights)


@_loss
def kl_div(y: Any, label: Any, *, log_target: bool = False, reduction: str = "mean") -> Any:
    """Of log-probabilities, against probabilities or their logarithms."""
    return _reduced(fn.kl_div(y, label, reduction="none", log_target=log_target), y, reduction)


@_loss
def poisson_nll(
    y: Any,
    label: Any,
    *,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Any:
    """Of counts, given their rate or its logarithm."""
    return _in_torch(fn.poisson_nll_loss, y, label, reduction, log_input=log_input, full=full, eps=eps)


@_loss
def hinge_embedding(y: Any, label: Any, *, margin: float = 1.0, reduction: str = "mean") -> Any:
    """Of distances; labels are -1 and 1."""
    return _in_torch(fn.hinge_embedding_loss, y, label, reduction, margin=margin)


@_loss
def soft_margin(y: Any, label: Any, *, reduction: str = "mean") -> Any:
    """Labels are -1 and 1; by softplus, for torch.nn.functional.soft_margin_loss overflows."""
    return _reduced(-fn.logsigmoid(label * y), y, reduction)


@_loss
def multi_margin(
    y: Any,
    label: Any,
    *,
    p: int = 1,
    margin: float = 1.0,
    class_weights: list[float] | None = None,
    reduction: str = "mean",
) -> Any:
    """Labels are numbers of classes."""
    weights = None if class_weights is None else torch.tensor(class_weights, dtype=y.dtype)
    return _in_torch(fn.multi_margin_loss, y, label.long(), reduction, p=p, margin=margin, weight=weights)


@_loss
def cosine(y: Any, label: Any, *, reduction: str = "mean") -> Any:
    """Of the angle between output and label, sample by sample."""

    def together(y: Any, label: Any, reduction: str) -> Any:
        return fn.cosine_embedding_loss(y, label, torch.ones(len(y), dtype=y.dtype), reduction=reduction)

    return _in_torch(together, y, label, reduction)


@_loss
def output(y: Any, label: Any, *, reduction: str = "mean") -> Any:
    """The output itself; there is no label."""
    return _reduced(y, y, reduction)


LOSS_KEYS = ("of", "target", "label")
"""Keys of a loss that are no options of it."""


_PAIRS = {
    "betas": ("beta1", "beta2"),
    "etas": ("eta_minus", "eta_plus"),
    "step_sizes": ("size_min", "size_max"),
}
"""What PyTorch has as one option, and a model file as two."""


def _of(make: Callable[..., Any], **defaults: Any) -> Callable[..., Any]:
    """An optimizer of `torch.optim` with the options that a model file has, and their defaults there."""

    def optimizer_of(weights: Any, *, learning_rate: float, **options: Any) -> Any:
        said = {**defaults, **options}
        pairs = {pair: names for pair, names in _PAIRS.items() if names[0] in said}
        said |= {pair: tuple(said.pop(name) for name in names) for pair, names in pairs.items()}
        return make(weights, lr=learning_rate, **said)

    taken = [Parameter(key, Parameter.KEYWORD_ONLY, default=item) for key, item in defaults.items()]
    rate = Parameter("learning_rate", Parameter.KEYWORD_ONLY)
    optimizer_of.__signature__ = Signature([rate, *taken])  # type: ignore[attr-defined]
    return optimizer_of


class _Dampened(torch.optim.SGD):  # type: ignore[misc]
    """SGD that counts its steps: at the first the buffer is the gradient, whatever the buffer was."""

    def step(self, closure: Any = None) -> Any:
        """One update."""
        for group in self.param_groups:
            for parameter in group["params"]:
                states = self.state[parameter]
                states["step"] = states.get("step", torch.tensor(0.0)) + 1
                if states["step"] == 1:
                    states["momentum_buffer"] = None
        with torch.no_grad():
            return unwrap(torch.optim.SGD.step)(self, closure)


def _sgd(weights: Any, dampening: float, **options: Any) -> Any:
    make = _Dampened if dampening else torch.optim.SGD
    return make(weights, dampening=dampening, **options)


class Lion(torch.optim.Optimizer):  # type: ignore[misc]
    """Chen et al. 2023, algorithm 2, which PyTorch does not have."""

    def __init__(
        self,
        weights: Any,
        maximize: bool = False,
        *,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.99,
        weight_decay: float = 0.0,
    ) -> None:
        said = {"betas": (beta1, beta2), "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(weights, {"lr": learning_rate, **said})

    def step(self, closure: Any = None) -> None:
        """One update."""
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                weight = parameter.data
                gradient = parameter.grad * (-1 if group["maximize"] else 1)
                mean = self.state[parameter].setdefault("exp_avg", torch.zeros_like(weight))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(group["lr"] * torch.lerp(gradient, mean, first).sign())
                mean.lerp_(gradient, 1 - second)


_SGD_OPTIONS = {"nesterov": False, "weight_decay": 0.0, "dampening": 0.0}
_ADAM_OPTIONS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": _of(_sgd, momentum=0.0, **_SGD_OPTIONS),
    "sgd_momentum": _of(_sgd, momentum=0.9, **_SGD_OPTIONS),
    "adam": _of(torch.optim.Adam, **_ADAM_OPTIONS, amsgrad=False),
    "adamw": _of(torch.optim.AdamW, **_ADAM_OPTIONS, amsgrad=False),
    "adamax": _of(torch.optim.Adamax, **_ADAM_OPTIONS),
    "nadam": _of(torch.optim.NAdam, **_ADAM_OPTIONS, momentum_decay=4e-3, decoupled_weight_decay=False),
    "radam": _of(torch.optim.RAdam, **_ADAM_OPTIONS, decoupled_weight_decay=False),
    "lion": Lion,
    "rmsprop": _of(torch.optim.RMSprop, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False),
    "adagrad": _of(
        torch.optim.Adagrad, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10
    ),
    "adadelta": _of(torch.optim.Adadelta, rho=0.9, eps=1e-6, weight_decay=0.0),
    "rprop": _of(torch.optim.Rprop, eta_minus=0.5, eta_plus=1.2, size_min=1e-6, size_max=50.0),
    "asgd": _of(torch.optim.ASGD, lambd=1e-4, alpha=0.75, t0=1e6, weight_decay=0.0),
}
"""Every optimizer by name."""

_MEANS = {"m": "exp_avg", "v": "exp_avg_sq", "t": "step"}
_SGD = {"velocity": "momentum_buffer", "t": "step"}

STATES: dict[str, Mapping[str, str]] = {
    "sgd": _SGD,
    "sgd_momentum": _SGD,
    "adam": {**_MEANS, "highest": "max_exp_avg_sq"},
    "adamw": {**_MEANS, "highest": "max_exp_avg_sq"},
    "adamax": {"m": "exp_avg", "u": "exp_inf", "t": "step"},
    "nadam": {**_MEANS, "product": "mu_product"},
    "radam": _MEANS,
    "lion": {"m": "exp_avg"},
    "rmsprop": {"v": "square_avg", "mean": "grad_avg", "velocity": "momentum_buffer"},
    "adagrad": {"total": "sum", "t": "step"},
    "adadelta": {"v": "square_avg", "u": "acc_delta"},
    "rprop": {"before": "prev", "size": "step_size"},
    "asgd": {"ax": "ax", "eta": "eta", "t": "step"},
}
"""The states of every optimizer, by the end of their tensors' names: what `torch.optim` calls them."""

STARTS: Mapping[str, Mapping[str, str | float]] = {
    "nadam": {"product": 1.0},
    "adagrad": {"total": "initial_accumulator_value"},
    "rprop": {"size": "learning_rate"},
    "asgd": {"eta": "learning_rate"},
}
"""States that do not begin at 0: at a number, or at an option."""

GRADIENT_KEYS = (
    "name",
    "accumulate",
    "clip_value",
    "clip_norm",
    "separate",
    "state_dtype",
    "groups",
    "schedule",
    "average",
    "immediate",
)
"""Keys of the section `optimizer` that are no options of the optimizer."""

# PyTorch imports its compiler, 1.5 s, when the first optimizer is made and makes its first step, only to tell
# it to leave them alone. Here it is not asked: this is what it would be told.
_ADD = torch.optim.Optimizer.add_param_group
_PLAIN_ADD = unwrap(_ADD)
if _ADD is not _PLAIN_ADD:
    setattr(_PLAIN_ADD, "__dynamo_disable", _PLAIN_ADD)


def updated(optimizer: Any) -> None:
    """One step of an optimizer."""
    with torch.no_grad():
        unwrap(type(optimizer).step)(optimizer)

# SPDX-License-Identifier: Apache-2.0
"""Every loss and every optimizer by name, in PyTorch; defaults are those of docs/primitives.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as fn

from truth.given import DisagreementError


def cross_entropy(y: Any, label: Any, *, labels: str = "soft") -> Any:
    """Of logits; the softmax is its own. Labels are distributions, or numbers of classes."""
    if label.is_floating_point() != (labels == "soft"):
        raise DisagreementError("label", f"holds {label.dtype}, the model says labels: {labels}")
    return fn.cross_entropy(y, label)


def mse(y: Any, label: Any) -> Any:
    """Mean of the squares."""
    return fn.mse_loss(y, label)


def l1(y: Any, label: Any) -> Any:
    """Mean of the sizes."""
    return fn.l1_loss(y, label)


def berhu(y: Any, label: Any, *, alpha: float = 0.2) -> Any:
    """Reversed Huber: linear up to a share of the largest error, taken as constant, then quadratic."""
    size = torch.abs(y - label)
    limit = alpha * size.detach().max()
    return torch.where(size <= limit, size, (size.square() + limit**2) / (2 * limit)).mean()


LOSSES: Mapping[str, Callable[..., Any]] = {
    "cross_entropy": cross_entropy,
    "mse": mse,
    "l1": l1,
    "berhu": berhu,
}
"""Every loss by name: mean over the mini-batch."""


_PAIRS = {
    "betas": ("beta1", "beta2"),
    "etas": ("eta_minus", "eta_plus"),
    "step_sizes": ("size_min", "size_max"),
}
"""What PyTorch has as one option, and a model file as two."""


def _of(make: Callable[..., Any], **defaults: Any) -> Callable[..., Any]:
    """An optimizer of `torch.optim` with the options that a model file has, and their defaults there."""

    def made(weights: Any, *, learning_rate: float, **options: Any) -> Any:
        said = {**defaults, **options}
        pairs = {pair: names for pair, names in _PAIRS.items() if names[0] in said}
        said |= {pair: tuple(said.pop(name) for name in names) for pair, names in pairs.items()}
        return make(weights, lr=learning_rate, **said)

    own = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=item) for key, item in defaults.items()
    ]
    rate = inspect.Parameter("learning_rate", inspect.Parameter.KEYWORD_ONLY)
    made.__signature__ = inspect.Signature([rate, *own])  # type: ignore[attr-defined]
    return made


class _Dampened(torch.optim.SGD):  # type: ignore[misc]
    """SGD that counts its steps: at the first the buffer is the gradient, whatever the buffer was."""

    def step(self, closure: Any = None) -> Any:
        """One update."""
        for group in self.param_groups:
            for parameter in group["params"]:
                own = self.state[parameter]
                own["step"] = own.get("step", torch.tensor(0.0)) + 1
                if own["step"] == 1:
                    own["momentum_buffer"] = None
        with torch.no_grad():
            return inspect.unwrap(torch.optim.SGD.step)(self, closure)


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
)
"""Keys of the section `optimizer` that are no options of the optimizer."""

# PyTorch imports its compiler, 1.5 s, when the first optimizer is made and makes its first step, only to tell
# it to leave them alone. Here it is not asked: this is what it would be told.
_ADD = torch.optim.Optimizer.add_param_group
_PLAIN_ADD = inspect.unwrap(_ADD)
if _ADD is not _PLAIN_ADD:
    setattr(_PLAIN_ADD, "__dynamo_disable", _PLAIN_ADD)


def updated(optimizer: Any) -> None:
    """One step of an optimizer."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)

# SPDX-License-Identifier: Apache-2.0
"""Every loss and every optimizer by name, in PyTorch; defaults are those of docs/primitives.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
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


LOSS_KEYS = ("of", "target", "label")
"""Keys of a loss that are no options of it."""

UNLABELLED = ("output",)
"""Losses of the output alone."""


def sgd(
    weights: Any,
    *,
    learning_rate: float,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
) -> Any:
    """Stochastic gradient descent."""
    return torch.optim.SGD(
        weights, lr=learning_rate, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
    )


def _adam(make: Callable[..., Any]) -> Callable[..., Any]:
    """Adam, of which PyTorch has two kinds: weight decay is part of the gradient, or taken off the weight."""

    def made(
        weights: Any,
        *,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> Any:
        return make(weights, lr=learning_rate, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)

    return made


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": sgd,
    "sgd_momentum": partial(sgd, momentum=0.9),
    "adam": _adam(torch.optim.Adam),
    "adamw": _adam(torch.optim.AdamW),
}
"""Every optimizer by name."""

MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq", "t": "step"}

STATES: dict[str, Mapping[str, str]] = {
    "sgd": {"velocity": "momentum_buffer"},
    "sgd_momentum": {"velocity": "momentum_buffer"},
    "adam": MOMENTS,
    "adamw": MOMENTS,
}
"""The states of every optimizer, by the end of their tensors' names: what `torch.optim` calls them."""

GRADIENT_KEYS = ("name", "accumulate", "clip_value", "clip_norm", "separate")
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

# SPDX-License-Identifier: Apache-2.0
"""Losses of PyTorch as ours, with their options, and what is trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from configs.errors import UnsupportedLayerError
from configs.model_file import LossSpec
from importers.training_text import parse_loss

NEGATIVE_LOG = "nll"
"""Of log-probabilities: their cross-entropy."""

_LOSSES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "CrossEntropyLoss": ("cross_entropy", {"labels": "hard"}),
    "cross_entropy": ("cross_entropy", {"labels": "hard"}),
    "NLLLoss": (NEGATIVE_LOG, {}),
    "nll_loss": (NEGATIVE_LOG, {}),
    "MSELoss": ("mse", {}),
    "mse_loss": ("mse", {}),
    "L1Loss": ("l1", {}),
    "l1_loss": ("l1", {}),
}
"""Class of torch.nn or function of torch.nn.functional -> our loss."""

_PLAIN = {"reduction": "mean", "label_smoothing": 0.0, "weight": None, "ignore_index": -100}
"""Attributes of loss modules, and the only value of each that we have."""


def loss_of(torch: Any, given: Any, rank: int) -> LossSpec:
    """Our loss for text, a loss of torch.nn (module or class) or a function of torch.nn.functional.

    None is cross_entropy of class numbers for an output of `rank` 2, else mse. Raises UnsupportedLayerError.
    """
    if given is None and rank == 2:
        return LossSpec("cross_entropy", {"labels": "hard"}, "loss")
    if given is None:
        return LossSpec("mse", {}, "loss")
    if isinstance(given, LossSpec):
        return given
    if isinstance(given, str):
        return parse_loss(given, "loss")
    instance = isinstance(given, torch.nn.Module)
    name = type(given).__name__ if instance else getattr(given, "__name__", str(given))
    if name not in _LOSSES:
        raise UnsupportedLayerError(
            f"there is no loss like {name}",
            where="loss",
            cure="CrossEntropyLoss, NLLLoss, MSELoss, L1Loss, or the name of one of ours",
        )
    for option, only in _PLAIN.items():
        found = getattr(given, option, only) if instance else only
        if found is not only and found != only:
            raise UnsupportedLayerError(
                f"{name} with {option} {found}", where="loss", cure=f"{option}={only}"
            )
    kind, options = _LOSSES[name]
    return LossSpec(kind, dict(options), "loss")


def trained_names(torch: Any, module: Any, optimizer: Any) -> frozenset[str]:
    """Names of the parameters that are trained: those that require a gradient and that the optimizer has."""
    named = {
        name: parameter
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    }
    if isinstance(optimizer, torch.optim.Optimizer):
        has = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        named = {name: parameter for name, parameter in named.items() if id(parameter) in has}
    return frozenset(named)

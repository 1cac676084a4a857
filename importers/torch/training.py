# SPDX-License-Identifier: Apache-2.0
"""Optimizers of PyTorch as ours, with their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from configs.errors import UnsupportedLayerError
from configs.model_file import OptimizerSpec
from importers.training_text import DEFAULT_OPTIMIZER, parse_optimizer

_REFUSED: Mapping[str, Mapping[str, Any]] = {
    "SGD": {"dampening": 0, "maximize": False},
    "Adam": {"amsgrad": False, "maximize": False, "decoupled_weight_decay": False},
    "AdamW": {"amsgrad": False, "maximize": False},
}
"""Options of torch.optim, and the only value of each that we have."""


def optimizer_of(torch: Any, given: Any) -> OptimizerSpec:
    """Our optimizer for text, or an SGD, Adam or AdamW of torch.optim with its options.

    None is SGD with a learning rate of 0.01. Raises UnsupportedLayerError for others, and for groups of
    parameters with options of their own.
    """
    if given is None:
        given = DEFAULT_OPTIMIZER
    if isinstance(given, OptimizerSpec):
        return given
    if isinstance(given, str):
        return parse_optimizer(given, "optimizer")
    name = type(given).__name__
    if not isinstance(given, torch.optim.Optimizer) or name not in _REFUSED:
        raise UnsupportedLayerError(
            f"there is no optimizer like {name}", where="optimizer", cure="SGD, Adam or AdamW of torch.optim"
        )
    groups = [{key: value for key, value in group.items() if key != "params"} for group in given.param_groups]
    for group in groups[1:]:
        different = [key for key in group if group[key] != groups[0].get(key)]
        if different:
            raise UnsupportedLayerError(
                f"groups of parameters with different {', '.join(different)}",
                where="optimizer",
                cure="the same options for all, or requires_grad=False for what should stay",
            )
    options = groups[0]
    for option, only in _REFUSED[name].items():
        if options.get(option, only) != only:
            raise UnsupportedLayerError(
                f"{name} with {option}={options[option]}", where="optimizer", cure=f"{option}={only}"
            )
    found: dict[str, Any] = {"learning_rate": float(options["lr"])}
    if name == "SGD":
        found |= {"momentum": float(options["momentum"]), "nesterov": bool(options["nesterov"])}
    else:
        found |= dict(zip(("beta1", "beta2"), map(float, options["betas"]), strict=True))
        found["eps"] = float(options["eps"])
    found["weight_decay"] = float(options["weight_decay"])
    return OptimizerSpec(name.lower(), found, "optimizer")


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

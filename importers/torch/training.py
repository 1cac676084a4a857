# SPDX-License-Identifier: Apache-2.0
"""What is trained of a module of PyTorch."""

from __future__ import annotations

from typing import Any


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

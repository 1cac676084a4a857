# SPDX-License-Identifier: Apache-2.0
"""The options an optimizer has for one weight in one iteration: section, group, schedules of PyTorch."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import torch
from torch.optim import lr_scheduler as of_torch

from truth.steps import GRADIENT_KEYS

MOMENTA = ("momentum", "beta1")
"""What the optimizers of a model file call a momentum."""


def options_of(said: Mapping[str, Any], weight: str, losses: Sequence[float]) -> dict[str, Any]:
    """Options of the weight in the iteration that comes after these losses, by our names."""
    section = group_of(said, weight)
    schedule = section.get("schedule")
    options = {key: value for key, value in section.items() if key not in GRADIENT_KEYS}
    if schedule is None:
        return options
    seen = tuple(losses) if "plateau" in json.dumps(schedule) else None
    text = json.dumps(schedule, sort_keys=True)
    rate, momentum = _values(text, float(options["learning_rate"]), len(losses), seen)
    options["learning_rate"] = rate
    if momentum is not None:
        name = said["name"]
        momentum_by_default = name == "sgd_momentum" or options.get("momentum")
        options[MOMENTA[0] if momentum_by_default else MOMENTA[1]] = momentum
    return options


def group_of(said: Mapping[str, Any], weight: str) -> dict[str, Any]:
    """The section as the group of the weight has it."""
    merged = dict(said)
    for group in said.get("groups") or ():
        if _has(group, weight):
            merged |= {key: value for key, value in group.items() if key not in ("layers", "parameters")}
    return merged


def _has(group: Mapping[str, Any], weight: str) -> bool:
    layers, patterns = (
        [said] if isinstance(said := group.get(key) or [], str) else said for key in ("layers", "parameters")
    )
    return any(weight.startswith(f"{layer}.") for layer in layers) or any(
        fnmatchcase(weight, pattern) for pattern in patterns
    )


@lru_cache(maxsize=64)
def _values(
    text: str, base: float, number: int, losses: tuple[float, ...] | None
) -> tuple[float, float | None]:
    """Learning rate and momentum of iteration `number` (from 0), by the schedule that `text` is."""
    said = json.loads(text)
    name = said.pop("name")
    if name == "listed":
        momenta = said.get("momenta")
        return said["rates"][number], momenta[number] if momenta else None
    if name == "warmup":
        return _warmed(said, base, number, losses)
    if name == "constant":
        said = {"factor": 1 / 3, **said}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], base, momentum=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps that no optimizer takes
        schedule = _MADE[name](optimizer, **said)
        for step in range(number):
            schedule.step(losses[step]) if name == "plateau" and losses is not None else schedule.step()
    group = optimizer.param_groups[0]
    return float(group["lr"]), float(group["momentum"]) if said.get("momenta") else None


def _warmed(
    said: Mapping[str, Any], base: float, number: int, losses: tuple[float, ...] | None
) -> tuple[float, float | None]:
    """A line, then the other schedule from its beginning."""
    steps, start = said["steps"], said.get("start", 0.0)
    then = json.dumps(said.get("then") or {"name": "constant", "factor": 1.0}, sort_keys=True)
    before = max(number - steps, 0)
    rate, momentum = _values(then, base, before, losses[steps:] if losses is not None else None)
    share = start + (1 - start) * number / steps if number < steps else 1.0
    return rate * share, momentum


def _named(make: Callable[..., Any], **names: str) -> Callable[..., Any]:
    """A schedule of PyTorch whose options have other names here."""
    return lambda optimizer, **said: make(
        optimizer, **{names.get(key, key): value for key, value in said.items()}
    )


def _momenta(said: dict[str, Any]) -> dict[str, Any]:
    least, greatest = said.pop("momenta", None) or (None, None)
    cycle = {"cycle_momentum": least is not None}
    return cycle if least is None else {**cycle, "base_momentum": least, "max_momentum": greatest}


def _cyclic(optimizer: Any, *, lowest: float, highest: float, up: int = 2000, **said: Any) -> Any:
    more = _momenta(said)
    down = said.pop("down", None)
    return of_torch.CyclicLR(optimizer, lowest, highest, up, down, **said, **more)


def _one_cycle(optimizer: Any, *, highest: float, steps: int, form: str = "cosine", **said: Any) -> Any:
    more = _momenta(said)
    names = {"up_share": "pct_start", "start_divisor": "div_factor", "end_divisor": "final_div_factor"}
    more |= {names[key]: value for key, value in said.items()}
    form = {"cosine": "cos"}.get(form, form)
    return of_torch.OneCycleLR(optimizer, highest, total_steps=steps, anneal_strategy=form, **more)


def _linear(optimizer: Any, *, start: float = 1 / 3, end: float = 1.0, steps: int = 5) -> Any:
    return of_torch.LambdaLR(optimizer, lambda step: start + (end - start) * min(step, steps) / steps)


_MADE: Mapping[str, Callable[..., Any]] = {
    "constant": _named(of_torch.ConstantLR, steps="total_iters"),
    "step": _named(of_torch.StepLR, every="step_size", factor="gamma"),
    "multistep": _named(of_torch.MultiStepLR, factor="gamma"),
    "exponential": _named(of_torch.ExponentialLR, factor="gamma"),
    "linear": _linear,
    "polynomial": _named(of_torch.PolynomialLR, steps="total_iters"),
    "cosine": _named(of_torch.CosineAnnealingLR, steps="T_max", lowest="eta_min"),
    "cosine_restarts": _named(
        of_torch.CosineAnnealingWarmRestarts, steps="T_0", growth="T_mult", lowest="eta_min"
    ),
    "cyclic": _cyclic,
    "one_cycle": _one_cycle,
    "plateau": _named(of_torch.ReduceLROnPlateau, lowest="min_lr"),
}

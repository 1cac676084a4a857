# SPDX-License-Identifier: Apache-2.0
"""What a command line says of training: ``cross_entropy labels=hard``, ``sgd lr=0.01``, ``step every=9``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from configs.errors import InputError
from configs.model_file import LossSpec, OptimizerSpec

DEFAULT_OPTIMIZER = "sgd lr=0.01"
"""What trains a model that says nothing."""

_SHORT = {"lr": "learning_rate"}


def parse_loss(text: str, where: str = "--loss") -> LossSpec:
    """A name and options, checked later with the model. Raises InputError for text that cannot be read."""
    name, options = _parsed(text, where, "cross_entropy labels=hard")
    return LossSpec(name, options, where)


def parse_optimizer(text: str, where: str = "--optimizer") -> OptimizerSpec:
    """A name and options, ``lr`` for learning_rate. Raises as `parse_loss`."""
    name, options = _parsed(text, where, DEFAULT_OPTIMIZER)
    return OptimizerSpec(name, options, where)


def parse_schedule(given: str | Mapping[str, Any], where: str = "--lr-schedule") -> dict[str, Any]:
    """A mapping as it is, or text: a name and options, ``milestones=10,20``; after a warmup ``then`` another.

    Raises as `parse_loss`; what the schedule may say is checked with the model.
    """
    if not isinstance(given, str):
        return dict(given)
    first, then, other = given.partition(" then ")
    name, options = _parsed(first, where, "cosine steps=100", lists=True)
    more = {"then": parse_schedule(other, where)} if then else {}
    return {"name": name, **options, **more}


def option_text(name: str, options: Mapping[str, Any]) -> str:
    """The text that `parse_loss` or `parse_optimizer` reads as this name and these options."""
    return " ".join((name, *(f"{key}={value}" for key, value in options.items() if value is not None)))


def _parsed(text: str, where: str, example: str, *, lists: bool = False) -> tuple[str, dict[str, Any]]:
    words = text.split() if lists else re.findall(r"[^\s,\[\]]+(?:\[[^\]]*\]?)?|[\[\]]", text)
    if not words or "=" in words[0]:
        what = f"{text!r} does not begin with a name"
        raise InputError(what, where=where, cure=f"write e.g. '{example}'")
    options: dict[str, Any] = {}
    for word in words[1:]:
        key, separator, value = word.partition("=")
        key = _SHORT.get(key, key)
        if not separator or not key or not value or key in options:
            raise InputError(
                f"{word!r} in {text!r} is not KEY=VALUE, or its key appears twice",
                where=where,
                cure=f"write e.g. '{example}'",
            )
        options[key] = _value(f"[{value}]" if "," in value and value[0] != "[" else value)
    return words[0], options


def _value(text: str) -> Any:
    if text[0] == "[" and text[-1] == "]":
        return [_value(item) for item in text[1:-1].replace(",", " ").split()]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text

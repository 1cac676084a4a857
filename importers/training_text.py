# SPDX-License-Identifier: Apache-2.0
"""Loss and optimizer as a command line says them: ``cross_entropy class_weights=[1,2]``, ``sgd lr=0.01``."""

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


def option_text(name: str, options: Mapping[str, Any]) -> str:
    """The text that `parse_loss` or `parse_optimizer` reads as this name and these options."""
    return " ".join((name, *(f"{key}={value}" for key, value in options.items() if value is not None)))


def _parsed(text: str, where: str, example: str) -> tuple[str, dict[str, Any]]:
    words = re.findall(r"[^\s,\[\]]+(?:\[[^\]]*\]?)?|[\[\]]", text)
    if not words or "=" in words[0]:
        raise InputError(f"cannot read {text!r}", where=where, cure=f"write it as '{example}'")
    options: dict[str, Any] = {}
    for word in words[1:]:
        key, separator, value = word.partition("=")
        key = _SHORT.get(key, key)
        if not separator or not key or not value or key in options:
            raise InputError(
                f"cannot read {word!r} in {text!r}", where=where, cure=f"write it as '{example}'"
            )
        options[key] = _value(value)
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

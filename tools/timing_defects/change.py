# SPDX-License-Identifier: Apache-2.0
"""A change of the product's code: what is put in place of what, and what that stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Replacement = tuple[Any, str, Any]
"""(module or class, name of what is replaced in it, what takes its place)."""


def around(target: Any, name: str, wrong: Callable[..., Any]) -> list[Replacement]:
    """What is called `name` in `target`, in whose place ``wrong(right, *arguments)`` is called."""
    right = getattr(target, name)
    return [(target, name, lambda *args, **more: wrong(right, *args, **more))]


@dataclass(frozen=True, slots=True)
class Change:
    """What is wrong (its name), in which part of the product, in which file, and how to make it so."""

    name: str
    part: str
    file: str
    changes: Callable[[], Sequence[Replacement]]


def registrar(register: dict[str, Change], part: str) -> Callable[[str, str], Callable[..., Any]]:
    """A decorator, also for a lambda, that puts changes of one part of the product into `register`."""

    def change(file: str, name: str) -> Callable[..., Any]:
        def keep(make: Callable[[], Sequence[Replacement]]) -> Callable[[], Sequence[Replacement]]:
            if name in register:
                raise ValueError(f"'{name}' is there twice")
            register[name] = Change(name, part, file, make)
            return make

        return keep

    return change

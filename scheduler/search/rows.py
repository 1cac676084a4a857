# SPDX-License-Identifier: Apache-2.0
"""What a row of the cache must be made of: whoever wrote it, only this is taken from it.

All functions raise `ValueError` for anything else, which sets the file aside (`scheduler.search.cache`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")

LARGEST = 1 << 52
"""No cycle or byte count is larger; floats are exact up to here."""


def whole(value: object, least: int = 0) -> int:
    """A whole number, not a truth value, from `least` to `LARGEST`."""
    if type(value) is not int or not least <= value <= LARGEST:
        raise ValueError("not a whole number in its range")
    return value


def whole_of(text: str, least: int = 0) -> int:
    """The same, written in decimal digits."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST))):
        raise ValueError("not a whole number")
    return whole(int(text), least)


def number(value: object) -> float:
    """A finite number, 0 or more."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise ValueError("not a finite number")
    return value  # type: ignore[return-value]


def words(value: object) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("not a list of texts")
    return tuple(value)


def text_in(value: object) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError("not a text")
    return value


def by_name(value: object, read: Callable[[object], _T] = whole) -> dict[str, _T]:  # type: ignore[assignment]
    """What stands under each name, as `read` takes it."""
    if not isinstance(value, Mapping):
        raise ValueError("not an object")
    return {name: read(item) for name, item in value.items()}


def line(value: object) -> tuple[tuple[bool, str, int], ...]:
    """A time line (`scheduler.time_line.TimeLine`)."""
    entries = [items(entry, 3) for entry in items(value)]
    if any(type(is_kernel) is not bool for is_kernel, _, _ in entries):
        raise ValueError("not true or false")
    return tuple((is_kernel, text_in(name), whole(cycles)) for is_kernel, name, cycles in entries)


def items(value: object, count: int | None = None) -> Sequence[Any]:
    """A list, of `count` items if that is said."""
    if not isinstance(value, list) or (count is not None and len(value) != count):
        raise ValueError("not a list of the right length")
    return value


def fields(text: str, names: Sequence[str]) -> dict[str, Any]:
    """A JSON object with exactly these keys."""
    try:
        read = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(read, dict) or sorted(read) != sorted(names):
        raise ValueError("not an object with the right keys")
    return read

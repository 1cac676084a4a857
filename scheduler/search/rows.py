# SPDX-License-Identifier: Apache-2.0
"""Results as text for the cache, and back: whoever wrote a row, only what its type may hold is taken."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

_T = TypeVar("_T")

LARGEST = 1 << 52
"""No cycle or byte count is larger; floats are exact up to here."""


def text_of(value: object) -> str:
    """A value as JSON, of structs, dataclasses, tuples and mappings."""
    return msgspec.json.encode(value).decode()


def value_of(text: str, kind: type[_T], least: int = 0) -> _T:
    """The value of `kind` that `text_of` has written; all its numbers are from `least` to `LARGEST`.

    Raises `ValueError` for any other text, which sets the file of the cache aside (`scheduler.search.cache`).
    """
    try:
        value = msgspec.json.decode(text, type=kind)
        if text_of(value) != text:
            raise ValueError("written otherwise")  # keys more or less than there are fields
        _check(msgspec.json.decode(text), least)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


def _check(plain: Any, least: int) -> None:
    if isinstance(plain, dict | list):
        for item in plain.values() if isinstance(plain, dict) else plain:
            _check(item, least)
    elif isinstance(plain, int | float) and not least <= plain <= LARGEST:
        raise ValueError("a number out of its range")

# SPDX-License-Identifier: Apache-2.0
"""How JSON is written: a format number, the units of the keys that follow, and the object itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from configs.old_names import new_key
from traces.files.json_keys import NAMED_BY_DATA, key_of

FORMAT = 2
"""Number of the layout of all JSON of pulptrain, `format` in it; old result folders have none."""


def json_object(content: Mapping[str, Any]) -> dict[str, Any]:
    """`content` behind its format number and the units of its keys."""
    units = {
        name: key.unit
        for name, parent, value in keys_in(content)
        if _is_quantity(name, value) and (key := key_of(name, parent)) and key.unit
    }
    return {"format": FORMAT, "units": dict(sorted(units.items())), **content}


def json_text(content: Mapping[str, Any]) -> str:
    """`json_object` as text."""
    return json.dumps(json_object(content), indent=2)


def with_new_keys(value: Any, parent: str = "") -> Any:
    """A tree of objects and lists of format 1 with the keys of today; those named by data stay."""
    if isinstance(value, Mapping):
        return {
            name if parent in NAMED_BY_DATA else new_key(name, parent): with_new_keys(child, name)
            for name, child in value.items()
        }
    return [with_new_keys(child, parent) for child in value] if isinstance(value, list) else value


def _is_quantity(name: str, value: Any) -> bool:
    """Whether a value is a number, a list of numbers, or an object of numbers named by data."""
    if isinstance(value, list | tuple):
        return bool(value) and _is_quantity(name, value[0])
    return (
        value is None or isinstance(value, int | float) or (isinstance(value, dict) and name in NAMED_BY_DATA)
    )


def keys_in(value: Any, parent: str = "") -> Iterator[tuple[str, str, Any]]:
    """All keys of a tree of objects and lists, each with the key it stands under and its value.

    Those named by data are left out.
    """
    if isinstance(value, Mapping):
        for name, child in value.items():
            if parent not in NAMED_BY_DATA:
                yield str(name), parent, child
            yield from keys_in(child, str(name))
    elif isinstance(value, list | tuple):
        for child in value:
            yield from keys_in(child, parent)

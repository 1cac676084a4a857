# SPDX-License-Identifier: Apache-2.0
"""Tables of keys, as pages show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from configs.meanings import Key, keys_of
from configs.schema import Schema
from tools.pages.page import table


def keys_table(schema: type[Schema], leave_out: Collection[str] = ()) -> str:
    """The keys of a file: default, values, meaning."""
    return table(("key", "default", "values", "meaning"), (_row(key) for key in _chosen(schema, leave_out)))


def _chosen(schema: type[Schema], leave_out: Collection[str]) -> Iterable[Key]:
    return (key for key in keys_of(schema) if key.name not in leave_out)


def _row(key: Key) -> tuple[str, ...]:
    return (
        f"`{key.name}`",
        "**required**" if key.required else shown(key.default),
        key.allowed,
        key.meaning,
    )


def shown(value: object) -> str:
    """A default as a file would say it."""
    if value is None or value == "":
        return "none"
    if value == []:
        return "`[]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"

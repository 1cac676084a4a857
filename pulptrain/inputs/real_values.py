# SPDX-License-Identifier: Apache-2.0
"""Values of Python in the place of texts of the command line: sizes in bytes, switches, mappings by op.

What they mean, and which of them are legal, stands in one place, the readers of the texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from configs.errors import InputError
from configs.suggest import check_known
from pulptrain.inputs.option import ALL


def as_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `pulptrain.inputs.settings.Settings` from keywords of a call; None is an option not given.

    Raises `InputError` for an unknown key and for a value of another type than the option takes.
    """
    fields = {}
    for key, value in options.items():
        check_known(key, ALL, f"unknown option '{key}'")
        if value is not None:
            fields[key] = _field(key, value)
    return fields


def _field(key: str, value: Any) -> Any:
    option = ALL[key]
    if key == "schedule":
        return _schedule(value)
    if option.many:
        return _pairs(key, value)
    if option.takes(bool) and isinstance(value, bool):
        return "on" if value else "off"
    if option.takes(Sequence) and not isinstance(value, str):
        return ",".join(_texts(key, value)) or "off"
    if isinstance(value, PathLike):
        value = fspath(value)
    return str(value) if option.takes(int) and type(value) is int else _of_type(key, value, option.kind)


def _schedule(value: Any) -> Any:
    if isinstance(value, str | PathLike):
        return fspath(value)
    try:
        return value.schedule
    except AttributeError:
        raise _wrong("schedule", value, "a file, or the result of tune()") from None


def _pairs(key: str, value: Any) -> tuple[str, ...]:
    """Texts ``name=value``; a mapping in a mapping is ``name:value,...``, a sequence ``value,value``."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Mapping):
        return tuple(f"{name}={_inner(key, inner)}" for name, inner in value.items())
    return _texts(key, value)


def _inner(key: str, value: Any) -> str:
    value = of_python(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{_of_type(key, size, int)}" for name, size in value.items())
    if isinstance(value, str | int | float):
        return str(value)
    return ",".join(_texts(key, value))


def _texts(key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise _wrong(key, value, "a list of texts")
    return tuple(value)


def _of_type(key: str, value: Any, kind: type) -> Any:
    value = of_python(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(key, value, f"of type {kind.__name__}")
    return value


def of_python(value: Any) -> Any:
    """The number itself, of one that NumPy has."""
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def _wrong(key: str, value: Any, wanted: str) -> InputError:
    what = f"the value must be {wanted}, but is {value!r} of type {type(value).__name__}"
    return InputError(
        what, where=key, cure=f"pass a value of another type: {wanted.removeprefix('of type ')}"
    )

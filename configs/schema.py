# SPDX-License-Identifier: Apache-2.0
"""Checks one mapping of a YAML file against a pydantic model and reports mistakes with ``file:line``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from configs.errors import ConfigError
from configs.problems import Problems
from configs.suggest import check_known, suggestion
from configs.yaml_file import Node


class Schema(BaseModel):
    """Base of all file schemas: exact types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)

    either: ClassVar[Mapping[str, str]] = {}
    """Key -> another that may stand in its place: one of the two must be given."""

    cures: ClassVar[Mapping[str, str]] = {}
    """Key -> what to do about a wrong value, where the error itself does not say it."""


NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""What inputs, labels and layers may be called."""

MODEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"

ALLOWED = {
    NAME: "letters, digits and _, and begin with a letter or _",
    MODEL_NAME: "letters, digits, _, . and -, and begin with a letter or digit",
}

SchemaT = TypeVar("SchemaT", bound=Schema)


def check_keys(node: Node, what: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Raise `ConfigError` when mapping `node` has keys that are not known, or lacks required ones."""
    problems = Problems()
    _note_keys(problems, node, what, dict.fromkeys(required, "..."), optional)
    problems.refuse()


def required_and_optional(schema: type[Schema]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the fields a file must have, and of those it may have."""
    fields = schema.model_fields.items()
    required = tuple(name for name, field in fields if field.is_required())
    return required, tuple(name for name, field in fields if not field.is_required())


def _note_keys(
    problems: Problems, node: Node, what: str, required: Mapping[str, str], optional: tuple[str, ...]
) -> None:
    """Note keys that are not known, and required ones (by name, what they may hold) that are missing."""
    children = node.mapping(what)
    keys = (*required, *optional)
    misspelt = []
    for key, child in children.items():
        if key not in keys:
            cure = suggestion(key, keys)
            misspelt.append(cure)
            problems.note(child.error(f"unknown key '{key}' in {what}", cure))
    for key, example in required.items():
        # One that is only misspelt is not missed as well.
        if key not in children and not any(cure.startswith(f"use '{key}'") for cure in misspelt):
            cure = f"add '{key}: {example}'"
            problems.note(node.error(f"{what} has no '{key}'", cure))


def validate(schema: type[SchemaT], node: Node, what: str) -> SchemaT:
    """Return `node` as an instance of the flat `schema`.

    Raises `ConfigError` at the lines of all wrong keys and values; `what` names the mapping in messages.
    """
    problems = Problems()
    required, optional = required_and_optional(schema)
    given = node.mapping(what)
    for one, other in schema.either.items():
        if other not in given:
            required = (*required, one)
        elif one in given:
            where = given[other].where
            problems.note(
                ConfigError(f"{what} has both '{one}' and '{other}'", where=where, cure="use one of the two")
            )
    examples = {key: next(iter(schema.model_fields[key].examples or ()), "...") for key in required}
    _note_keys(problems, node, what, examples, optional)
    values = {key: value for key, value in node.plain().items() if key in schema.model_fields}
    try:
        validated = schema.model_validate(values)
    except ValidationError as error:
        for detail in _first_of_each(error):
            if detail["type"] != "missing" or len(detail["loc"]) > 1:
                problems.note(_config_error(detail, node, what, schema.cures))
    problems.refuse()
    return validated


def _first_of_each(error: ValidationError) -> list[ErrorDetails]:
    """One complaint a key: a value that may be one of several kinds has one for each of them."""
    first: dict[object, ErrorDetails] = {}
    for detail in error.errors(include_url=False):
        first.setdefault(detail["loc"][:1], detail)
    return list(first.values())


def validate_values(schema: type[SchemaT], values: Mapping[str, Any], what: str, where: str) -> SchemaT:
    """As `validate`, for values that come from an option or from Python and not from a file."""
    fields = tuple(schema.model_fields)
    for key in values:
        check_known(key, fields, f"unknown key '{key}' in {what}", where, error=ConfigError)
    for name, field in schema.model_fields.items():
        if field.is_required() and name not in values:
            raise ConfigError(f"{what} has no '{name}'", where=where, cure=f"add '{name}'")
    try:
        return schema.model_validate(dict(values))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        name = what
        for step in detail["loc"]:
            if "-" not in str(step):  # as "constrained-int"
                name = _part(step, name)
        raise _as_config_error(
            detail, f"{name} is {detail['input']!r}" if detail["loc"] else name, where
        ) from None


def _part(step: str | int, whole: str) -> str:
    """A value of a mapping or list, for messages."""
    return f"'{step}' of {whole}" if isinstance(step, str) else f"item {step + 1} of {whole}"


def _config_error(detail: ErrorDetails, node: Node, what: str, cures: Mapping[str, str]) -> ConfigError:
    place = node
    name = what
    for step in detail["loc"]:
        child = _child(place, step)
        if child is None:
            break
        name = _part(step, name)
        place = child
    error = _as_config_error(detail, f"{name} is {place.kind}", place.where)
    cure = cures.get(str(detail["loc"][0]), error.cure) if detail["loc"] else error.cure
    return ConfigError(error.message, where=error.where, cure=cure)


def _as_config_error(detail: ErrorDetails, what: str, where: str) -> ConfigError:
    """In our words: `what` is wrong."""
    message = detail["msg"].removeprefix("Value error, ")
    needed = message.removeprefix("Input should be ")
    if detail["type"] == "too_short":
        cure = "add at least one entry"
        return ConfigError(f"{what} without entries, but needs one", where=where, cure=cure)
    if detail["type"] == "string_pattern_mismatch":
        allowed = ALLOWED[detail["ctx"]["pattern"]]
        return ConfigError(f"{what}, but must consist of {allowed}", where=where, cure=f"use only {allowed}")
    if needed == message:
        return ConfigError(
            f"{what}: {message[:1].lower()}{message[1:]}", where=where, cure="correct the value"
        )
    for pattern, words in _NEEDED.items():
        needed = re.sub(pattern, words, needed)
    quotes = ", in quotes if it looks like a number, e.g. '7'" if needed == "a text" else ""
    return ConfigError(f"{what}, but must be {needed}", where=where, cure=f"use {needed}{quotes}")


_NEEDED = {
    ", (unable to|got) .*": "",
    "greater than or equal to (.*)": r"\1 or more",
    "less than or equal to (.*)": r"at most \1",
    "greater than (.*)": r"a number above \1",
    "less than (.*)": r"a number below \1",
    "a valid integer": "a whole number",
    "a valid boolean": "true or false",
    "a valid string": "a text",
    "a valid dictionary": "a mapping: {key: value}",
    "a valid (.*)": r"a \1",
}
"""What pydantic says that a value should be, in our words."""


def _child(node: Node, step: Any) -> Node | None:
    if node.is_mapping and isinstance(step, str):
        return node.mapping("").get(step)
    if node.is_sequence and isinstance(step, int):
        items = node.sequence("")
        return items[step] if step < len(items) else None
    return None

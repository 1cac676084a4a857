# SPDX-License-Identifier: Apache-2.0
"""Checks one mapping of a YAML file against a pydantic model and reports mistakes with ``file:line``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from configs.errors import ConfigError
from configs.suggest import suggestion
from configs.yaml_file import Node


class Schema(BaseModel):
    """Base of all file schemas: exact types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


SchemaT = TypeVar("SchemaT", bound=Schema)


def check_keys(node: Node, what: str, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    """Raise `ConfigError` when mapping `node` has a key that is not known, or lacks a required one."""
    children = node.mapping(what)
    known = (*required, *optional)
    for key, child in children.items():
        if key not in known:
            raise ConfigError(
                f"unknown key '{key}' in {what}", where=child.where, cure=suggestion(key, known)
            )
    for key in required:
        if key not in children:
            raise ConfigError(f"{what} has no '{key}'", where=node.where, cure=f"add '{key}: ...'")


def validate(schema: type[SchemaT], node: Node, what: str) -> SchemaT:
    """Return `node` as an instance of the flat `schema`.

    Raises `ConfigError` at the line of the first wrong key or value; `what` names the mapping in messages.
    """
    fields = schema.model_fields
    required = tuple(name for name, field in fields.items() if field.is_required())
    optional = tuple(name for name, field in fields.items() if not field.is_required())
    check_keys(node, what, required, optional)
    try:
        return schema.model_validate(node.plain())
    except ValidationError as error:
        raise _config_error(error, node, what) from None


def validate_values(schema: type[SchemaT], values: Mapping[str, Any], what: str, where: str) -> SchemaT:
    """As `validate`, for values that come from an option or from Python and not from a file."""
    known = tuple(schema.model_fields)
    for key in values:
        if key not in known:
            raise ConfigError(f"unknown key '{key}' in {what}", where=where, cure=suggestion(key, known))
    for name, field in schema.model_fields.items():
        if field.is_required() and name not in values:
            raise ConfigError(f"{what} has no '{name}'", where=where, cure=f"add '{name}'")
    try:
        return schema.model_validate(dict(values))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        key = ".".join(str(step) for step in detail["loc"])
        given = f" is {detail['input']!r}" if detail["loc"] else ""
        message = detail["msg"].removeprefix("Value error, ")
        raise ConfigError(
            f"'{key}' of {what}{given}: {message[:1].lower()}{message[1:]}", where=where
        ) from None


def _config_error(error: ValidationError, node: Node, what: str) -> ConfigError:
    detail = error.errors(include_url=False)[0]
    place = node
    name = what
    for step in detail["loc"]:
        child = _child(place, step)
        if child is None:
            break
        name = f"'{step}' of {name}" if isinstance(step, str) else f"item {step + 1} of {name}"
        place = child
    message = detail["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    return ConfigError(f"{name} is {place.kind}: {message}", where=place.where, cure="correct the value")


def _child(node: Node, step: Any) -> Node | None:
    if node.is_mapping and isinstance(step, str):
        return node.mapping("").get(step)
    if node.is_sequence and isinstance(step, int):
        items = node.sequence("")
        return items[step] if step < len(items) else None
    return None

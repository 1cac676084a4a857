# SPDX-License-Identifier: Apache-2.0
"""What the keys of a file mean: the docstrings below the fields of its schema, read when somebody asks."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo

from configs.schema import Schema
from configs.values import Struct


class Key(Struct, frozen=True):
    """A key of a file: its default (None if it must be given), what it may be, and what it means."""

    name: str
    required: bool
    default: Any
    allowed: str
    meaning: str


@cache
def meanings(schema: type[Schema]) -> dict[str, str]:
    """By field the docstring below it, its own or that of a base; fields without one are left out."""
    texts: dict[str, str] = {}
    for cls in reversed(schema.__mro__):
        if issubclass(cls, Schema) and cls is not Schema:
            texts.update(_docstrings(cls))
    return {name: texts[name] for name in schema.model_fields if name in texts}


def _docstrings(cls: type[Schema]) -> dict[str, str]:
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docstrings = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            docstrings[field.target.id] = " ".join(str(text.value.value).split())
    return docstrings


def keys_of(schema: type[Schema]) -> tuple[Key, ...]:
    """The keys of a schema, those that must be given first."""
    texts, properties = meanings(schema), schema.model_json_schema()["properties"]
    keys = [
        Key(name, field.is_required(), _default(field), allowed(properties[name]), texts.get(name, ""))
        for name, field in schema.model_fields.items()
    ]
    return tuple(sorted(keys, key=lambda key: not key.required))


def _default(field: FieldInfo) -> Any:
    return None if field.is_required() else field.get_default(call_default_factory=True)


def allowed(schema: dict[str, Any]) -> str:
    """A JSON Schema in words: ``integer >= 1``; empty where anything may stand."""
    if "anyOf" in schema:
        *first, last = [words for each in schema["anyOf"] if (words := allowed(each))]
        return f"{', '.join(first)} or {last}" if first else last
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "")
    if kind == "array":
        inner = allowed(schema.get("items", {}))
        least, most = schema.get("minItems"), schema.get("maxItems")
        count = f"{least} " if least is not None and least == most else ""
        return f"list of {count}{_several(inner)}" if count or inner else "list"
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    return " ".join(filter(None, (_KINDS.get(kind, kind), " and ".join(bounds))))


def _several(words: str) -> str:
    """The plural of a kind, ``integers >= 1``; a choice stays as it is, in brackets."""
    if "|" in words or " or " in words:
        return f"({words})"
    kind, space, rest = words.partition(" ")
    return f"{kind}s{space}{rest}" if kind else ""


_KINDS = {"boolean": "true | false", "null": "none", "object": "mapping"}
"""Types of a JSON Schema that a page names in another way."""
_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}

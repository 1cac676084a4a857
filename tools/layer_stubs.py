# SPDX-License-Identifier: Apache-2.0
"""Writes `pulptrain/inputs/layers.pyi`: for type checkers what its module makes at run time.

python -m tools.layer_stubs          writes it
"""

from __future__ import annotations

from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pulptrain.inputs.layers import CLASSES, Layer, Loss, keyword_fields, option_keys

STUB = Path(__file__).resolve().parents[1] / "pulptrain" / "inputs" / "layers.pyi"

IN_PYTHON = {
    "name": "str | None",
    "inputs": "Sequence[str | Layer] | None",
    "of": "str | Layer | None",
    "target": "str | Layer | None",
    "adapter": "Mapping[str, Any] | None",
    "weights_of": "str | Layer | Mapping[str, str | Layer] | None",
}
"""Keys of layers and losses that take more in Python than in a file."""

HEAD = """# SPDX-License-Identifier: Apache-2.0
# Written by `python -m tools.layer_stubs` from the registry of primitives.
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic.fields import FieldInfo

from configs.yaml_file import Node
from trainlib.primitives.definition import Primitive

class Part:
    primitive: Primitive
    options: dict[str, Any]
    where: str
    def node(self, **more: object) -> Node: ...

class Layer(Part): ...
class Loss(Part): ...
class Optimizer(Part): ...

CLASSES: Mapping[str, type[Part]]

def class_name(name: str) -> str: ...
def option_keys(primitive: Primitive) -> list[tuple[str, bool]]: ...
def keyword_fields(primitive: Primitive) -> dict[str, FieldInfo]: ...
def signature_of(primitive: Primitive) -> inspect.Signature: ...
def node_of(value: object, file: str, line: int) -> Node: ...
def caller_of(module: str) -> tuple[str, int, str]: ...
"""


def stub_text() -> str:
    """The whole file."""
    classes = [_class(name) for name in CLASSES]
    listing = "\n".join(f'    "{name}",' for name in ("Layer", "Loss", "Optimizer", *CLASSES))
    return HEAD + f"\n__all__ = [  # noqa: RUF022\n{listing}\n]\n\n" + "\n".join(classes)


def _class(name: str) -> str:
    made = CLASSES[name]
    primitive = made.primitive
    base = "Layer" if issubclass(made, Layer) else "Loss" if issubclass(made, Loss) else "Optimizer"
    schema: Any = primitive.schema  # type: ignore[union-attr]
    arguments = ["self"]
    for key, needed in option_keys(primitive):
        field = schema.model_fields[key]
        kind = type_text(field.annotation)
        arguments.append(f"{key}: {kind}" if needed else f"{key}: {kind} = {_quoted(field.default)}")
    keywords = []
    for key, field in keyword_fields(primitive).items():
        kind = IN_PYTHON.get(key, type_text(field.annotation))
        keywords.append(f"{key}: {kind} = {None if key == 'name' else _quoted(field.default)}")
    arguments += ["*", *keywords] if keywords else []
    body = "".join(f"        {argument},\n" for argument in arguments)
    return f"class {name}({base}):\n    def __init__(\n{body}    ) -> None: ...\n"


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def type_text(annotation: Any) -> str:
    """An annotation of a schema as it is written; lists may be any sequence."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type_text(arguments[0])
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(type_text(item) for item in arguments))
    if origin is Literal:
        return "Literal[" + ", ".join(map(_quoted, arguments)) + "]"
    if origin in (list, dict):
        return "Mapping[str, Any]" if origin is dict else f"Sequence[{type_text(arguments[0])}]"
    if annotation in (None, NoneType):
        return "None"
    return str(getattr(annotation, "__name__", "Any"))


if __name__ == "__main__":
    STUB.write_text(stub_text(), encoding="utf-8")
    print(STUB)

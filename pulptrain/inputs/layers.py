# SPDX-License-Identifier: Apache-2.0
"""Layers, losses and optimizers as classes, one for every primitive of the registry.

`Conv2d(16, 3, name="conv1")` is what a model file writes as ``{name: conv1, type: conv2d, out_channels: 16,
kernel: 3}``: options that must be given come first (outputs before kernels), all may be given by name, and
`LAYER_KEYS` of `configs.model_file` go for every layer. What is wrong is refused where it is written.
The classes are made here at run time; `layers.pyi` says the same to type checkers and is written by
``python -m tools.layer_stubs``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo

from configs.errors import InputError
from configs.model_file import (
    LAYER_KEYS,
    TERM_KEYS,
    LayerSchema,
    LossSchema,
    OptimizerSchema,
    TermSchema,
)
from configs.schema import Schema, validate_values
from configs.yaml_file import Node
from pulptrain.inputs.real_values import of_python
from trainlib.primitives.definition import LayerPrimitive, LossPrimitive, OptimizerPrimitive, Primitive
from trainlib.registry import PRIMITIVES, is_internal
from trainlib.training.options import GRADIENT_KEYS, GradientOptions

_SPELLINGS = {
    "relu": "ReLU",
    "gelu": "GELU",
    "silu": "SiLU",
    "swiglu": "SwiGLU",
    "rnn": "RNN",
    "gru": "GRU",
    "lstm": "LSTM",
    "mhsa": "MHSA",
    "rms": "RMS",
    "mse": "MSE",
    "berhu": "BerHu",
    "bce": "BCE",
    "kl": "KL",
    "nll": "NLL",
    "sgd": "SGD",
    "adamw": "AdamW",
    "nadam": "NAdam",
    "radam": "RAdam",
    "asgd": "ASGD",
    "rmsprop": "RMSprop",
}
"""Words of names that PyTorch, or the field, does not write with one capital letter."""


class Part:
    """A layer, a loss or an optimizer of a network, with the options that were given."""

    primitive: Primitive
    """The primitive it stands for."""
    options: dict[str, Any]
    """What was given, by the keys of a model file."""
    where: str
    """``file:line`` of the script that made it."""

    def __init__(self, *values: Any, **options: Any) -> None:
        parameters = signature_of(self.primitive)
        self._file, self._line, self.where = caller_of(__name__)
        try:
            given = parameters.bind(*values, **options).arguments
        except TypeError as error:
            raise InputError(
                f"{type(self).__name__}: {error}",
                where=self.where,
                cure=f"use {type(self).__name__}{parameters}",
            ) from None
        self.options = {key: _plain(value) for key, value in given.items()}
        self._check(self.where)

    def _check(self, where: str) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        text = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"{type(self).__name__}({text})"

    def node(self, **more: object) -> Node:
        """What a model file would have in its place, at the line of the script; `more` goes first."""
        return node_of({**more, **self.options, **more}, self._file, self._line)


class Layer(Part):
    """A layer; `name` is given by type and number (``conv2d1``) if it has none."""

    primitive: LayerPrimitive

    def _check(self, where: str) -> None:
        values = {"name": "layer", "type": self.primitive.name, **self.options}
        if any(isinstance(item, Layer) for item in self.options.get("inputs") or ()):
            del values["inputs"]
        lent = self.options.get("weights_of")
        if any(isinstance(item, Layer) for item in (lent.values() if isinstance(lent, Mapping) else [lent])):
            del values["weights_of"]
        validate_values(self.primitive.schema, values, type(self).__name__, where)


class Loss(Part):
    """A loss; `of` and `target` are names of layers, or layers."""

    primitive: LossPrimitive

    def _check(self, where: str) -> None:
        options = {key: value for key, value in self.options.items() if key not in TERM_KEYS}
        values = {"name": self.primitive.name, **options}
        validate_values(self.primitive.schema, values, type(self).__name__, where)


class Optimizer(Part):
    """An optimizer; it also takes the options of `trainlib.training.options.GradientOptions`."""

    primitive: OptimizerPrimitive

    def _check(self, where: str) -> None:
        gradients = {key: value for key, value in self.options.items() if key in GRADIENT_KEYS}
        options = {key: value for key, value in self.options.items() if key not in GRADIENT_KEYS}
        validate_values(GradientOptions, gradients, type(self).__name__, where)
        values = {"name": self.primitive.name, **options}
        validate_values(self.primitive.schema, values, type(self).__name__, where)


def class_name(name: str) -> str:
    """Name of the class of a primitive: ``conv_transpose2d`` is ``ConvTranspose2d``."""
    return "".join(_SPELLINGS.get(word, word[:1].upper() + word[1:]) for word in name.split("_"))


def option_keys(primitive: Primitive) -> list[tuple[str, bool]]:
    """(option of its schema, whether it must be given), in the order of the arguments of its class."""
    assert isinstance(primitive, LayerPrimitive | LossPrimitive | OptimizerPrimitive)
    shared = _shared_keys(primitive)
    fields = [
        (key, field.is_required())
        for key, field in primitive.schema.model_fields.items()
        if key not in shared
    ]
    return sorted(fields, key=lambda item: (not item[1], not (item[1] and item[0].startswith("out_"))))


def _shared_keys(primitive: Primitive) -> Collection[str]:
    """Keys of a schema that are no options of its primitive; of an optimizer the learning rate is one."""
    if isinstance(primitive, LayerPrimitive):
        return LAYER_KEYS
    schema: type[Schema] = LossSchema if isinstance(primitive, LossPrimitive) else OptimizerSchema
    return schema.model_fields.keys() - {"learning_rate"}


def keyword_fields(primitive: Primitive) -> dict[str, FieldInfo]:
    """What may be given by name only, besides the options of the primitive."""
    left_out = {"type", *(key for key, _ in option_keys(primitive))}
    if isinstance(primitive, LayerPrimitive):
        schemas: tuple[type[Schema], ...] = (LayerSchema,)
    else:
        left_out.add("name")
        is_loss = isinstance(primitive, LossPrimitive)
        schemas = (LossSchema, TermSchema) if is_loss else (OptimizerSchema, GradientOptions)
    fields = {key: field for schema in schemas for key, field in schema.model_fields.items()}
    return {key: field for key, field in fields.items() if key not in left_out}


def signature_of(primitive: Primitive) -> inspect.Signature:
    """The arguments of the class of a primitive."""
    kind = inspect.Parameter
    assert isinstance(primitive, LayerPrimitive | LossPrimitive | OptimizerPrimitive)
    fields = primitive.schema.model_fields
    parameters = [
        kind(key, kind.POSITIONAL_OR_KEYWORD, default=kind.empty if needed else fields[key].default)
        for key, needed in option_keys(primitive)
    ]
    parameters += [
        kind(key, kind.KEYWORD_ONLY, default=None if key == "name" else field.default)
        for key, field in keyword_fields(primitive).items()
    ]
    return inspect.Signature(parameters)


def node_of(value: object, file: str, line: int) -> Node:
    """A tree of plain values as if it stood in that line of a file; nodes in it stay as they are."""
    if isinstance(value, Node):
        return value
    if isinstance(value, Mapping):
        return Node({str(key): node_of(item, file, line) for key, item in value.items()}, file, line)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return Node(tuple(node_of(item, file, line) for item in value), file, line)
    if value is None or isinstance(value, str | int | float | bool):
        return Node(value, file, line)
    raise InputError(
        f"{value!r} is not allowed as the value of a layer option",
        where=f"{file}:{line}",
        cure="use a number, a string or a list",
    )


def _plain(value: Any) -> Any:
    """Tuples as lists, as a model file has them; numbers of NumPy as those of Python."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return of_python(value)


def caller_of(module: str) -> tuple[str, int, str]:
    """File, line, and both as text, of the innermost caller that is outside a module or package of ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith((module, __name__)):
        frame = frame.f_back
    file, line = frame.f_code.co_filename, frame.f_lineno
    return file, line, f"{file}:{line}"


def _class_of(primitive: Primitive) -> type[Part]:
    base = next(
        kind
        for of, kind in ((LayerPrimitive, Layer), (LossPrimitive, Loss), (OptimizerPrimitive, Optimizer))
        if isinstance(primitive, of)
    )
    name = class_name(primitive.name)
    word = base.__name__.lower()
    members = {
        "primitive": primitive,
        "__doc__": f"The {word} ``{primitive.name}`` (docs/primitives.md).",
        "__signature__": signature_of(primitive),
        "__module__": __name__,
    }
    return type(name, (base,), members)


CLASSES: Mapping[str, type[Part]] = {
    class_name(primitive.name): _class_of(primitive)
    for primitive in PRIMITIVES.values()
    if not is_internal(primitive)
}
"""Every class by name."""

globals().update(CLASSES)

__all__ = ["Layer", "Loss", "Optimizer", *CLASSES]  # noqa: PLE0604 - their names

"""Model files: a network, its input, loss and optimizer, as frozen dataclasses that remember their lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from configs.errors import ConfigError
from configs.library import open_config
from configs.schema import Schema, validate
from configs.suggest import suggestion
from configs.yaml_file import Node

Attribute = int | float | bool | str


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer as written: name, type (a key of `LAYER_TYPES`), attributes with defaults filled in.

    `where` is ``file:line`` of the layer, for errors that show only when shapes are known.
    """

    name: str
    type: str
    attributes: Mapping[str, Attribute]
    where: str


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """Optimizer as written: name (sgd) and learning rate."""

    name: str
    learning_rate: float
    where: str


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model file: `input_shape` is (C, H, W) or (C,) without batch; `where` is ``file:line`` of the file.

    `dataset` is one of `DATASETS`, `loss` one of `LOSSES`; `source` cites where the network comes from.
    """

    name: str
    description: str
    source: str
    input_shape: tuple[int, ...]
    dataset: str
    loss: str
    optimizer: OptimizerSpec
    batch: int
    layers: tuple[LayerSpec, ...]
    where: str


DATASETS: Mapping[str, tuple[int, ...] | None] = {"digits": (1, 8, 8), "random": None}
"""Data sets a model may ask for, and the input shape each one brings (None: any)."""

LOSSES = ("cross_entropy", "mse")
OPTIMIZERS = ("sgd",)

_Text = Annotated[str, Field(min_length=1)]
_Positive = Annotated[int, Field(ge=1)]


class _Layer(Schema):
    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    type: str


class _Conv2d(_Layer):
    out_channels: _Positive
    kernel: _Positive
    padding: Annotated[int, Field(ge=0)] = 0
    stride: _Positive = 1


class _Linear(_Layer):
    out_features: _Positive


class _Plain(_Layer):
    pass


LAYER_TYPES: Mapping[str, type[_Layer]] = {
    "conv2d": _Conv2d,
    "relu": _Plain,
    "linear": _Linear,
    "flatten": _Plain,
}
"""Schema of each layer type; attributes are the keys besides name and type."""


class _Input(Schema):
    shape: list[_Positive]


class _Optimizer(Schema):
    name: str
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Model(Schema):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    description: _Text
    source: _Text
    input: object
    dataset: str
    loss: str
    optimizer: object
    batch: Literal[1] = 1
    layers: Annotated[list[object], Field(min_length=1)]


def load_model(name_or_path: str | Path) -> ModelSpec:
    """Load a model by installed name or by the path of a YAML file.

    Raises `ConfigError` with ``file:line`` for unknown, missing or duplicate keys, unknown layer types,
    attributes, data sets, losses and optimizers (with a suggestion), and values out of range.
    """
    node = open_config("models", name_or_path)
    header = validate(_Model, node, "the model")
    top = node.mapping("the model")
    for key, known in (("dataset", tuple(DATASETS)), ("loss", LOSSES)):
        _check_word(top[key], key, known)
    return ModelSpec(
        name=header.name,
        description=header.description,
        source=header.source,
        input_shape=_input_shape(top["input"], header.dataset),
        dataset=header.dataset,
        loss=header.loss,
        optimizer=_optimizer(top["optimizer"]),
        batch=header.batch,
        layers=_layers(top["layers"]),
        where=node.where,
    )


def _check_word(node: Node, what: str, known: tuple[str, ...]) -> None:
    if node.value not in known:
        raise ConfigError(
            f"unknown {what} '{node.value}'", where=node.where, cure=suggestion(str(node.value), known)
        )


def _input_shape(node: Node, dataset: str) -> tuple[int, ...]:
    shape = tuple(validate(_Input, node, "'input'").shape)
    where = node.mapping("'input'")["shape"].where
    if len(shape) not in (1, 3):
        raise ConfigError(
            f"the input shape has {len(shape)} dimensions",
            where=where,
            cure="[C, H, W] for images, [C] for vectors",
        )
    needed = DATASETS[dataset]
    if needed is not None and shape != needed:
        raise ConfigError(
            f"the data set '{dataset}' has inputs of shape {list(needed)}, not {list(shape)}",
            where=where,
            cure=f"shape: {list(needed)}, or dataset: random",
        )
    return shape


def _optimizer(node: Node) -> OptimizerSpec:
    checked = validate(_Optimizer, node, "'optimizer'")
    _check_word(node.mapping("'optimizer'")["name"], "optimizer", OPTIMIZERS)
    return OptimizerSpec(checked.name, float(checked.learning_rate), node.where)


def _layers(node: Node) -> tuple[LayerSpec, ...]:
    layers: list[LayerSpec] = []
    lines: dict[str, int] = {}
    for number, item in enumerate(node.sequence("'layers'"), start=1):
        layer = _layer(item, number)
        if layer.name in lines:
            raise ConfigError(
                f"two layers are called '{layer.name}', the first in line {lines[layer.name]}",
                where=layer.where,
                cure="rename one of them",
            )
        lines[layer.name] = item.line
        layers.append(layer)
    return tuple(layers)


def _layer(item: Node, number: int) -> LayerSpec:
    children = item.mapping(f"layer {number}")
    for key in ("name", "type"):
        if key not in children:
            raise ConfigError(f"layer {number} has no '{key}'", where=item.where, cure=f"add '{key}: ...'")
    name, kind = children["name"].value, children["type"]
    _check_word(kind, f"type of layer '{name}'", tuple(LAYER_TYPES))
    checked = validate(LAYER_TYPES[str(kind.value)], item, f"layer '{name}' ({kind.value})")
    attributes = checked.model_dump(exclude={"name", "type"})
    return LayerSpec(checked.name, checked.type, attributes, item.where)

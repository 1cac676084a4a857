"""The one place where primitives are listed, and how an op finds its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from configs.errors import UnsupportedLayerError
from configs.suggest import suggestion
from trainlib.graph import Op
from trainlib.primitives import conv2d, flatten, linear, mse, relu, sgd, softmax_cross_entropy
from trainlib.primitives.definition import (
    LayerPrimitive,
    LossPrimitive,
    OptimizerPrimitive,
    Primitive,
    Step,
)
from trainlib.steps import StepLowering

PRIMITIVES: Mapping[str, Primitive] = MappingProxyType(
    {
        primitive.name: primitive
        for primitive in (
            conv2d.PRIMITIVE,
            linear.PRIMITIVE,
            relu.PRIMITIVE,
            flatten.PRIMITIVE,
            softmax_cross_entropy.PRIMITIVE,
            mse.PRIMITIVE,
            sgd.PRIMITIVE,
        )
    }
)
"""Every primitive by name. A new one is a file in trainlib/primitives and a line here."""

_Kind = TypeVar("_Kind", LayerPrimitive, LossPrimitive, OptimizerPrimitive)


def _find(kind: type[_Kind], word: str, name: str, where: str | None) -> _Kind:
    found = PRIMITIVES.get(name)
    if isinstance(found, kind):
        return found
    known = sorted(key for key, primitive in PRIMITIVES.items() if isinstance(primitive, kind))
    raise UnsupportedLayerError(
        f"there is no {word} called '{name}'", where=where, cure=suggestion(name, known)
    )


def layer_primitive(name: str, where: str | None = None) -> LayerPrimitive:
    """The layer type `name`; UnsupportedLayerError with the nearest name if there is none."""
    return _find(LayerPrimitive, "layer type", name, where)


def loss_primitive(name: str, where: str | None = None) -> LossPrimitive:
    """The loss `name`; UnsupportedLayerError with the nearest name if there is none."""
    return _find(LossPrimitive, "loss", name, where)


def optimizer_primitive(name: str, where: str | None = None) -> OptimizerPrimitive:
    """The optimizer `name`; UnsupportedLayerError with the nearest name if there is none."""
    return _find(OptimizerPrimitive, "optimizer", name, where)


def step_of(op: Op) -> Step:
    """The step definition of an op: its reference and its lowering; UnsupportedLayerError if unknown."""
    primitive = PRIMITIVES.get(op.primitive)
    step = primitive.steps.get(op.step) if primitive is not None else None
    if step is None:
        raise UnsupportedLayerError(
            f"primitive '{op.primitive}' has no step {op.step}",
            where=op.name,
            cure="primitives: " + ", ".join(sorted(PRIMITIVES)),
        )
    return step


def lowering_of(op: Op) -> StepLowering:
    """How the op becomes tiles."""
    return step_of(op).lowering

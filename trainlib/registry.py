"""The one place where primitives are listed, and how an op finds its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from configs.errors import UnsupportedLayerError
from configs.suggest import suggestion
from trainlib.graph import Op
from trainlib.primitives import (
    accumulate,
    add,
    cast,
    conv2d,
    flatten,
    layout,
    linear,
    mse,
    relu,
    sgd,
    softmax_cross_entropy,
)
from trainlib.primitives.definition import (
    InternalPrimitive,
    LayerPrimitive,
    LossPrimitive,
    OptimizerPrimitive,
    Primitive,
    Step,
)
from trainlib.steps import StepLowering

_ALL: tuple[Primitive, ...] = (
    conv2d.PRIMITIVE,
    linear.PRIMITIVE,
    relu.PRIMITIVE,
    flatten.PRIMITIVE,
    add.PRIMITIVE,
    softmax_cross_entropy.PRIMITIVE,
    mse.PRIMITIVE,
    sgd.PRIMITIVE,
    # Put into the graph by its builder.
    cast.PRIMITIVE,
    layout.PRIMITIVE,
    accumulate.PRIMITIVE,
)

PRIMITIVES: Mapping[str, Primitive] = MappingProxyType({primitive.name: primitive for primitive in _ALL})
"""Every primitive by name. A new one is a file in trainlib/primitives and a line above."""

_Kind = TypeVar("_Kind", LayerPrimitive, LossPrimitive, OptimizerPrimitive)


def _find(kind: type[_Kind], word: str, name: str, where: str | None) -> _Kind:
    found = PRIMITIVES.get(name)
    if isinstance(found, kind):
        return found
    known = sorted(
        key
        for key, primitive in PRIMITIVES.items()
        if isinstance(primitive, kind) and not getattr(primitive, "internal", False)
    )
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


def is_internal(primitive: Primitive) -> bool:
    """Whether only the graph builder uses it."""
    return isinstance(primitive, InternalPrimitive) or (
        isinstance(primitive, LayerPrimitive) and primitive.internal
    )


def step_of(op: Op) -> Step:
    """The step definition of an op: its reference and its lowering; UnsupportedLayerError if unknown."""
    primitive = PRIMITIVES.get(op.primitive)
    for step in primitive.steps if primitive is not None else ():
        if step.name == op.step:
            return step
    raise UnsupportedLayerError(
        f"primitive '{op.primitive}' has no step {op.step}",
        where=op.name,
        cure="primitives: " + ", ".join(sorted(PRIMITIVES)),
    )


def lowering_of(op: Op) -> StepLowering:
    """How the op becomes tiles."""
    return step_of(op).lowering

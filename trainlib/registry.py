# SPDX-License-Identifier: Apache-2.0
"""The one place where primitives are listed, and how an op finds its own."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from configs.errors import UnsupportedLayerError
from configs.suggest import suggestion
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import StepLowering
from trainlib.kernels.catalogue import default_matmul
from trainlib.kernels.library import LIBRARY
from trainlib.names_elsewhere import name_here
from trainlib.primitives.attention import class_token, embedding, log_softmax, mhsa, softmax
from trainlib.primitives.contractions import (
    conv1d,
    conv2d,
    conv_transpose2d,
    depthwise,
    linear,
    matmul,
    pointwise,
)
from trainlib.primitives.definition import (
    VARIANT,
    InternalPrimitive,
    LayerPrimitive,
    LossPrimitive,
    OptimizerPrimitive,
    Primitive,
    Step,
)
from trainlib.primitives.elementwise import arithmetic, broadcast_add, expand, parameter, position, prelu
from trainlib.primitives.elementwise import table as elementwise
from trainlib.primitives.losses import table as losses
from trainlib.primitives.lowering.windows import windowed
from trainlib.primitives.norms import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from trainlib.primitives.optimizers import (
    accumulate,
    gradient_accumulation,
    gradient_clipping,
    weight_average,
)
from trainlib.primitives.optimizers import table as optimizers
from trainlib.primitives.pooling import (
    avg_pool2d,
    global_avg_pool,
    interpolation,
    max_pool2d,
    reduce_max,
    reduce_mean,
)
from trainlib.primitives.recurrent import gru, lstm, rnn
from trainlib.primitives.shapes import concat, flatten, flip, layout, pad, reshape, slice, split, transpose

_ALL: tuple[Primitive, ...] = (
    conv1d.PRIMITIVE,
    conv2d.PRIMITIVE,
    pointwise.PRIMITIVE,
    depthwise.PRIMITIVE,
    conv_transpose2d.PRIMITIVE,
    linear.PRIMITIVE,
    *elementwise.PRIMITIVES,
    *arithmetic.PRIMITIVES,
    prelu.PRIMITIVE,
    flatten.PRIMITIVE,
    broadcast_add.PRIMITIVE,
    expand.PRIMITIVE,
    parameter.PRIMITIVE,
    position.PRIMITIVE,
    class_token.PRIMITIVE,
    rnn.PRIMITIVE,
    gru.PRIMITIVE,
    lstm.PRIMITIVE,
    embedding.PRIMITIVE,
    matmul.PRIMITIVE,
    mhsa.PRIMITIVE,
    softmax.PRIMITIVE,
    log_softmax.PRIMITIVE,
    concat.PRIMITIVE,
    split.PRIMITIVE,
    slice.PRIMITIVE,
    flip.PRIMITIVE,
    reshape.PRIMITIVE,
    transpose.PRIMITIVE,
    pad.PRIMITIVE,
    reduce_mean.MEAN,
    reduce_mean.SUM,
    reduce_max.MAX,
    reduce_max.MIN,
    interpolation.PRIMITIVE,
    avg_pool2d.PRIMITIVE,
    max_pool2d.PRIMITIVE,
    global_avg_pool.PRIMITIVE,
    batch_norm.PRIMITIVE,
    instance_norm.PRIMITIVE,
    group_norm.PRIMITIVE,
    layer_norm.PRIMITIVE,
    rms_norm.PRIMITIVE,
    *losses.PRIMITIVES,
    *optimizers.PRIMITIVES,
    # Put into the graph by its builder.
    layout.PRIMITIVE,
    accumulate.PRIMITIVE,
    gradient_accumulation.PRIMITIVE,
    weight_average.PRIMITIVE,
    gradient_clipping.VALUE,
    gradient_clipping.SQUARES,
    gradient_clipping.SCALE,
    gradient_clipping.APPLY,
)

PRIMITIVES: Mapping[str, Primitive] = MappingProxyType({primitive.name: primitive for primitive in _ALL})
"""Every primitive by name. A new one is an entry of a table, or a file and a line above."""

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
    here = name_here(name)
    cure = suggestion(name, known)
    if here is not None and here.partition(",")[0] in known:
        cure = f"'{here}' (known: {', '.join(known)})"
    raise UnsupportedLayerError(f"there is no {word} called '{name}'", where=where, cure=cure)


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
    """The step definition of an op: its reference and its lowering; UnsupportedLayerError if unknown.

    The lowering is that of the op's variant. An op with windows gets a definition that sees those parts of
    its tensors only.
    """
    primitive = PRIMITIVES.get(op.primitive)
    steps = primitive.steps if primitive is not None else ()
    variant = op.attributes.get(VARIANT)
    if variant is not None and isinstance(primitive, LayerPrimitive):
        steps = tuple(primitive.steps_in(variant, op.attributes).values())
    step = next((step for step in steps if step.name == op.step), None)
    if step is None and isinstance(primitive, LayerPrimitive):
        step = primitive.repeated(op.step)
    if step is not None:
        step = step if variant is None else step.lowered_as(variant)
        return windowed(step) if op.windows else step
    raise UnsupportedLayerError(
        f"primitive '{op.primitive}' has no step {op.step}",
        where=op.name,
        cure="primitives: " + ", ".join(sorted(PRIMITIVES)),
    )


def lowering_of(op: Op) -> StepLowering:
    """How the op becomes tiles."""
    return step_of(op).lowering


def matmul_of(op: Op, tensors: Mapping[str, Tensor], codegen: str, chosen: str = "") -> str:
    """The matmul kernel an op runs: `chosen`, or its default, for numbers as wide as its own.

    Empty for an op without a matmul. Raises InputError for an unknown kernel and one for other numbers.
    """
    default = lowering_of(op).default_kernel(op)
    if not default:
        return ""
    element_bytes = _element_bytes(op, tensors)
    if chosen:
        return LIBRARY.named(codegen, chosen, element_bytes)
    return default_matmul(codegen, default, element_bytes)


def matmuls_of(op: Op, tensors: Mapping[str, Tensor], codegen: str) -> tuple[str, ...]:
    """The matmul kernels of a codegen for numbers as wide as those of an op; none for an op without."""
    default = lowering_of(op).default_kernel(op)
    return LIBRARY.sized_like(codegen, default, _element_bytes(op, tensors)) if default else ()


def _element_bytes(op: Op, tensors: Mapping[str, Tensor]) -> int:
    return tensors[op.outputs[0]].dtype.bytes

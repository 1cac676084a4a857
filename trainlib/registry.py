# SPDX-License-Identifier: Apache-2.0
"""The one place where primitives are listed, and how an op finds its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TypeVar

from configs.errors import UnsupportedLayerError
from configs.suggest import suggestion
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import StepLowering
from trainlib.kernels.catalogue import default_matmul
from trainlib.kernels.library import LIBRARY
from trainlib.names_elsewhere import name_here
from trainlib.primitives.definition import (
    VARIANT,
    InternalPrimitive,
    LayerPrimitive,
    LossPrimitive,
    OptimizerPrimitive,
    Primitive,
    Step,
)
from trainlib.primitives.lowering.dequantised import dequantised, reads_scales
from trainlib.primitives.lowering.windows import windowed

_FILES = (
    "trainlib.primitives.contractions.conv1d",
    "trainlib.primitives.contractions.conv2d",
    "trainlib.primitives.contractions.pointwise",
    "trainlib.primitives.contractions.depthwise",
    "trainlib.primitives.contractions.conv_transpose2d",
    "trainlib.primitives.contractions.linear",
    "trainlib.primitives.elementwise.table",
    "trainlib.primitives.elementwise.arithmetic",
    "trainlib.primitives.elementwise.prelu",
    "trainlib.primitives.shapes.flatten",
    "trainlib.primitives.elementwise.broadcasting",
    "trainlib.primitives.elementwise.trained",
    "trainlib.primitives.attention.class_token",
    "trainlib.primitives.recurrent.cells",
    "trainlib.primitives.attention.embedding",
    "trainlib.primitives.contractions.matmul",
    "trainlib.primitives.attention.mhsa",
    "trainlib.primitives.attention.softmax",
    "trainlib.primitives.attention.log_softmax",
    "trainlib.primitives.shapes.joining",
    "trainlib.primitives.shapes.slice",
    "trainlib.primitives.shapes.flip",
    "trainlib.primitives.shapes.reshape",
    "trainlib.primitives.shapes.transpose",
    "trainlib.primitives.shapes.pad",
    "trainlib.primitives.pooling.reductions",
    "trainlib.primitives.pooling.interpolation",
    "trainlib.primitives.pooling.avg_pool2d",
    "trainlib.primitives.pooling.max_pool2d",
    "trainlib.primitives.pooling.global_avg_pool",
    "trainlib.primitives.norms.table",
    "trainlib.primitives.losses.table",
    "trainlib.primitives.optimizers.table",
    # Put into the graph by its builder.
    "trainlib.primitives.shapes.layout",
    "trainlib.primitives.optimizers.gradient_ops",
)
"""Every file of primitives: of one of its own name (`PRIMITIVE`), or of several (`PRIMITIVES`)."""

_SEVERAL = (
    "trainlib.primitives.elementwise.table",
    "trainlib.primitives.losses.table",
    "trainlib.primitives.optimizers.table",
    "trainlib.primitives.optimizers.gradient_ops",
    "trainlib.primitives.pooling.reductions",
    "trainlib.primitives.elementwise.arithmetic",
    "trainlib.primitives.recurrent.cells",
    "trainlib.primitives.elementwise.trained",
    "trainlib.primitives.norms.table",
    "trainlib.primitives.elementwise.broadcasting",
    "trainlib.primitives.shapes.joining",
)
"""Those of several, in the order in which a name that is no file's is looked for in them."""


class _Registry(Mapping[str, Primitive]):
    """All primitives in the order of `_FILES`; a file is imported when a primitive of it may be asked for."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Primitive]] = {}
        """By file."""
        self._asked: dict[str, Primitive] = {}

    def _of(self, file: str) -> dict[str, Primitive]:
        if file not in self._known:
            module = import_module(file)
            listed = module.PRIMITIVES if file in _SEVERAL else (module.PRIMITIVE,)
            self._known[file] = {primitive.name: primitive for primitive in listed}
        return self._known[file]

    def __getitem__(self, name: str) -> Primitive:
        if name not in self._asked:
            self._asked[name] = self._found(name)
        return self._asked[name]

    def _found(self, name: str) -> Primitive:
        named = (file for file in _FILES if file.endswith(f".{name}"))
        for file in (*named, *_SEVERAL):
            if name in self._of(file):
                return self._known[file][name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for file in _FILES for name in self._of(file))

    def __len__(self) -> int:
        return sum(len(self._of(file)) for file in _FILES)


PRIMITIVES: Mapping[str, Primitive] = _Registry()
"""Every primitive by name. A new one is an entry of a table, or a file and a line above."""

_Kind = TypeVar("_Kind", LayerPrimitive, LossPrimitive, OptimizerPrimitive)


def _find(kind: type[_Kind], word: str, name: str, where: str | None) -> _Kind:
    registered = PRIMITIVES.get(name)
    if isinstance(registered, kind):
        return registered
    names = sorted(
        key
        for key, primitive in PRIMITIVES.items()
        if isinstance(primitive, kind) and not getattr(primitive, "internal", False)
    )
    here = name_here(name)
    cure = suggestion(name, names)
    if here is not None and here.partition(",")[0] in names:
        cure = f"use '{here}' (known: {', '.join(names)})"
    raise UnsupportedLayerError(f"unknown {word} '{name}'", where=where, cure=cure)


def layer_primitive(name: str, where: str | None = None) -> LayerPrimitive:
    """The layer type `name`; UnsupportedLayerError with the nearest name if there is none."""
    return _find(LayerPrimitive, "layer type", name, where)


def is_over_alignments(name: str) -> bool:
    """Whether this is the connectionist temporal classification (Graves et al. 2006), however written."""
    return name.lower().replace("_", "").removesuffix("loss") == "ctc"


def loss_primitive(name: str, where: str | None = None) -> LossPrimitive:
    """The loss `name`; UnsupportedLayerError with the nearest name, or the reason, if there is none."""
    if is_over_alignments(name):
        raise UnsupportedLayerError(
            f"{name} sums over all alignments in time, which is not supported",
            where=where,
            cure="use cross_entropy with the option labels: hard, and one aligned label per time step",
        )
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
    its tensors only; one that reads scales, a definition that converts its weights first.
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
        step = step.like(op) if variant is None else step.lowered_as(variant)
        step = windowed(step) if op.windows else step
        return dequantised(step) if reads_scales(op) else step
    raise UnsupportedLayerError(
        f"primitive '{op.primitive}' has no step {op.step}",
        where=op.name,
        cure=f"use one of the primitives {', '.join(sorted(PRIMITIVES))}",
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

# SPDX-License-Identifier: Apache-2.0
"""Variants of the lowering of a step: what may be chosen, op by op, after the graph is built.

A variant changes how an op becomes tiles and what that costs, not what the op reads, writes and computes, so
every op may be given another one without a change to its neighbours. The steps of a convolution unroll their
images by the cores, by the DMA or not at all (the layer's option ``im2col``); other steps have the lowering
described for them (`DEFAULT`) and, where their primitive registers one, that of PULP-TrainLib
(`AS_PUBLISHED`) or another (`trainlib.primitives.definition.Step.variants`).

What PULP-TrainLib does in another graph (reads the input again where we save a mask, copies where we pass on
a view) is said of a layer, or of the whole model, before the graph is built (`AsPublished`), and is no choice
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from configs.errors import InputError
from configs.suggest import check_known
from configs.values import replace
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.primitives.definition import AS_PUBLISHED, DEFAULT, VARIANT, LayerPrimitive, Primitive
from trainlib.registry import PRIMITIVES, step_of

IM2COL = "im2col"
"""The attribute that says how a convolution unrolls its images."""

WAYS = ("cores", "dma", "none")
"""By an im2row kernel, by 2D transfers of the DMA, or not at all: direct loops without a matmul."""


@cache
def known_variants() -> tuple[str, ...]:
    """Every name a variant has anywhere."""
    registered = (name for primitive in PRIMITIVES.values() for name in primitive.variant_names)
    return tuple(dict.fromkeys((*WAYS, DEFAULT, AS_PUBLISHED, *registered)))


def variants_of(op: Op) -> tuple[str, ...]:
    """The variants an op may take, its default first; none if there is no choice.

    The DMA unrolls images of one group only, and none of a 1D convolution.
    """
    if IM2COL in op.attributes:
        by_dma = op.attributes["groups"] == 1 and op.attributes.get("rank", 2) == 2
        return WAYS if by_dma else tuple(way for way in WAYS if way != "dma")
    offered = step_of(op).offered(op.attributes)
    return (DEFAULT, *offered) if offered else ()


def own_variant(op: Op) -> str:
    """The variant the op is in, as its layer says; empty for an op that has no other."""
    if IM2COL in op.attributes:
        return str(op.attributes[IM2COL])
    return str(op.attributes.get(VARIANT, DEFAULT if variants_of(op) else ""))


def with_variant(op: Op, name: str) -> Op:
    """The op in a variant. Raises `InputError` if it cannot be."""
    variants = variants_of(op)
    if not variants:
        raise InputError(
            "this op has no variant that can be chosen for it alone",
            where=op.name,
            cure=_before_the_graph(op),
        )
    if name not in variants:
        several = name in WAYS and op.attributes.get("groups", 1) > 1
        why = " for a convolution with several groups" if several else ""
        raise InputError(
            f"unknown variant {name!r}{why}", where=op.name, cure=f"use one of {', '.join(variants)}"
        )
    if IM2COL in op.attributes:
        return replace(op, attributes={**op.attributes, IM2COL: name})
    others = {key: value for key, value in op.attributes.items() if key != VARIANT}
    return replace(op, attributes=others if name == DEFAULT else {**others, VARIANT: name})


def _before_the_graph(op: Op) -> str:
    primitive = PRIMITIVES.get(op.primitive)
    if isinstance(primitive, LayerPrimitive) and primitive.published is not None:
        return f"use --variant {AS_PUBLISHED} for the whole model, or 'variant: {AS_PUBLISHED}' of the layer"
    return f"remove 'variant' or 'im2col' of {op.name} from the file, or its --variant or --im2col"


def variant_in(op: Op, variants: Mapping[str, str]) -> str | None:
    """What `variants`, by op name or else by step, say of an op; None if they say nothing of it.

    Of a step they speak of those ops only that have such a variant.
    """
    if op.name in variants:
        return variants[op.name]
    return variants.get(op.step) if variants.get(op.step) in variants_of(op) else None


def with_variants(graph: TrainingGraph, variants: Mapping[str, str]) -> TrainingGraph:
    """The graph with variants for ops (``conv1.FW``) or steps (``WG``): all of its ops that have such a one.

    Raises `InputError` for names the graph has not and for variants an op, or any op of a step, has not.
    """
    if not variants:
        return graph
    names = {op.name for op in graph.ops}
    choosing = [op for op in graph.ops if variants_of(op)]
    choices = dict.fromkeys([*(op.name for op in choosing), *(op.step for op in choosing)])
    for name, variant in variants.items():
        if name not in names:
            unknown = f"{name!r} is not an op or step whose implementation can be chosen"
            check_known(name, choices, unknown, graph.name)
            offered = dict.fromkeys(each for op in choosing if op.step == name for each in variants_of(op))
            if variant not in offered:
                raise InputError(
                    f"no op of the step has the variant {variant!r}",
                    where=name,
                    cure=f"use one of {', '.join(offered)}",
                )
    ops = ((op, variant_in(op, variants)) for op in graph.ops)
    return replace(graph, ops=tuple(op if name is None else with_variant(op, name) for op, name in ops))


def variants_text(primitive: Primitive) -> str:
    """The variants of a primitive, each with the steps that differ, or the options it sets."""
    published = primitive.published if isinstance(primitive, LayerPrimitive) else None
    texts = []
    for name in primitive.variant_names:
        words = [step.name for step in primitive.steps if name in step.variants]
        if name == AS_PUBLISHED and published is not None:
            words += [step.name for step in published.steps if step.name not in words]
            words += [f"{key}={value}" for key, value in published.options.items()]
        texts.append(f"{name} ({' '.join(words)})")
    return ", ".join(texts)

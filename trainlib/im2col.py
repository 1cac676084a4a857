"""How the steps of a convolution unroll their images: what may be chosen, op by op, after the graph is built.

A layer says it with its option ``im2col``, which all its ops carry as an attribute. It changes how an op
becomes tiles and what that costs, not what the op reads, writes and computes, so every op may be given
another way without a change to its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from configs.errors import InputError
from configs.suggest import suggestion
from trainlib.graph import Op, TrainingGraph

ATTRIBUTE = "im2col"

WAYS = ("cores", "dma", "none")
"""By an im2row kernel, by 2D transfers of the DMA, or not at all: direct loops without a matmul."""


def ways_of(op: Op) -> tuple[str, ...]:
    """The ways an op may go, of `WAYS`; none if it unrolls nothing. The DMA knows one group only."""
    if ATTRIBUTE not in op.attributes:
        return ()
    return WAYS if op.attributes["groups"] == 1 else tuple(way for way in WAYS if way != "dma")


def own_way(op: Op) -> str:
    """The way the layer says; empty for an op that unrolls nothing."""
    return str(op.attributes.get(ATTRIBUTE, ""))


def with_way(op: Op, way: str) -> Op:
    """The op going a way. Raises `InputError` if it cannot."""
    known = ways_of(op)
    if not known:
        raise InputError("unrolls no image, so there is no im2col to choose", where=op.name)
    if way not in known:
        why = " with several groups" if way in WAYS else ""
        raise InputError(
            f"no im2col {way!r}{why}",
            where=op.name,
            cure=f"one of {', '.join(known)}",
        )
    return replace(op, attributes={**op.attributes, ATTRIBUTE: way})


def way_in(op: Op, ways: Mapping[str, str]) -> str | None:
    """The way that `ways`, by op name or else by step, give an op; None if they say nothing of it."""
    if op.name in ways:
        return ways[op.name]
    return ways.get(op.step) if ways_of(op) else None


def with_ways(graph: TrainingGraph, ways: Mapping[str, str]) -> TrainingGraph:
    """The graph with ways for ops (``conv1.FW``) or steps (``WG``); a step means all ops that have a choice.

    Raises `InputError` for names the graph has not and for ways an op cannot go.
    """
    if not ways:
        return graph
    names = {op.name for op in graph.ops}
    choosing = [op for op in graph.ops if ways_of(op)]
    known = dict.fromkeys([*(op.name for op in choosing), *(op.step for op in choosing)])
    for name in ways:
        if name not in names and name not in known:
            raise InputError(
                f"no op or step {name!r} to choose an im2col for",
                where=graph.name,
                cure=suggestion(name, known),
            )
    ops = ((op, way_in(op, ways)) for op in graph.ops)
    return replace(graph, ops=tuple(op if way is None else with_way(op, way) for op, way in ops))

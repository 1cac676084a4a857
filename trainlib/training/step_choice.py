# SPDX-License-Identifier: Apache-2.0
"""Some steps of a training iteration only: inference, or everything up to the gradients."""

from __future__ import annotations

from collections.abc import Sequence

from configs.errors import InputError
from configs.model_file import LayerSpec, ModelSpec
from configs.suggest import check_known
from configs.values import replace
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.primitives.definition import is_forward

STEPS = ("fw", "loss", "ig", "wg", "upd")
"""Words for the steps of an iteration: forward, loss, input gradients, weight gradients, update."""

_OF_THE_UPDATE = ("UPD", "CLIP_VALUE", "SQUARES", "SCALE", "APPLY", "ACCUMULATE", "UPD_AVERAGE")

STATISTICS = ("batch_norm", "instance_norm")
"""Layers that normalise with statistics of the batch in training, and with running ones in inference."""


def parse_steps(text: str) -> tuple[str, ...]:
    """The words of ``fw,ig`` in the order of an iteration; () for all of them.

    Gradients need the loss, so that it is taken along. Raises `InputError` for another word, and for steps
    without the forward one.
    """
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        check_known(word, STEPS, f"unknown step {word!r}", "--steps")
    if "fw" not in words:
        raise InputError(
            "the list of steps must begin with fw, the forward step",
            where="--steps",
            cure=f"use fw,{','.join(words)}",
        )
    if {"ig", "wg"} & set(words):
        words.append("loss")
    if "upd" in words and "wg" not in words:
        raise InputError(
            "step upd (update) needs wg (weight gradients)", where="--steps", cure="use fw,ig,wg,upd"
        )
    chosen = tuple(word for word in STEPS if word in words)
    return () if chosen == STEPS else chosen


def word_of(op: Op) -> str:
    """Which of `STEPS` an op belongs to."""
    if is_forward(op.step):
        return "fw"
    if op.step == "LOSS":
        return "loss"
    if op.step in _OF_THE_UPDATE:
        return "upd"
    return "wg" if op.step.startswith("WG") else "ig"


def as_in_inference(spec: ModelSpec) -> ModelSpec:
    """The network as it computes once trained: no dropout, norms with their running statistics."""
    gone: dict[str, str] = {}
    layers: list[LayerSpec] = []
    before = last_kept = spec.input_name
    for layer in spec.layers:
        wanted = layer.inputs if layer.inputs is not None else (before,)
        inputs = tuple(gone.get(name, name) for name in wanted)
        before = layer.name
        if layer.type == "dropout":
            gone[layer.name] = inputs[0]
            continue
        follows = layer.inputs is None and inputs == (last_kept,)
        last_kept = layer.name
        options = dict(layer.attributes)
        if layer.type in STATISTICS and (layer.type == "batch_norm" or options.get("running")):
            options["fixed_statistics"] = True
        layers.append(replace(layer, inputs=None if follows else inputs, attributes=options, recompute=False))
    losses = [
        replace(loss, of=gone.get(loss.of or "", loss.of), target=gone.get(loss.target or "", loss.target))
        for loss in spec.losses
    ]
    return replace(spec, layers=tuple(layers), loss=losses[0], more_losses=tuple(losses[1:]))


def only_steps(graph: TrainingGraph, steps: Sequence[str]) -> TrainingGraph:
    """The graph with the ops of these steps alone, and the tensors they know.

    Raises `InputError` where one of them reads what a step that is left out makes.
    """
    ops = tuple(op for op in graph.ops if word_of(op) in steps)
    makers = {name: op for op in graph.ops for name in op.outputs}
    written = {name for op in ops for name in op.outputs}
    for op in ops:
        for name in op.inputs:
            maker = makers.get(name)
            if maker is not None and name not in written:
                raise InputError(
                    f"{op.name} reads '{name}', which {maker.name} computes, a step that --steps leaves out",
                    where="--steps",
                    cure=f"add step {word_of(maker)}",
                )
    return graph.of_ops(ops, [*graph.inputs, *graph.outputs])

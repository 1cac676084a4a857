# SPDX-License-Identifier: Apache-2.0
"""What `fit` may change of a model only if it is allowed to, as numbers change with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from configs.errors import PulptrainError
from configs.model_file import ModelSpec
from configs.suggest import check_known
from configs.values import replace
from scheduler.memory.host_memory import tensor_bytes
from trainlib.training.backward_reads import readable
from trainlib.training.phases import build_training_phases

ACCUMULATE = "accumulate"
STATES = {"fp16-states": "fp16", "bf16-states": "bf16"}
CHANGES = (ACCUMULATE, *STATES)
"""Smaller mini-batches whose gradients are averaged; optimizer states in 16 bits."""


@dataclass(frozen=True, slots=True)
class Way:
    """A model, and what was changed of it and how."""

    spec: ModelSpec
    changed: tuple[str, ...] = ()
    how: tuple[str, ...] = ()


def parse_changes(text: str | None) -> tuple[str, ...]:
    """Some of `CHANGES` from ``accumulate,fp16-states``. Raises `InputError` for other words."""
    words = tuple(word.strip() for word in text.split(",")) if text is not None else ()
    for word in words:
        check_known(word, CHANGES, f"unknown change {word!r}", "--allow")
    return words


def ways_of(spec: ModelSpec, allowed: tuple[str, ...]) -> list[Way]:
    """The model as it is, and changed such that its tensors are fewer bytes."""
    ways = [Way(spec)]
    times = int(spec.optimizer.options.get("accumulate") or 1)
    for batch in range(1, spec.batch if ACCUMULATE in allowed else 1):
        if spec.batch % batch == 0:
            changed = _with(replace(spec, batch=batch), "accumulate", times * spec.batch // batch)
            ways += _smaller(ways[0], Way(changed, (f"batch of {spec.batch}",), (f"{ACCUMULATE} {batch}",)))
    for word in sorted(STATES.keys() & set(allowed)):
        for way in [way for way in ways if not way.how or way.how[-1] not in STATES]:
            changed = _with(way.spec, "state_dtype", STATES[word])
            ways += _smaller(way, Way(changed, (*way.changed, "optimizer states"), (*way.how, word)))
    return ways


def from_inputs(way: Way) -> list[Way]:
    """The way with gradients computed from inputs, of all layers that have another choice; none if none has.

    Outputs then end with the forward pass, and inputs are computed again when they are needed: a smaller peak
    where much is recomputed, at more cycles. Numbers are the same, of ELU to rounding.
    """
    spec = way.spec
    chosen = {layer.name for layer in spec.layers if {"input"} < {*readable(layer, spec.variant)}}
    layers = (replace(one, backward_reads="input") if one.name in chosen else one for one in spec.layers)
    spec = replace(spec, layers=tuple(layers))
    changed = (*way.changed, "gradients of activations"), (*way.how, "from inputs")
    return [Way(spec, *changed)] if spec != way.spec else []


def _with(spec: ModelSpec, option: str, value: Any) -> ModelSpec:
    options = {**spec.optimizer.options, option: value}
    return replace(spec, optimizer=replace(spec.optimizer, options=options, node=None))


def _smaller(before: Way, after: Way) -> list[Way]:
    """The way after a change, if it can be and has fewer bytes."""
    try:
        sizes = [
            max(tensor_bytes(graph) for graph in build_training_phases(way.spec).graphs)
            for way in (before, after)
        ]
    except PulptrainError:
        return []
    return [after] if sizes[1] < sizes[0] else []

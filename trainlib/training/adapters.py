# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters (LoRA): a frozen layer, and a trained product beside it out of existing primitives.

y = W x + alpha / rank · B A x. A has `rank` output channels and the geometry of the layer, B is 1x1. A starts
uniform in ±1/sqrt(fan_in) and B at zero, so that training starts from the frozen layer. After E. Hu et al.,
LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022. Attention has its products inside
(`trainlib.primitives.attention.mhsa`), on the projections the paper adapts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from configs.errors import ConfigError, UnsupportedLayerError
from configs.model_file import AdapterSchema, AdapterSpec, LayerSpec, adapter_spec
from configs.schema import validate_values
from configs.values import replace
from trainlib.ir.graph import Initial
from trainlib.primitives.attention.attention_projections import ENDS, PROJECTIONS
from trainlib.primitives.definition import ZEROS
from trainlib.training.builder import GraphBuilder
from trainlib.training.built_layer import inserted, where_of

_OUTPUTS = {"linear": "out_features", "pointwise": "out_channels", "conv2d": "out_channels"}
"""Layer types that an adapter stands beside, and the option that says how many channels they make."""

ATTENTION = "mhsa"

ADAPTABLE = (*_OUTPUTS, ATTENTION)
"""Layer types that can have an adapter."""


def adapter_of(said: Mapping[str, Any] | None, where: str) -> AdapterSpec | None:
    """The adapter of a layer alone, from the values of its option. Raises ConfigError."""
    return None if said is None else adapter_spec(validate_values(AdapterSchema, said, "adapter", where))


def add_adapted(builder: GraphBuilder, spec: LayerSpec, inputs: Sequence[str]) -> tuple[str, ...]:
    """The layer, frozen, and its adapter (``name.down``, ``name.up``); returns the sum of the two.

    Raises UnsupportedLayerError for a layer that can have none, ConfigError for options that contradict it.
    """
    assert spec.adapter is not None
    where = where_of(spec)
    _check(spec, where)
    if spec.type == ATTENTION:
        names = (f"w{name}{end}" for name in spec.adapter.projections or PROJECTIONS for end in ENDS)
        return builder.add_layer(replace(spec, trainable=tuple(names)), inputs)
    option, rank = _OUTPUTS[spec.type], spec.adapter.rank
    frozen = replace(spec, adapter=None, trainable=False)
    (straight,) = builder.add_layer(frozen, inputs)
    down = {**spec.attributes, option: rank} | ({"bias": False} if spec.attributes.get("bias") else {})
    (inner,) = builder.add_layer(inserted(spec, "down", spec.type, down), inputs)
    weight = builder.tensors[f"{spec.name}.down.weight"]
    fan_in = prod(weight.shape) // rank
    builder.tensors[weight.name] = replace(weight, initial=Initial("uniform", fan_in**-0.5))
    if spec.adapter.alpha != rank:
        factor = {"factor": spec.adapter.alpha / rank}
        (inner,) = builder.add_layer(inserted(spec, "scale", "scale", factor), [inner])
    kind = "linear" if spec.type == "linear" else "pointwise"
    (low_rank,) = builder.add_layer(
        inserted(spec, "up", kind, {_OUTPUTS[kind]: spec.attributes[option]}), [inner]
    )
    weight = builder.tensors[f"{spec.name}.up.weight"]
    builder.tensors[weight.name] = replace(weight, initial=ZEROS)
    return builder.add_layer(inserted(spec, "sum", "add", {}), [straight, low_rank])


def _check(spec: LayerSpec, where: str) -> None:
    if spec.type not in ADAPTABLE or spec.attributes.get("groups", 1) != 1:
        grouped = " with groups" if spec.type in ADAPTABLE else ""
        cure = f"remove the adapter, or use {', '.join(ADAPTABLE)} without groups"
        raise UnsupportedLayerError(
            f"a layer of type {spec.type}{grouped} cannot have an adapter", where=where, cure=cure
        )
    projections = spec.adapter.projections if spec.adapter is not None else ()
    if len(set(projections)) < len(projections):
        raise ConfigError(
            "'projections' of the adapter lists a projection twice",
            where=where,
            cure="name every projection once",
        )
    if projections and spec.type != ATTENTION:
        raise ConfigError(
            f"{spec.type} has no projections: 'projections' of an adapter is for {ATTENTION}",
            where=where,
            cure="remove 'projections'",
        )
    if spec.weights_of is not None:
        raise ConfigError(
            "a layer with an adapter cannot use the weights of another layer",
            where=where,
            cure="remove 'weights_of' or the adapter",
        )
    if spec.trainable is not True or spec.update_channels is not None:
        key = "update_channels" if spec.update_channels is not None else "trainable"
        raise ConfigError(
            f"'{key}' cannot be used with 'adapter', which freezes the weights of the layer",
            where=where,
            cure=f"remove '{key}' or 'adapter'",
        )

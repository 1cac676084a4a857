# SPDX-License-Identifier: Apache-2.0
"""Sparse update: which layers are trained, and layers of which only some output channels are.

WG and UPD of such a layer see those channels only (`trainlib.ir.graph.TensorWindow`): fewer
multiply-accumulates, a smaller gradient and smaller optimizer states; the output gradient and the weights are
not copied. After J. Lin et al., On-Device Training Under 256KB Memory, NeurIPS 2022 (there the first input
channels).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ConfigError, ShapeError, UnsupportedLayerError
from configs.model_file import LayerSpec, ModelSpec
from configs.values import Struct, replace
from trainlib.ir.graph import Op, TensorWindow
from trainlib.ir.parameters import PARAMETER_NAMES
from trainlib.training.builder import GraphBuilder
from trainlib.training.built_layer import BuiltLayer, where_of

SUPPORTED = ("conv2d", "depthwise", "linear", "pointwise")
"""Layer types whose output channels can be trained one by one."""


def frozen_layers(spec: ModelSpec, layers: Sequence[BuiltLayer]) -> ModelSpec:
    """The model with the layers frozen that its `train` leaves out; `layers` are those of a first build.

    Raises ConfigError if nothing is left to train in the layers named.
    """
    if spec.train is None:
        return spec
    with_parameters = [layer.spec.name for layer in layers if layer.has_own_parameters]
    named = tuple(with_parameters[-1:]) if spec.train == "last" else tuple(spec.train)
    if not set(named) & set(with_parameters):
        raise ConfigError(
            f"'train' names only layers without parameters: {', '.join(named) or 'none'}",
            where=spec.where,
            cure=f"name layers with parameters: {', '.join(with_parameters)}",
        )
    built = {layer.spec.name: layer for layer in layers}
    chosen = tuple(
        layer if layer.name in named else _frozen(layer, built[layer.name], named) for layer in spec.layers
    )
    return replace(spec, layers=chosen, train=None)


def _frozen(layer: LayerSpec, built: BuiltLayer, named: Sequence[str]) -> LayerSpec:
    """The layer with nothing trained but what it shares with a layer that is `named`."""
    lent = tuple(
        name
        for role, name in ((role, PARAMETER_NAMES.get(role, role)) for role in built.trained)
        if name in layer.computed or (role in built.shared and built.roles[role].rpartition(".")[0] in named)
    )
    return replace(layer, trainable=lent or False, adapter=None, update_channels=None)


class _Channels(Struct, frozen=True):
    """The trained output channels of one layer, and along which axes they lie."""

    layer: BuiltLayer
    first: int
    last: int
    weight_axis: int
    image_axis: int

    def window(self, axis: int) -> TensorWindow:
        return TensorWindow(axis, self.first, self.last)

    def part_of(self, role: str) -> TensorWindow:
        """The trained part of parameter `role`."""
        return self.window(self.weight_axis if role == "w" else 0)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of a layer that has the trained channels only."""
        count = self.last - self.first
        changed = {"co": count}
        if self.layer.primitive.name == "depthwise":
            changed |= {"ci": count, "groups": count}
        return {**self.layer.plan.attributes, **changed}

    @property
    def windows(self) -> dict[str, TensorWindow]:
        """What WG sees of the output gradient (and the input, of a depthwise layer)."""
        seen = {"dy": self.window(self.image_axis)}
        if self.layer.primitive.name == "depthwise":
            seen["x"] = self.window(self.image_axis)
        return seen


def restrict_updates(builder: GraphBuilder, gradients: Mapping[str, str]) -> dict[str, TensorWindow]:
    """Cut the weight gradients of layers with `update_channels` down to these, in place.

    Returns trained weight -> the part of it that is updated. To be called between the backward pass and the
    updates. Raises UnsupportedLayerError and ShapeError with the layer's place.
    """
    parts: dict[str, TensorWindow] = {}
    for layer in builder.layers:
        if layer.spec.update_channels is None:
            continue
        channels = _channels(builder, layer)
        trained = [role for role in layer.trained if layer.roles[role] in gradients]
        for role in trained:
            window = channels.part_of(role)
            parts[layer.roles[role]] = window
            gradient = builder.tensors[gradients[layer.roles[role]]]
            builder.tensors[gradient.name] = replace(gradient, shape=window.shape(gradient.shape))
        written = {gradients[layer.roles[role]] for role in trained}
        builder.ops = [_restricted(op, channels) if written & set(op.outputs) else op for op in builder.ops]
    return parts


def _channels(builder: GraphBuilder, layer: BuiltLayer) -> _Channels:
    spec, attributes = layer.spec, layer.plan.attributes
    assert spec.update_channels is not None
    kind, where = layer.primitive.name, where_of(spec)
    if kind not in SUPPORTED or (kind == "conv2d" and attributes["groups"] != 1):
        grouped = " with groups" if kind in SUPPORTED else ""
        raise UnsupportedLayerError(
            f"update_channels: {spec.type}{grouped} cannot train only some of its channels",
            where=where,
            cure=f"remove it (it is for {', '.join(SUPPORTED)} without groups), or set trainable: false",
        )
    first, last = spec.update_channels
    if last > attributes["co"]:
        raise ShapeError(
            f"update_channels: [{first}, {last}] needs {last} output channels, but the layer has "
            f"{attributes['co']}",
            where=where,
            cure=f"use [start, stop] with stop at most {attributes['co']}; stop is not included",
        )
    output = builder.tensors[layer.roles["y"]]
    channels_last = kind == "linear" or output.layout == "HWC"
    image_axis = len(output.shape) - 1 if channels_last else 1
    return _Channels(layer, first, last, int(bool(attributes.get("sources_first"))), image_axis)


def _restricted(op: Op, channels: _Channels) -> Op:
    return replace(op, attributes=channels.attributes, windows=channels.windows)

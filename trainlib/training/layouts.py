# SPDX-License-Identifier: Apache-2.0
"""Layouts of a network, layer by layer: which layers have a choice, and a model with other choices.

A layer reads and writes images in one layout; where its input has another one, the graph gets a transpose
(`trainlib.primitives.shapes.layout`), and so has the backward pass. What a layer without a choice wants
stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from configs.errors import InputError
from configs.model_file import ModelSpec
from configs.suggest import check_known
from configs.values import replace
from trainlib.ir.graph import LAYOUTS
from trainlib.registry import layer_primitive


def layers_with_choice(spec: ModelSpec) -> dict[str, str]:
    """Layer -> the layout the model says, of all layers that know every one. Raises as the builder."""
    written = {}
    for layer in spec.layers:
        layouts = layer_primitive(layer.type, layer.where).layouts
        if layouts is not None and set(LAYOUTS) <= set(layouts):
            written[layer.name] = layer.layout or spec.layout
    return written


def with_layouts(spec: ModelSpec, layouts: Mapping[str, str]) -> ModelSpec:
    """The model with other layouts for some layers. Raises `InputError` for one that cannot be."""
    choices = layers_with_choice(spec)
    for name, layout in layouts.items():
        if name not in choices:
            raise InputError(
                f"the layout of layer {name!r} cannot be chosen: it has only one",
                where=spec.name,
                cure=f"remove the choice; only {', '.join(choices)} can have another layout",
            )
        check_known(layout, LAYOUTS, f"unknown layout {layout!r}", name)
    layers = (replace(layer, layout=layouts.get(layer.name, layer.layout)) for layer in spec.layers)
    return replace(spec, layers=tuple(layers))

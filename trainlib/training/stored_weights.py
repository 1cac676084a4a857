# SPDX-License-Identifier: Apache-2.0
"""Which weights of a layer are stored in 8 bits: `frozen_weights` of the layer, or of the model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from configs.errors import ConfigError, InputError, UnsupportedLayerError
from trainlib.ir.graph import Tensor
from trainlib.ir.parameters import PARAMETER_NAMES
from trainlib.ir.steps import Array
from trainlib.primitives.attention.attention_projections import ENDS
from trainlib.primitives.lowering.dequantised import SCALE, is_stored, quantised
from trainlib.training.built_layer import BuiltLayer, where_of

KINDS = ("linear", "pointwise", "conv1d", "conv2d", "depthwise", "mhsa")
"""Layer types whose weights have their output channels first (`sources_first`: last) and can be stored so."""

MATRIX_AXES = 2
"""A parameter of at least so many is a weight, and no bias."""


def scales_of(layer: BuiltLayer, of_model: str | None) -> dict[str, tuple[int, ...]]:
    """Roles of the weights that are stored in 8 bits: the shape of their scales.

    What the model says holds for all frozen weights that can be stored so. Raises ConfigError and
    UnsupportedLayerError for a layer that asks for it and has a trained weight, another's, or none.
    """
    spec, where = layer.spec, where_of(layer.spec)
    if (spec.frozen_weights or of_model) is None:
        return {}
    weights = {
        role: parameter.shape
        for role, parameter in layer.plan.parameters.items()
        if layer.primitive.name in KINDS and len(parameter.shape) >= MATRIX_AXES and not role.endswith(ENDS)
    }
    if spec.frozen_weights is not None:
        key = f"frozen_weights: {spec.frozen_weights}"
        if not weights:
            raise UnsupportedLayerError(
                f"{key}: weights of {spec.type} cannot be stored in that format",
                where=where,
                cure=f"remove '{key}', or use a layer of type " + ", ".join(KINDS),
            )
        if set(weights) & layer.shared:
            raise ConfigError(
                f"{key} must be set in the layer that owns the weights",
                where=where,
                cure=f"move '{key}' to that layer",
            )
        trained = [PARAMETER_NAMES.get(role, role) for role in layer.trained if role in weights]
        if trained:
            raise ConfigError(
                f"{key} is only for frozen weights, but {', '.join(trained)} of this layer is trained",
                where=where,
                cure="add 'trainable: false' or an adapter, or remove 'frozen_weights'",
            )
    last = bool(layer.plan.attributes.get("sources_first"))
    return {
        role: (1, shape[1]) if last else (shape[0], *(1,) * (len(shape) - 1))
        for role, shape in weights.items()
        if role not in layer.trained and role not in layer.shared
    }


def with_codes(tensors: Mapping[str, Tensor], given: Mapping[str, Array]) -> dict[str, Array]:
    """Values in which weights that are stored in 8 bits are codes and scales, made of floats where needed.

    Raises InputError for codes without their scales.
    """
    result = dict(given)
    for name, array in given.items():
        if name not in tensors or not is_stored(tensors[name]) or array.shape != tensors[name].shape:
            continue
        if np.issubdtype(array.dtype, np.floating):
            scales = tensors[name + SCALE]
            result[name], result[name + SCALE] = quantised(array.astype(np.float32), scales.shape)
        elif np.issubdtype(array.dtype, np.integer) and name + SCALE not in given:
            raise InputError(
                f"'{name}' holds integers, but their scale '{name}{SCALE}' is missing",
                where="--values",
                cure="pass the weight as floats, or both arrays as --save-values writes them",
            )
    return result

"""Flatten: a view. The output is the input's bytes as a vector; no op, no cycles, no copy."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from trainlib.primitives.definition import LayerPrimitive, LayerShapes, Shape


def _shapes(attributes: Mapping[str, Any], input_shape: Shape, where: str) -> LayerShapes:
    return LayerShapes(output=(prod(input_shape),))


PRIMITIVE = LayerPrimitive(
    name="flatten",
    shapes=_shapes,
    batched=lambda attributes, arrays: arrays[0].reshape(len(arrays[0]), -1),
    torch_forward=lambda torch, attributes, x, w: torch.flatten(x, start_dim=1),
)

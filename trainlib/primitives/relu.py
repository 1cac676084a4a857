"""ReLU: y = max(x, 0); dx = dy where x > 0, else 0 (and 0 at x = 0, as PyTorch)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trainlib.graph import Op
from trainlib.primitives.calls import ElementwiseLowering
from trainlib.primitives.definition import LayerPrimitive, LayerShapes, Shape, Step
from trainlib.steps import Array


def _shapes(attributes: Mapping[str, Any], input_shape: Shape, where: str) -> LayerShapes:
    return LayerShapes(output=input_shape)


def _tile_forward(op: Op) -> Callable[[Sequence[Array]], Sequence[Array]]:
    return lambda arrays: (np.where(arrays[0] > 0, arrays[0], np.float32(0)),)


def _tile_backward(op: Op) -> Callable[[Sequence[Array]], Sequence[Array]]:
    return lambda arrays: (np.where(arrays[0] > 0, arrays[1], np.float32(0)),)


def _reference_forward(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return (np.maximum(arrays[0], 0),)


def _reference_backward(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, gradient = arrays
    return (gradient * (np.sign(x).clip(min=0)),)


PRIMITIVE = LayerPrimitive(
    name="relu",
    shapes=_shapes,
    batched=lambda attributes, arrays: np.maximum(arrays[0], 0),
    torch_forward=lambda torch, attributes, x, w: torch.relu(x),
    forward=Step(("x",), ("y",), _reference_forward, ElementwiseLowering("relu_fw", _tile_forward)),
    input_gradient=Step(
        ("x", "dy"), ("dx",), _reference_backward, ElementwiseLowering("relu_bw", _tile_backward)
    ),
)

"""GELU: y = x · Phi(x), Phi the normal distribution function, in three forms.

``erf`` is exact. ``tanh`` is x/2 · (1 + tanh(u)), u = sqrt(2/pi) · (x + 0.044715 x³). ``pulp_rational`` is
PULP-TrainLib's: the tanh form with its rational tanh, clamped to ±1. The library has FW only; IG is the
derivative of the form itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import erf, erfc, pi, sqrt
from typing import Any, Literal

import numpy as np

from configs.model_file import LayerSchema
from trainlib.graph import Op
from trainlib.primitives.definition import Example, InputCase, LayerPrimitive, Refused, Step, Values
from trainlib.primitives.elementwise.activations import (
    GELU_CUBIC,
    GELU_SLOPE,
    Numbers,
    lowering,
    rational_tanh,
    rational_tanh_slope,
    same_shape,
    stable_sigmoid,
)
from trainlib.steps import Array

_KERNELS = {"erf": "gelu_erf", "tanh": "gelu_tanh", "pulp_rational": "gelu"}


class _Schema(LayerSchema):
    form: Literal["erf", "tanh", "pulp_rational"] = "erf"


def _normal(x: Array) -> Array:
    """Phi(x), by erfc so that it keeps its digits on the left."""
    scaled = (-x.astype(np.float64) / sqrt(2)).ravel()
    return np.array([erfc(value) for value in scaled]).reshape(x.shape) / 2


def _tile_forward(op: Op) -> Numbers:
    form = op.attributes["form"]

    def forward(x: Array) -> Array:
        if form == "erf":
            return (x * _normal(x)).astype(np.float32)
        u = np.float32(GELU_SLOPE) * (x + np.float32(GELU_CUBIC) * x * x * x)
        # 1 + tanh(u) = 2 · sigmoid(2u)
        return x * stable_sigmoid(2 * u) if form == "tanh" else x / 2 * (1 + rational_tanh(u))

    return forward


def _tile_backward(op: Op) -> Numbers:
    form = op.attributes["form"]

    def backward(x: Array, dy: Array) -> Array:
        if form == "erf":
            density = np.exp(-x * x / 2) / np.float32(sqrt(2 * pi))
            return (dy * (_normal(x) + x * density)).astype(np.float32)
        u = np.float32(GELU_SLOPE) * (x + np.float32(GELU_CUBIC) * x * x * x)
        u_slope = np.float32(GELU_SLOPE) * (1 + np.float32(3 * GELU_CUBIC) * x * x)
        if form == "tanh":
            s = stable_sigmoid(2 * u)
            gradient: Array = dy * (s + 2 * x * s * (1 - s) * u_slope)
        else:
            gradient = dy * ((1 + rational_tanh(u)) / 2 + x / 2 * rational_tanh_slope(u) * u_slope)
        return gradient

    return backward


def _inner(op: Op, x: Array) -> tuple[Array, Array, Array, Array]:
    """u, du/dx, t = tanh-like(u), dt/du of the forms with a tanh, in float64."""
    u = GELU_SLOPE * (x + GELU_CUBIC * x**3)
    u_slope = GELU_SLOPE * (1 + 3 * GELU_CUBIC * x**2)
    if op.attributes["form"] == "tanh":
        t = np.tanh(u)
        return u, u_slope, t, 1 - t * t
    return u, u_slope, rational_tanh(u), rational_tanh_slope(u)


def _forward(op: Op, values: Values) -> Values:
    x = values["x"].astype(np.float64)
    if op.attributes["form"] == "erf":
        y = x * 0.5 * (1 + np.vectorize(erf, otypes=[float])(x * 0.5**0.5))
    else:
        y = 0.5 * x * (1 + _inner(op, x)[2])
    return {"y": y}


def _backward(op: Op, values: Values) -> Values:
    x = values["x"].astype(np.float64)
    if op.attributes["form"] == "erf":
        share = 0.5 * (1 + np.vectorize(erf, otypes=[float])(x * 0.5**0.5))
        slope = share + x * np.exp(-0.5 * x**2) * (2 * np.pi) ** -0.5
    else:
        _, u_slope, t, t_slope = _inner(op, x)
        slope = 0.5 * (1 + t) + 0.5 * x * t_slope * u_slope
    return {"dx": values["dy"] * slope}


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    x, form = tensors["x"], attributes["form"]
    if form != "pulp_rational":
        return torch.nn.functional.gelu(x, approximate="none" if form == "erf" else "tanh")
    u = sqrt(2 / pi) * (x + 0.044715 * x**3)
    above = u**7 + 378 * u**5 + 17325 * u**3 + 135135 * u
    below = 28 * u**6 + 3150 * u**4 + 62370 * u**2 + 135135
    return x / 2 * (1 + torch.clamp(above / below, -1, 1))


PRIMITIVE = LayerPrimitive(
    name="gelu",
    schema=_Schema,
    plan=same_shape,
    steps=(
        Step(
            "FW",
            ("x",),
            ("y",),
            _forward,
            lowering(lambda op: f"{_KERNELS[op.attributes['form']]}_fw", ("x",), "y", _tile_forward),
        ),
        Step(
            "IG",
            ("x", "dy"),
            ("dx",),
            _backward,
            lowering(lambda op: f"{_KERNELS[op.attributes['form']]}_bw", ("x", "dy"), "dx", _tile_backward),
        ),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example(inputs=(InputCase((3, 4, 5), low=-5, high=5),)),
        Example({"form": "tanh"}, (InputCase((3, 4, 5), low=-5, high=5),)),
        Example({"form": "pulp_rational"}, (InputCase((3, 4, 5), low=-4, high=4),)),
        Example({"form": "pulp_rational"}, (InputCase((2, 9), low=5, high=9),)),
    ),
    refused=(Refused({"form": "fast"}, ((3,),), "form"),),
    layouts=None,
)

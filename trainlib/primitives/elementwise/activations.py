"""What activations share: shapes as they come in, one loop forward and one backward.

The approximations of PULP-TrainLib are elementary functions here, as np.exp is, used by reference and tiles
alike; each primitive's `torch_forward` has them a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from trainlib.graph import Op, Tensor
from trainlib.primitives.definition import LayerPlan
from trainlib.primitives.lowering.vector_loops import VectorLoop, VectorLowering
from trainlib.steps import Array

Numbers = Callable[..., Array]
"""A function of arrays, elementwise."""

LOG2_E = 1.442695040
"""log2 of e, as PULP-TrainLib has it."""

GELU_SLOPE = sqrt(2 / np.pi)
GELU_CUBIC = 0.044715
"""tanh form of GELU (Hendrycks and Gimpel 2016): u = slope · (x + cubic · x^3)."""


def same_shape(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    """Output like the input; the ops carry the options."""
    return LayerPlan(inputs[0].shape, attributes=dict(attributes))


def lowering(
    kernel: Callable[[Op], str], reads: tuple[str, ...], write: str, function: Callable[[Op], Numbers]
) -> VectorLowering:
    """One loop; `function(op)` maps the arrays of `reads` to that of `write`."""

    def loops(op: Op) -> tuple[VectorLoop, ...]:
        compute = function(op)
        return (VectorLoop(kernel(op), reads, write, lambda arrays: (compute(*arrays),)),)

    return VectorLowering(loops)


def stable_sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow, by exponentials of negative numbers; keeps the dtype."""
    small = np.exp(-np.abs(x))
    share: Array = np.where(x >= 0, 1, small) / (1 + small)
    return share


def sigmoid_by_tanh(x: Array) -> Array:
    """The same function as (1 + tanh(x/2)) / 2."""
    share: Array = 0.5 + 0.5 * np.tanh(0.5 * x)
    return share


def fastexp(x: Array) -> Array:
    """e^x of PULP-TrainLib's RNN: 2^(x·log2 e) by its rational bit trick (P. Mineiro's), all in float32.

    Below 2^-126 it stays there. The relative error is less than 1e-4 (a test measures it).
    """
    power = np.maximum(np.float32(LOG2_E) * x.astype(np.float32), np.float32(-126))
    offset = np.where(power < 0, np.float32(1), np.float32(0))
    fraction = power - np.trunc(power) + offset
    exponent = (
        power
        + np.float32(121.2740575)
        + np.float32(27.7280233) / (np.float32(4.84252568) - fraction)
        - np.float32(1.49012907) * fraction
    )
    bits = np.minimum(np.float32(1 << 23) * exponent, np.float32(2139095040)).astype(np.uint32)
    value: Array = bits.view(np.float32)
    return value


def fastexp_tanh(x: Array) -> Array:
    """tanh of PULP-TrainLib's RNN: 2 / (1 + fastexp(-2x)) - 1."""
    value: Array = np.float32(2) / (np.float32(1) + fastexp(-2 * x)) - np.float32(1)
    return value


def schraudolph(x: Array) -> Array:
    """e^x by Schraudolph's bit trick with PULP-TrainLib's constants, in float32: up to 3 % off for x <= 0.

    Source: N. Schraudolph, "A Fast, Compact Approximation of the Exponential Function" (1999).
    """
    bits = np.float32(12102203.17133801) * x.astype(np.float32) + np.float32(1064986823.010288)
    bits = np.where(bits < np.float32(1 << 23), np.float32(0), np.minimum(bits, np.float32(2139095040)))
    return bits.astype(np.uint32).view(np.float32)


TAYLOR_LIMIT = 3.14
"""PULP-TrainLib's polynomial for 2^-d is taken as zero from here on."""

TAYLOR_TERMS = (1.0, -1.0, 0.5, -0.16, 0.0416, -0.008)
"""Its factors of (d·ln 2)^k: 1/k! to two or three digits, with the sign."""


def taylor(x: Array) -> Array:
    """e^x for x <= 0 by PULP-TrainLib's polynomial for 2^-d, d = -x·log2 e; zero for d >= 3.14."""
    exponent = -x.astype(np.float32) * np.float32(LOG2_E)
    series = np.polynomial.polynomial.polyval(-x.astype(np.float64), np.array(TAYLOR_TERMS))
    return np.where(exponent < TAYLOR_LIMIT, series, 0).astype(np.float32)


def rational_tanh(u: Array) -> Array:
    """tanh of PULP-TrainLib's GELU: a quotient of polynomials of degree 7 and 6, clamped to [-1, 1].

    It passes 1 before u = 8. Without the first clip here the polynomials overflow: the library's are
    inf / inf in fp32 for inputs of GELU from 350 or so on.
    """
    u = np.clip(u, -8, 8)
    square = u * u
    above = u * (((square + 378) * square + 17325) * square + 135135)
    below = ((28 * square + 3150) * square + 62370) * square + 135135
    value: Array = np.clip(above / below, -1, 1)
    return value


def rational_tanh_slope(u: Array) -> Array:
    """Derivative of `rational_tanh`: by the quotient rule, zero where it is clamped."""
    u = np.clip(u, -8, 8)
    s = u * u
    above = u * (((s + 378) * s + 17325) * s + 135135)
    below = ((28 * s + 3150) * s + 62370) * s + 135135
    above_slope = ((7 * s + 1890) * s + 51975) * s + 135135
    below_slope = u * ((168 * s + 12600) * s + 124740)
    slope = (above_slope * below - above * below_slope) / (below * below)
    return np.where(np.abs(above) <= below, slope, 0)

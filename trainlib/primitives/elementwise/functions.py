# SPDX-License-Identifier: Apache-2.0
"""Elementary functions of activations: exact ones without overflow, and PULP-TrainLib's approximations.

The approximations are elementary functions here, as np.exp is, used by references and tiles alike; `truth`
has them a second time.
"""

from __future__ import annotations

from math import erfc, pi, sqrt
from typing import Any

import numpy as np

from trainlib.ir.steps import Array
from trainlib.primitives.derivative import elementary

LOG2_E = 1.442695040
"""log2 of e, as PULP-TrainLib has it."""

GELU_SLOPE = sqrt(2 / pi)
GELU_CUBIC = 0.044715
"""tanh form of GELU (Hendrycks and Gimpel 2016): u = slope · (x + cubic · x^3)."""

GELU_FLAT = 100.0
"""Where tanh(u) is ±1 and its derivative 0, in float64 as well."""


ROOT_OF_TWO_PI = sqrt(2 * pi)
"""What the density of the normal distribution is divided by."""


@elementary(lambda x: np.exp(-np.abs(x)) / np.square(1 + np.exp(-np.abs(x))))
def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow, by exponentials of negative numbers; keeps the dtype."""
    small = np.exp(-np.abs(x))
    share: Array = np.where(x >= 0, 1, small) / (1 + small)
    return share


def tanh_by_exponential(x: Array) -> Array:
    """sign(x) · (1 - e) / (1 + e) with e = exp(-2|x|), by expm1 so that small x keep their digits."""
    less = np.expm1(-2 * np.abs(x))
    value: Array = np.sign(x) * -less / (2 + less)
    return value


@elementary(lambda x: np.exp(-x * x / 2) / ROOT_OF_TWO_PI)
def normal(x: Array) -> Array:
    """The normal distribution function in float64, by erfc so that it keeps its digits on the left."""
    scaled = (-x.astype(np.float64) / sqrt(2)).ravel()
    return np.array([erfc(value) for value in scaled]).reshape(x.shape) / 2


@elementary(lambda x: 0 * x)
def first(chosen: Array) -> Array:
    """The first of each row that a condition holds of."""
    alone: Array = chosen & (np.cumsum(chosen, axis=1) == 1)
    return alone


def inside(x: Array, low: float | None, high: float | None, on_bounds: bool) -> Array:
    """Whether x lies between two bounds, or, if these count, on one; None is no bound."""
    above = np.ones(x.shape, bool) if low is None else x >= low if on_bounds else x > low
    return above if high is None else above & (x <= high if on_bounds else x < high)


MISH_FLAT = 20.0
"""Where tanh(softplus(x)) is 1 in fp32: 1 - 2 e^-2x."""


def mish_gate(x: Array) -> Array:
    """tanh(softplus(x)) = n / (n + 2) with n = e (e + 2), e = exp(x): no digit is cancelled."""
    e = np.exp(np.minimum(x, MISH_FLAT))
    gate: Array = e * (e + 2) / (e * (e + 2) + 2)
    return gate


def mish_slope(x: Array) -> Array:
    """Its derivative, 4 e (1 + e) / (n + 2)²."""
    e = np.exp(np.minimum(x, MISH_FLAT))
    below = e * (e + 2) + 2
    slope: Array = 4 * e / below * ((1 + e) / below)
    return slope


def gelu_argument(x: Array) -> Array:
    """u of the tanh form of GELU."""
    return GELU_SLOPE * (x + GELU_CUBIC * x * x * x)


def gelu_slope(x: Array) -> Array:
    """Its derivative up to `GELU_FLAT`: beyond it stands beside a 0, with which infinity would be NaN."""
    x = np.clip(x, -GELU_FLAT, GELU_FLAT)
    return GELU_SLOPE * (1 + 3 * GELU_CUBIC * x * x)


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
    series: Any = TAYLOR_TERMS[-1]
    for factor in TAYLOR_TERMS[-2::-1]:
        series = factor + series * -x.astype(np.float64)
    return np.where(exponent < TAYLOR_LIMIT, series, 0).astype(np.float32)


def rational_tanh(u: Array) -> Array:
    """tanh of PULP-TrainLib's GELU: a quotient of polynomials of degree 7 and 6, clamped to [-1, 1].

    It passes 1 before u = 8. Without the first clip here the polynomials overflow: the library's are
    inf / inf in fp32 for inputs of GELU from 350 or so on. In float64, as near -1 GELU takes 1 + tanh.
    """
    u = np.clip(u, -8, 8) * np.float64(1)
    square = u * u
    above = u * (((square + 378) * square + 17325) * square + 135135)
    below = ((28 * square + 3150) * square + 62370) * square + 135135
    value: Array = np.clip(above / below, -1, 1)
    return value


def rational_tanh_slope(u: Array) -> Array:
    """Derivative of `rational_tanh`, in float64: by the quotient rule, zero where it is clamped."""
    u = np.clip(u, -8, 8) * np.float64(1)
    s = u * u
    above = u * (((s + 378) * s + 17325) * s + 135135)
    below = ((28 * s + 3150) * s + 62370) * s + 135135
    above_slope = ((7 * s + 1890) * s + 51975) * s + 135135
    below_slope = u * ((168 * s + 12600) * s + 124740)
    slope = (above_slope * below - above * below_slope) / (below * below)
    return np.where(np.abs(above) <= below, slope, 0)

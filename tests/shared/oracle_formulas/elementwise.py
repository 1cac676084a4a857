# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLW0108
"""Elementwise layers and their gradients in other words than their formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shared.oracle_formulas import Formula, Oracles, called

if TYPE_CHECKING:
    from trainlib.ir.graph import Op
    from trainlib.primitives.definition import Values

_erf, _complementary_erf = (np.vectorize(function, otypes=[float]) for function in (math.erf, math.erfc))

_GELU = np.polynomial.Polynomial([0, (2 / math.pi) ** 0.5, 0, (2 / math.pi) ** 0.5 * 0.044715])
"""What the tanh form takes the tanh of."""

_ABOVE = np.polynomial.Polynomial([0, 135135, 0, 17325, 0, 378, 0, 1])
_BELOW = np.polynomial.Polynomial([135135, 0, 62370, 0, 3150, 0, 28])
"""Of PULP-TrainLib's tanh in GELU."""


def _softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


def _logistic(x: Any) -> Any:
    return np.exp(-_softplus(-x))


def _rational(x: Any) -> Any:
    u = np.clip(_GELU(x), -8, 8)
    return np.clip(_ABOVE(u) / _BELOW(u), -1, 1)


def _rational_slope(x: Any) -> Any:
    u = _GELU(x)
    slope = (_ABOVE.deriv()(u) * _BELOW(u) - _ABOVE(u) * _BELOW.deriv()(u)) / _BELOW(u) ** 2
    return np.where(np.abs(_rational(x)) < 1, slope, 0) * _GELU.deriv()(x)


def _gelu_slope(x: Any) -> Any:
    inner = np.tanh(_GELU(x))
    return (1 + inner) / 2 + x / 2 * (1 - inner) * (1 + inner) * _GELU.deriv()(x)


def _bounded(x: Any, low: float | None, high: float | None) -> Any:
    if high is not None:
        x = np.where(x > high, high, x)
    return x if low is None else np.where(x < low, low, x)


_FORMULAS: Mapping[tuple[str, str], tuple[Formula, ...]] = {
    ("relu", ""): (lambda x: np.maximum(x, 0), lambda x, dy: dy * (x > 0)),
    ("leaky_relu", ""): (
        lambda x, slope: np.maximum(x, slope * x),
        lambda x, dy, slope: dy * (slope + (1 - slope) * (x > 0)),
    ),
    ("sigmoid", ""): (lambda x: _logistic(x), lambda y, dy: dy * (y - y * y)),
    ("tanh", "exact"): (lambda x: np.tanh(x), lambda y, dy: dy * (1 + y) * (1 - y)),
    ("silu", ""): (
        lambda x: x * _logistic(x),
        lambda x, dy: dy * (_logistic(x) + x * _logistic(x) * _logistic(-x)),
    ),
    ("gelu", "erf"): (
        lambda x: 0.5 * x * _complementary_erf(-x * 0.5**0.5),
        lambda x, dy: (
            dy * (_complementary_erf(-x * 0.5**0.5) + x * (2 / math.pi) ** 0.5 * np.exp(-x * x / 2)) / 2
        ),
    ),
    ("gelu", "tanh"): (lambda x: 0.5 * x * (1 + np.tanh(_GELU(x))), lambda x, dy: dy * _gelu_slope(x)),
    ("gelu", "pulp_rational"): (
        lambda x: 0.5 * x * (1 + _rational(x)),
        lambda x, dy: dy / 2 * (1 + _rational(x) + x * _rational_slope(x)),
    ),
    ("swiglu", ""): (
        lambda x, x1: x1 * x * _logistic(x),
        lambda x, x1, dy: dy * x1 * (_logistic(x) + x * _logistic(x) * _logistic(-x)),
        lambda x, dy: dy * x * _logistic(x),
    ),
    ("scale", ""): (lambda x, factor: x * factor, lambda dy, factor: dy * factor),
    ("add", ""): (lambda x, x1: np.sum([x, x1], axis=0), lambda dy: 1.0 * dy),
    ("dropout", ""): (
        lambda x, mask, p, inference=False: x if inference else np.where(mask > 0, x / (1 - p), 0),
        lambda dy, mask, p: np.where(mask > 0, dy / (1 - p), 0),
    ),
    ("floor", ""): (
        lambda x: x - np.remainder(x, 1.0),
        lambda dy, straight_through: dy.copy() if straight_through else np.zeros_like(dy),
    ),
    ("ceil", ""): (
        lambda x: x + np.remainder(-x, 1.0),
        lambda dy, straight_through: dy.copy() if straight_through else np.zeros_like(dy),
    ),
    ("round", ""): (
        lambda x: np.round(x),
        lambda dy, straight_through: dy.copy() if straight_through else np.zeros_like(dy),
    ),
    ("multiply", ""): (
        lambda x, x1: np.multiply(x1, x),
        lambda x1, dy: np.multiply(x1, dy),
        lambda x, dy: np.multiply(x, dy),
    ),
    ("subtract", ""): (lambda x, x1: np.add(x, -1 * x1), lambda dy: 1.0 * dy, lambda dy: -1.0 * dy),
    ("divide", ""): (
        lambda x, x1: x * (1 / x1),
        lambda x1, dy: dy * (1 / x1),
        lambda x, x1, dy: -(x * dy) * x1**-2.0,
    ),
    ("maximum", ""): (
        lambda x, x1: np.maximum(x, x1),
        lambda x, x1, dy: dy * (1 + np.sign(x - x1)) / 2,
        lambda x, x1, dy: dy * (1 - np.sign(x - x1)) / 2,
    ),
    ("minimum", ""): (
        lambda x, x1: np.minimum(x, x1),
        lambda x, x1, dy: dy * (1 - np.sign(x - x1)) / 2,
        lambda x, x1, dy: dy * (1 + np.sign(x - x1)) / 2,
    ),
    ("where", ""): (
        lambda x, x1, x2: np.where(x == 0, x2, x1),
        lambda dy: np.zeros_like(dy),
        lambda x, dy: dy * (x != 0),
        lambda x, dy: dy * (x == 0),
    ),
    ("clip", ""): (
        lambda x, low=None, high=None: _bounded(x, low, high),
        lambda x, dy, low=None, high=None: dy * (_bounded(x, low, high) == x),
    ),
    ("hard_sigmoid", ""): (
        lambda x, alpha, beta: np.minimum(1, np.maximum(0, beta + x * alpha)),
        lambda x, dy, alpha, beta: alpha * dy * (np.abs(x * alpha + beta - 0.5) < 0.5),
    ),
    ("hard_swish", ""): (
        lambda x: np.where(x <= -3, 0, np.where(x >= 3, x, x * x / 6 + x / 2)),
        lambda x, dy: dy * np.where(np.abs(x) < 3, (2 * x + 3) / 6, x > 0),
    ),
    ("elu", ""): (
        lambda x, alpha: np.where(x > 0, x, alpha * (np.exp(np.where(x > 0, 0, x)) - 1)),
        lambda x, dy, alpha: np.where(x > 0, dy, dy * alpha * np.exp(np.where(x > 0, 0, x))),
    ),
    ("softplus", ""): (lambda x: _softplus(x), lambda x, dy: dy * _logistic(x)),
    ("mish", ""): (
        lambda x: x * np.tanh(_softplus(x)),
        lambda x, dy: dy * (np.tanh(_softplus(x)) + x * _logistic(x) / np.cosh(_softplus(x)) ** 2),
    ),
    ("shift", ""): (lambda x, offset: np.add(offset, x),),
    ("exponential", ""): (lambda x: np.expm1(x) + 1, lambda y, dy: np.multiply(y, dy)),
    ("logarithm", ""): (lambda x: np.log1p(x - 1), lambda x, dy: dy * x**-1.0),
    ("square_root", ""): (lambda x: x**0.5, lambda dy, y: 0.5 * dy / y),
    ("reciprocal", ""): (lambda x: x**-1.0, lambda y, dy: -(y**2) * dy),
    ("square", ""): (lambda x: np.square(x), lambda x, dy: (x + x) * dy),
    ("power", ""): (
        lambda x, exponent: np.power(x, exponent),
        lambda x, dy, exponent: dy * np.power(x, exponent) * exponent / x,
    ),
    ("error_function", ""): (
        lambda x: _erf(x),
        lambda x, dy: dy * 2 / math.pi**0.5 * np.exp(-(x**2)),
    ),
    ("sine", ""): (
        lambda x: 2 * np.sin(x / 2) * np.cos(x / 2),
        lambda x, dy: dy * (np.cos(x / 2) ** 2 - np.sin(x / 2) ** 2),
    ),
    ("absolute", ""): (
        lambda x: np.where(x > 0, x, 0) - np.where(x < 0, x, 0),
        lambda x, dy: np.where(x > 0, dy, -dy),
    ),
    ("compare", "ge"): (lambda x, value: 1.0 * np.greater_equal(x - value, 0), lambda dy: np.zeros_like(dy)),
    ("compare", "gt"): (lambda x, value: 1.0 * np.greater(x - value, 0), lambda dy: np.zeros_like(dy)),
    ("compare", "le"): (lambda x, value: 1.0 * np.less_equal(x - value, 0), lambda dy: np.zeros_like(dy)),
    ("compare", "lt"): (lambda x, value: 1.0 * np.less(x - value, 0), lambda dy: np.zeros_like(dy)),
    ("compare", "eq"): (lambda x, value: 1.0 * np.equal(x - value, 0), lambda dy: np.zeros_like(dy)),
}
"""By layer and form: y, and the gradients by its inputs. Bit tricks have no other words: `truth` has them."""

_RESULTS = ("y", "dx", "dx1", "dx2")


def _oracle(op: Op, values: Values) -> Values:
    formulas = _FORMULAS.get((op.primitive, op.attributes.get("form", "")), ())
    named = dict(zip(_RESULTS, formulas, strict=False))
    return {role: called(named[role], op, values) for role in op.writes if role in named}


ORACLES: Oracles = {(name, step): _oracle for name, _ in _FORMULAS for step in ("FW", "IG")}

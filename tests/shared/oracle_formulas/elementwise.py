# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PLW0108
"""Elementwise layers in other words than their formulas; gradients are derived from these."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainlib.ir.graph import Op
from trainlib.primitives.definition import Values
from trainlib.primitives.derivative import derivative, elementary
from trainlib.primitives.elementwise import functions as fn
from trainlib.primitives.formulas import Formula, arguments, by_name, parameters


@elementary(lambda x: np.exp(-np.logaddexp(0, -x)))
def _softplus(x: Any) -> Any:
    return np.logaddexp(0, x)


@elementary(lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x))
def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[float])(x)


@elementary(lambda x: -2 / math.sqrt(math.pi) * np.exp(-x * x))
def _complementary_erf(x: Any) -> Any:
    return np.vectorize(math.erfc, otypes=[float])(x)


def _bounded(x: Any, low: float | None, high: float | None) -> Any:
    if high is not None:
        x = np.where(x > high, high, x)
    return x if low is None else np.where(x < low, low, x)


_FORMULAS: Mapping[tuple[str, str], tuple[Formula, Formula | None]] = {
    ("relu", ""): (lambda x: np.maximum(x, 0), None),
    ("leaky_relu", ""): (lambda x, slope: np.maximum(x, slope * x), None),
    ("sigmoid", ""): (lambda x: np.exp(-_softplus(-x)), lambda y, dy: dy * (y - y * y)),
    ("tanh", "exact"): (lambda x: np.tanh(x), lambda y, dy: dy * (1 + y) * (1 - y)),
    ("tanh", "pulp_fastexp"): (lambda x: fn.fastexp_tanh(x), lambda y, dy: dy * (1 + y) * (1 - y)),
    ("silu", ""): (lambda x: x * np.exp(-_softplus(-x)), None),
    ("gelu", "erf"): (lambda x: 0.5 * x * _complementary_erf(-x * 0.5**0.5), None),
    ("gelu", "tanh"): (lambda x: 0.5 * x * (1 + np.tanh(fn.GELU_SLOPE * (x + fn.GELU_CUBIC * x**3))), None),
    ("gelu", "pulp_rational"): (
        lambda x: 0.5 * x * (1 + fn.rational_tanh(fn.GELU_SLOPE * (x + fn.GELU_CUBIC * x**3))),
        None,
    ),
    ("swiglu", ""): (lambda x, x1: x1 * x * np.exp(-_softplus(-x)), None),
    ("scale", ""): (lambda x, factor: x * factor, None),
    ("add", ""): (lambda x, x1: np.sum([x, x1], axis=0), lambda dy: 1.0 * dy),
    ("dropout", ""): (
        lambda x, mask, p, inference=False: x if inference else np.where(mask > 0, x / (1 - p), 0),
        None,
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
    ("multiply", ""): (lambda x, x1: np.multiply(x1, x), None),
    ("subtract", ""): (lambda x, x1: np.add(x, -1 * x1), None),
    ("divide", ""): (lambda x, x1: x * (1 / x1), None),
    ("maximum", ""): (lambda x, x1: np.maximum(x, x1), None),
    ("minimum", ""): (lambda x, x1: np.minimum(x, x1), None),
    ("where", ""): (lambda x, x1, x2: np.where(x == 0, x2, x1), lambda dy: np.zeros_like(dy)),
    ("clip", ""): (lambda x, low=None, high=None: _bounded(x, low, high), None),
    ("hard_sigmoid", ""): (lambda x, alpha, beta: np.minimum(1, np.maximum(0, beta + x * alpha)), None),
    ("hard_swish", ""): (lambda x: np.where(x <= -3, 0, np.where(x >= 3, x, x * x / 6 + x / 2)), None),
    ("elu", ""): (
        lambda x, alpha: np.where(
            x > 0,
            x,
            alpha * (np.exp(np.where(x > 0, 0, x)) - 1),  # the slope at 0 is alpha
        ),
        None,
    ),
    ("softplus", ""): (lambda x: _softplus(x), None),
    ("mish", ""): (lambda x: x * np.tanh(_softplus(x)), None),
    ("shift", ""): (lambda x, offset: np.add(offset, x), None),
    ("exponential", ""): (lambda x: np.expm1(x) + 1, lambda y, dy: np.multiply(y, dy)),
    ("logarithm", ""): (lambda x: np.log1p(x - 1), None),
    ("square_root", ""): (lambda x: x**0.5, lambda dy, y: 0.5 * dy / y),
    ("reciprocal", ""): (lambda x: x**-1.0, lambda y, dy: -(y**2) * dy),
    ("square", ""): (lambda x: np.square(x), None),
    ("power", ""): (lambda x, exponent: np.power(x, exponent), None),
    ("error_function", ""): (lambda x: _erf(x), None),
    ("sine", ""): (lambda x: 2 * np.sin(x / 2) * np.cos(x / 2), None),
    ("absolute", ""): (lambda x: np.where(x > 0, x, 0) - np.where(x < 0, x, 0), None),
    ("compare", "ge"): (lambda x, value: 1.0 * np.greater_equal(x - value, 0), lambda dy: np.zeros_like(dy)),
    ("compare", "gt"): (lambda x, value: 1.0 * np.greater(x - value, 0), lambda dy: np.zeros_like(dy)),
    ("compare", "le"): (lambda x, value: 1.0 * np.less_equal(x - value, 0), lambda dy: np.zeros_like(dy)),
    ("compare", "lt"): (lambda x, value: 1.0 * np.less(x - value, 0), lambda dy: np.zeros_like(dy)),
    ("compare", "eq"): (lambda x, value: 1.0 * np.equal(x - value, 0), lambda dy: np.zeros_like(dy)),
}
"""By layer and form: y, and dx where that is no derivative of y by x."""


def _forward(y: Formula) -> Callable[[Op, Values], Values]:
    compute = by_name(y)
    return lambda op, values: {"y": compute(op, values)}


def _backward(y: Formula, dx: Formula | None) -> Callable[[Op, Values], Values]:
    names = parameters(y)

    def gradients(op: Op, values: Values) -> Values:
        unread = {name for name in names if name.startswith("x")} - values.keys()
        given = {**values, **dict.fromkeys(unread, np.zeros_like(values["dy"]))}
        return {
            role: by_name(dx)(op, values)
            if role == "dx" and dx is not None
            else values["dy"] * derivative(y, arguments(names, op, given), role[1:])
            for role in op.writes
        }

    return gradients


def _of_form(make: Callable[..., Callable[[Op, Values], Values]], layer: str, step: int) -> Any:
    forms = {form: make(*both[:step]) for (name, form), both in _FORMULAS.items() if name == layer}
    return lambda op, values: forms[op.attributes.get("form", "")](op, values)


ORACLES: Mapping[tuple[str, str], Callable[[Op, Values], Values]] = {
    (name, step): _of_form(make, name, count)
    for name in dict.fromkeys(name for name, _ in _FORMULAS)
    for step, make, count in (("FW", _forward, 1), ("IG", _backward, 2))
}
"""By primitive and step: results by role from arrays by role."""

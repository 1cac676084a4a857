# SPDX-License-Identifier: Apache-2.0
"""Derivatives of formulas by dual numbers: every rule, composed ones, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from trainlib.primitives.derivative import constant, derivative
from trainlib.primitives.elementwise import functions as fn

X = np.array([-1.7, -0.4, 0.3, 0.9, 2.2])
STEP = 1e-6

FORMULAS = {
    "sum": lambda x: 3 + x + x - 1 - (2 - x),
    "product": lambda x: x * x * 3 * (-x),
    "quotient": lambda x: (x + 4) / (x * x + 1) + 1 / (x + 5) + x / 3,
    "power": lambda x: x**3 + x**2,
    "square": lambda x: np.square(x) + np.sqrt(x + 3),
    "exponentials": lambda x: np.exp(-x) + np.expm1(2 * x) + np.log(x + 4) + np.log1p(x + 4),
    "waves": lambda x: np.sin(x) * np.cos(2 * x),
    "gated": lambda x: x * (0.5 + 0.5 * np.tanh(0.5 * x)),
    "sizes": lambda x: np.abs(x) * np.sign(x) + np.abs(x),
    "larger": lambda x: np.maximum(x, 0.5) + np.maximum(-0.5, x) + np.minimum(x, 1) * np.minimum(-1, x),
    "clip": lambda x: np.clip(x, -1, 1) * x,
    "where": lambda x: np.where(x > 0.5, x * x, np.where(x < -1, 7, -x)),
    "normal": lambda x: x * fn.normal(x),
    "rational": lambda x: fn.rational_tanh(2 * x),
}


@pytest.mark.parametrize("formula", FORMULAS.values(), ids=FORMULAS)
def test_every_rule_agrees_with_differences(formula) -> None:
    differences = (formula(X + STEP) - formula(X - STEP)) / (2 * STEP)
    np.testing.assert_allclose(derivative(formula, {"x": X}, "x"), differences, rtol=1e-7, atol=1e-8)


def test_other_arguments_and_constants_do_not_vary() -> None:
    def formula(x, factor):
        return factor * x / np.max(constant(np.abs(x)))

    given = {"x": X, "factor": 3 * np.ones(5)}
    np.testing.assert_allclose(derivative(formula, given, "x"), 3 / 2.2)
    np.testing.assert_allclose(derivative(formula, given, "factor"), X / 2.2)
    assert derivative(lambda x, factor: factor, given, "x") == 0


def test_a_kink_has_the_slope_pytorch_gives_it() -> None:
    assert derivative(lambda x: np.maximum(x, 0), {"x": np.zeros(1)}, "x") == 0
    assert derivative(lambda x: 2 * np.abs(x), {"x": np.zeros(1)}, "x") == 0


@pytest.mark.parametrize(
    "formula", [lambda x: 2 * np.arctan(x), lambda x: x + np.add.reduce(x), lambda x: 2 * np.sort(x)]
)
def test_a_function_without_a_rule_is_refused(formula) -> None:
    with pytest.raises(NotImplementedError, match="no derivative of"):
        derivative(formula, {"x": X}, "x")

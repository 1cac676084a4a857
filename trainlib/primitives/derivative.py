# SPDX-License-Identifier: Apache-2.0
"""Derivatives of formulas written for NumPy arrays, by forward-mode differentiation with dual numbers.

A formula that is applied to a `Dual` gives its value and its derivative by the variable the dual stands for,
element by element and exactly. References use it for gradients, so that no gradient is typed twice: what a
tile computes is held against what follows from the forward formula.
Source of the method: Griewank and Walther, Evaluating Derivatives (2008), chapter 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from trainlib.ir.steps import Array

Partial = Callable[..., Any]
"""Derivative of a function by one of its arguments, from its result and its arguments."""

_PARTIALS: Mapping[np.ufunc, tuple[Partial, ...]] = {
    np.add: (lambda y, a, b: 1, lambda y, a, b: 1),
    np.subtract: (lambda y, a, b: 1, lambda y, a, b: -1),
    np.multiply: (lambda y, a, b: b, lambda y, a, b: a),
    np.divide: (lambda y, a, b: 1 / b, lambda y, a, b: -y / b),
    np.power: (lambda y, a, b: b * a ** (b - 1),),
    np.negative: (lambda y, a: -1,),
    np.square: (lambda y, a: 2 * a,),
    np.sqrt: (lambda y, a: 0.5 / y,),
    np.exp: (lambda y, a: y,),
    np.expm1: (lambda y, a: y + 1,),
    np.log: (lambda y, a: 1 / a,),
    np.log1p: (lambda y, a: 1 / (1 + a),),
    np.sin: (lambda y, a: np.cos(a),),
    np.cos: (lambda y, a: -np.sin(a),),
    np.sinh: (lambda y, a: np.cosh(a),),
    np.tanh: (lambda y, a: 1 - y * y,),
    np.logaddexp: (lambda y, a, b: np.exp(a - y), lambda y, a, b: np.exp(b - y)),
    np.absolute: (lambda y, a: np.sign(a),),
    np.sign: (lambda y, a: 0,),
    # Where both are equal the second counts: max(x, 0) has slope 0 at 0, as ReLU has in PyTorch.
    np.maximum: (lambda y, a, b: a > b, lambda y, a, b: a <= b),
    np.minimum: (lambda y, a, b: a < b, lambda y, a, b: a >= b),
}
"""By each argument; the exponent of a power is a constant."""

_COMPARISONS = (np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal)


class Dual(NDArrayOperatorsMixin):
    """An array and its derivative by one variable, element by element.

    Raises NotImplementedError for a NumPy function whose derivative is not known here.
    """

    def __init__(self, value: Array, slope: Array | float) -> None:
        self.value = value
        self.slope = slope

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """Value and derivative of an elementwise function; of a comparison the plain truth."""
        values = [constant(item) for item in inputs]
        if ufunc in _COMPARISONS:
            return ufunc(*values)
        if ufunc not in _PARTIALS or method != "__call__" or options:
            raise NotImplementedError(f"no derivative of {ufunc.__name__} is known; see {__name__}")
        result = ufunc(*values)
        slopes = [
            partial(result, *values) * item.slope
            for partial, item in zip(_PARTIALS[ufunc], inputs, strict=False)
            if isinstance(item, Dual)
        ]
        return Dual(result, sum(slopes[1:], slopes[0]))

    def __array_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any], options: Any
    ) -> Any:
        """``where`` and ``clip``."""
        if function is np.where and not options:
            condition, first, second = args
            chosen = np.where(condition, constant(first), constant(second))
            return Dual(chosen, np.where(condition, _slope(first), _slope(second)))
        if function is np.clip and not options:
            x, least, largest = args
            return np.minimum(np.maximum(x, least), largest)
        raise NotImplementedError(f"no derivative of {function.__name__} is known; see {__name__}")

    def elementary(self, function: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Dual:
        """A function that is no NumPy one."""
        return Dual(function(self.value), slope(self.value) * self.slope)


def constant(x: Any) -> Any:
    """The value of `x`, which the derivative takes as constant."""
    return x.value if isinstance(x, Dual) else x


def elementary(slope: Callable[[Array], Array]) -> Callable[[Callable[[Array], Array]], Callable[[Any], Any]]:
    """A function of one array that is no NumPy one, with its derivative.

    Both are given to the method `elementary` of what is not an array but stands for one.
    """

    def decorate(function: Callable[[Array], Array]) -> Callable[[Any], Any]:
        def applied(x: Any) -> Any:
            return x.elementary(function, slope) if hasattr(x, "elementary") else function(x)

        return applied

    return decorate


def derivative(function: Callable[..., Any], given: Mapping[str, Any], by: str) -> Any:
    """Derivative of `function` by its argument `by`, at the arguments `given`; a number if it is constant."""
    return _slope(function(**{**given, by: Dual(given[by], 1.0)}))


def _slope(x: Any) -> Any:
    return x.slope if isinstance(x, Dual) else 0.0

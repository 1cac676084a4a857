# SPDX-License-Identifier: Apache-2.0
"""Untiled NumPy evaluation of the matmul of two activations: numpy.matmul, sums over broadcast dimensions."""

from __future__ import annotations

import numpy as np

from trainlib.ir.graph import Op
from trainlib.ir.steps import Array
from trainlib.primitives.definition import Values


def _left(op: Op, x: Array) -> Array:
    return x[:, None, :] if "x" in op.attributes["vectors"] else x


def _right(op: Op, x1: Array) -> Array:
    """As it is multiplied: [..., K, M]."""
    if "x1" in op.attributes["vectors"]:
        return x1[:, :, None]
    return np.swapaxes(x1, -1, -2) if op.attributes["transpose_b"] else x1


def _result(op: Op, array: Array) -> Array:
    """[batch, ..., n, m], whatever dimensions of vectors were dropped."""
    numbers = op.attributes
    return array.reshape(len(array), *numbers["leading"]["y"], numbers["n"], numbers["m"])


def _aligned(op: Op, array: Array) -> Array:
    """With as many leading dimensions as the result, behind the batch."""
    missing = len(op.attributes["leading"]["y"]) + 3 - array.ndim
    return array.reshape(len(array), *(1,) * missing, *array.shape[1:])


def _summed(array: Array, like: Array) -> Array:
    """Sum over the dimensions in which `like` has size 1 and `array` has not, then in the shape of `like`."""
    axes = tuple(axis for axis in range(array.ndim) if like.shape[axis] == 1 and array.shape[axis] > 1)
    result: Array = array.sum(axis=axes, keepdims=True)
    return result


def forward(op: Op, values: Values) -> Values:
    """y = x @ x1."""
    left, right = _aligned(op, _left(op, values["x"])), _aligned(op, _right(op, values["x1"]))
    product = np.matmul(left, right)
    dropped = [axis for axis, role in ((-2, "x"), (-1, "x1")) if role in op.attributes["vectors"]]
    result = np.squeeze(product, axis=tuple(dropped)) if dropped else product
    return {"y": result[:, None] if result.ndim == 1 else result}


def left_gradient(op: Op, values: Values) -> Values:
    """dx = dy @ x1ᵀ, summed over the dimensions x was broadcast over."""
    dy, right = _result(op, values["dy"]), _aligned(op, _right(op, values["x1"]))
    numbers = op.attributes
    shape = (*numbers["leading"]["x"], *(() if "x" in numbers["vectors"] else (numbers["n"],)), numbers["k"])
    like = _aligned(op, np.empty((len(dy), *numbers["leading"]["x"], numbers["n"], numbers["k"])))
    gradient = _summed(np.matmul(dy, np.swapaxes(right, -1, -2)), like)
    return {"dx": gradient.reshape(len(dy), *shape)}


def right_gradient(op: Op, values: Values) -> Values:
    """dx1 = xᵀ @ dy, summed over the dimensions x1 was broadcast over."""
    dy, left = _result(op, values["dy"]), _aligned(op, _left(op, values["x"]))
    numbers = op.attributes
    like = _aligned(op, np.empty((len(dy), *numbers["leading"]["x1"], numbers["k"], numbers["m"])))
    gradient = _summed(np.matmul(np.swapaxes(left, -1, -2), dy), like)
    gradient = gradient.reshape(len(dy), *numbers["leading"]["x1"], numbers["k"], numbers["m"])
    if "x1" in numbers["vectors"]:
        return {"dx1": gradient[..., 0]}
    return {"dx1": np.swapaxes(gradient, -1, -2) if numbers["transpose_b"] else gradient}

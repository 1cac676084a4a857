# SPDX-License-Identifier: Apache-2.0
"""Untiled NumPy evaluation of multi-head self-attention, per head with an explicit head dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainlib.ir.graph import Op
from trainlib.ir.steps import Array
from trainlib.primitives.definition import Reference, Values


def _heads(op: Op, array: Array) -> Array:
    """[n, F, L] as [n, heads, F / heads, L]."""
    return array.reshape(len(array), op.attributes["heads"], -1, array.shape[2])


def _columns(role: str, values: Values) -> Array:
    """A sequence as [n, features, L]; x and y are stored [n, L, features]."""
    return values[role].swapaxes(1, 2) if role in ("x", "dy") else values[role]


def _low_rank(op: Op, values: Values) -> Any:
    """What adapters add to a step of their frozen weight, [n, features, L]: up · h, or downᵀ · dh."""
    matrices = [role for role in op.reads if role.endswith(("_up", "_down"))]
    hidden = [role for role in op.reads if role.removeprefix("d")[0] == "h"]
    return sum(
        np.einsum("fr,nrl->nfl", _turned(weight, "_down", values), values[h], optimize=True)
        for weight, h in zip(matrices, hidden, strict=True)
    )


def _turned(role: str, end: str, values: Values) -> Array:
    """A matrix, transposed if it is the one of the two that ends so."""
    return values[role].T if role.endswith(end) else values[role]


def inner(op: Op, values: Values) -> Values:
    """h = alpha / R · down · x, or dh = alpha / R · upᵀ · gradient."""
    source, weight = op.reads
    factor = op.attributes["adapter"]["alpha"] / op.attributes["rank"]
    left = _turned(weight, "_up", values) * values[weight].dtype.type(factor)
    return {op.writes[0]: np.einsum("rf,nfl->nrl", left, _columns(source, values), optimize=True)}


def product(op: Op, values: Values) -> Values:
    """The gradient of a matrix, the sum of gradient · inputᵀ over samples and tokens, and of its bias."""
    left, right = (_columns(role, values) for role in op.reads)
    return {
        op.writes[0]: np.einsum("nal,nbl->ab", left, right, optimize=True),
        op.writes[-1].replace("dw", "db"): left.sum(axis=(0, 2)),
    }


def projected(op: Op, values: Values) -> Values:
    """A matrix times a sequence, with its bias and what an adapter adds: q, k, v, y, dmap = Woᵀ · dy."""
    (source, weight, *more), (target,) = op.reads, op.writes
    matrix, sequence = values[weight], _columns(source, values)
    matrix = matrix.T if source == "dy" else matrix
    made = np.einsum("fe,nel->nfl", matrix, sequence, optimize=True) + _low_rank(op, values)
    if more and more[0] == f"b{weight[1:]}":
        made = made + values[more[0]][:, None]
    return {target: made.swapaxes(1, 2) if target == "y" else made}


def _of_heads(equation: str, *, scaled: bool = False) -> Reference:
    """A product of what two roles have of each head, over the root of the head's size if `scaled`."""

    def reference(op: Op, values: Values) -> Values:
        arrays = (values[role] if values[role].ndim == 4 else _heads(op, values[role]) for role in op.reads)
        made = np.einsum(equation, *arrays, optimize=True)
        if scaled:
            made = made / _root(op, made)
        return {op.writes[0]: made if equation.endswith("qk") else made.reshape(len(made), -1, made.shape[3])}

    return reference


scores = _of_heads("nhaq,nhak->nhqk", scaled=True)
context = queries_gradient = _of_heads("nhak,nhqk->nhaq")
values_gradient = keys_gradient = _of_heads("nhaq,nhqk->nhak")
probabilities_gradient = _of_heads("nhaq,nhak->nhqk")


def _root(op: Op, like: Array) -> Array:
    """Of the size of a head."""
    root: Array = np.sqrt(op.attributes["features"] // op.attributes["heads"]).astype(like.dtype)
    return root


def probabilities(op: Op, values: Values) -> Values:
    """p = softmax of the rows of s."""
    s = values["s"]
    weights = np.exp(s - s.max(axis=-1, keepdims=True))
    return {"p": weights / weights.sum(axis=-1, keepdims=True)}


def scores_gradient(op: Op, values: Values) -> Values:
    """Gradient of qᵀk from dp: through the softmax and the scale."""
    p, dp = values["p"], values["dp"]
    return {"ds": p * (dp - np.sum(dp * p, axis=-1, keepdims=True)) / _root(op, p)}


def input_gradient(op: Op, values: Values) -> Values:
    """dx = sum over q, k, v of Wᵀ · gradient."""
    terms = [
        np.einsum("fe,nfl->nel", values[f"w{name}"], values[f"d{name}"], optimize=True) for name in "qkv"
    ]
    return {"dx": (terms[0] + terms[1] + terms[2] + _low_rank(op, values)).swapaxes(1, 2)}

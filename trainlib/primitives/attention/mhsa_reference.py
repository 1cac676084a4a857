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


def _merged(array: Array) -> Array:
    return array.reshape(len(array), -1, array.shape[3])


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
    """The gradient of a matrix of an adapter: the sum of gradient · inputᵀ over samples and tokens."""
    left, right = (_columns(role, values) for role in op.reads)
    return {op.writes[0]: np.einsum("nal,nbl->ab", left, right, optimize=True)}


def projection(name: str) -> Reference:
    """One of q, k, v = W · xᵀ + b."""

    def reference(op: Op, values: Values) -> Values:
        result = np.einsum("fe,nle->nfl", values[f"w{name}"], values["x"], optimize=True)
        result = result + _low_rank(op, values)
        return {name: result + values[f"b{name}"][:, None] if f"b{name}" in values else result}

    return reference


def scores(op: Op, values: Values) -> Values:
    """s = qᵀk / sqrt(H)."""
    q, k = (_heads(op, values[name]) for name in "qk")
    return {"s": np.einsum("nhaq,nhak->nhqk", q, k, optimize=True) / np.sqrt(q.shape[2]).astype(q.dtype)}


def probabilities(op: Op, values: Values) -> Values:
    """p = softmax of the rows of s."""
    s = values["s"]
    weights = np.exp(s - s.max(axis=-1, keepdims=True))
    return {"p": weights / weights.sum(axis=-1, keepdims=True)}


def context(op: Op, values: Values) -> Values:
    """map = v weighted by p."""
    v = _heads(op, values["v"])
    return {"map": _merged(np.einsum("nhak,nhqk->nhaq", v, values["p"], optimize=True))}


def output(op: Op, values: Values) -> Values:
    """y = Wo · map + bo."""
    y = np.einsum("ef,nfl->nel", values["wo"], values["map"], optimize=True) + _low_rank(op, values)
    y = y.swapaxes(1, 2)
    return {"y": y + values["bo"] if "bo" in values else y}


def output_gradient(op: Op, values: Values) -> Values:
    """dmap = Woᵀ · dy."""
    gradient = np.einsum("ef,nle->nfl", values["wo"], values["dy"], optimize=True)
    return {"dmap": gradient + _low_rank(op, values)}


def output_weight(op: Op, values: Values) -> Values:
    """dwo and dbo."""
    dy = values["dy"]
    return {"dwo": np.einsum("nle,nfl->ef", dy, values["map"], optimize=True), "dbo": dy.sum(axis=(0, 1))}


def values_gradient(op: Op, values: Values) -> Values:
    """dv from dmap and p."""
    dmap = _heads(op, values["dmap"])
    return {"dv": _merged(np.einsum("nhaq,nhqk->nhak", dmap, values["p"], optimize=True))}


def probabilities_gradient(op: Op, values: Values) -> Values:
    """dp from dmap and v."""
    dmap, v = (_heads(op, values[name]) for name in ("dmap", "v"))
    return {"dp": np.einsum("nhaq,nhak->nhqk", dmap, v, optimize=True)}


def scores_gradient(op: Op, values: Values) -> Values:
    """Gradient of qᵀk from dp: through the softmax and the scale."""
    p, dp = values["p"], values["dp"]
    size = op.attributes["features"] // op.attributes["heads"]
    ds = p * (dp - np.sum(dp * p, axis=-1, keepdims=True))
    return {"ds": ds / np.sqrt(size).astype(p.dtype)}


def queries_gradient(op: Op, values: Values) -> Values:
    """dq from ds and k."""
    return {"dq": _merged(np.einsum("nhqk,nhak->nhaq", values["ds"], _heads(op, values["k"]), optimize=True))}


def keys_gradient(op: Op, values: Values) -> Values:
    """dk from ds and q."""
    return {"dk": _merged(np.einsum("nhqk,nhaq->nhak", values["ds"], _heads(op, values["q"]), optimize=True))}


def projection_weight(name: str) -> Reference:
    """Gradients of W and b of one of q, k, v."""

    def reference(op: Op, values: Values) -> Values:
        gradient = values[f"d{name}"]
        return {
            f"dw{name}": np.einsum("nfl,nle->fe", gradient, values["x"], optimize=True),
            f"db{name}": gradient.sum(axis=(0, 2)),
        }

    return reference


def input_gradient(op: Op, values: Values) -> Values:
    """dx = sum over q, k, v of Wᵀ · gradient."""
    terms = [
        np.einsum("fe,nfl->nel", values[f"w{name}"], values[f"d{name}"], optimize=True) for name in "qkv"
    ]
    return {"dx": (terms[0] + terms[1] + terms[2] + _low_rank(op, values)).swapaxes(1, 2)}

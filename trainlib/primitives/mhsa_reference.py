"""Untiled NumPy evaluation of multi-head self-attention, per head with an explicit head dimension."""

from __future__ import annotations

import numpy as np

from trainlib.graph import Op
from trainlib.primitives.definition import Values
from trainlib.steps import Array


def _heads(op: Op, array: Array) -> Array:
    """[n, F, L] as [n, heads, F / heads, L]."""
    return array.reshape(len(array), op.attributes["heads"], -1, array.shape[2])


def _merged(array: Array) -> Array:
    return array.reshape(len(array), -1, array.shape[3])


def _projected(values: Values, name: str) -> Array:
    result: Array = np.einsum("fe,nle->nfl", values[f"w{name}"], values["x"], optimize=True)
    return result + values[f"b{name}"][:, None] if f"b{name}" in values else result


def forward(op: Op, values: Values) -> Values:
    """y = Wo · (softmax(QᵀK / sqrt(H)) applied to V), and what the backward steps need."""
    q, k, v = (_projected(values, name) for name in "qkv")
    q4, k4, v4 = (_heads(op, array) for array in (q, k, v))
    scores = np.einsum("nhaq,nhak->nhqk", q4, k4, optimize=True) / np.sqrt(q4.shape[2]).astype(q.dtype)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p = weights / weights.sum(axis=-1, keepdims=True)
    attended = _merged(np.einsum("nhak,nhqk->nhaq", v4, p, optimize=True))
    y = np.einsum("ef,nfl->nle", values["wo"], attended, optimize=True)
    if "bo" in values:
        y = y + values["bo"]
    return {"y": y, "q": q, "k": k, "v": v, "p": p, "map": attended}


def output_gradient(op: Op, values: Values) -> Values:
    """dmap = Woᵀ · dy."""
    return {"dmap": np.einsum("ef,nle->nfl", values["wo"], values["dy"], optimize=True)}


def attention_gradient(op: Op, values: Values) -> Values:
    """dq, dk, dv from dmap."""
    q, k, v, dmap = (_heads(op, values[name]) for name in ("q", "k", "v", "dmap"))
    p = values["p"]
    dv = np.einsum("nhaq,nhqk->nhak", dmap, p, optimize=True)
    dp = np.einsum("nhaq,nhak->nhqk", dmap, v, optimize=True)
    ds = p * (dp - np.sum(dp * p, axis=-1, keepdims=True)) / np.sqrt(q.shape[2]).astype(q.dtype)
    dq = np.einsum("nhqk,nhak->nhaq", ds, k, optimize=True)
    dk = np.einsum("nhqk,nhaq->nhak", ds, q, optimize=True)
    return {"dq": _merged(dq), "dk": _merged(dk), "dv": _merged(dv)}


def weight_gradient(op: Op, values: Values) -> Values:
    """Gradients of all projections."""
    results = {"dwo": np.einsum("nle,nfl->ef", values["dy"], values["map"], optimize=True)}
    results["dbo"] = values["dy"].sum(axis=(0, 1))
    for name in "qkv":
        gradient = values[f"d{name}"]
        results[f"dw{name}"] = np.einsum("nfl,nle->fe", gradient, values["x"], optimize=True)
        results[f"db{name}"] = gradient.sum(axis=(0, 2))  # that of k is asked for by nobody
    return results


def input_gradient(op: Op, values: Values) -> Values:
    """dx = sum over q, k, v of Wᵀ · gradient."""
    terms = [
        np.einsum("fe,nfl->nle", values[f"w{name}"], values[f"d{name}"], optimize=True) for name in "qkv"
    ]
    return {"dx": terms[0] + terms[1] + terms[2]}

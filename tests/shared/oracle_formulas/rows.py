# SPDX-License-Identifier: Apache-2.0
"""Row programs in other words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trainlib.ir.graph import Op
from trainlib.primitives.definition import Values
from trainlib.primitives.elementwise.functions import schraudolph, taylor


def _softmax(op: Op, values: Values) -> Values:
    kind = op.attributes["exponential"]
    x = values["x"]
    if kind == "exact":
        shifted = x.astype(np.float64)
        shifted -= shifted.max(
            axis=-1, keepdims=True
        )  # beside large x the logarithm of the sum would be lost
        return {"y": np.exp(shifted - np.logaddexp.reduce(shifted, axis=-1, keepdims=True))}
    below = x - np.amax(x, axis=-1, keepdims=True)
    weights = {"schraudolph": schraudolph, "taylor": taylor}[kind](below).astype(np.float64)
    return {"y": weights / np.sum(weights, axis=-1, keepdims=True)}


def _softmax_gradient(op: Op, values: Values) -> Values:
    y, dy = values["y"].astype(np.float64), values["dy"].astype(np.float64)
    inner = np.einsum("...i,...i->...", y, dy)
    return {"dx": y * dy - y * inner[..., None]}


def _log_softmax(op: Op, values: Values) -> Values:
    x = values["x"].astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)  # beside large x the logarithm of the sum would be lost
    return {"y": x - np.logaddexp.reduce(x, axis=-1, keepdims=True)}


def _log_softmax_gradient(op: Op, values: Values) -> Values:
    dy = values["dy"].astype(np.float64)
    return {"dx": dy - np.exp(values["y"].astype(np.float64)) * np.sum(dy, axis=-1, keepdims=True)}


ORACLES: Mapping[tuple[str, str], Callable[[Op, Values], Values]] = {
    ("softmax", "FW"): _softmax,
    ("softmax", "IG"): _softmax_gradient,
    ("log_softmax", "FW"): _log_softmax,
    ("log_softmax", "IG"): _log_softmax_gradient,
}
"""By primitive and step: results by role from arrays by role."""

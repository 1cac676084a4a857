# SPDX-License-Identifier: Apache-2.0
"""Row programs in other words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shared.oracle_formulas import Oracles

if TYPE_CHECKING:
    from trainlib.ir.graph import Op
    from trainlib.primitives.definition import Values


def _softmax(op: Op, values: Values) -> Values:
    """Of the exact exponential; `truth` has the bit tricks of PULP-TrainLib."""
    return {"y": np.exp(_log_softmax(op, values)["y"])} if op.attributes["exponential"] == "exact" else {}


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


def _reduced_axes(op: Op) -> tuple[int, ...]:
    """Those of the large tensor, the batch counted."""
    return tuple(range(op.attributes["first"], op.attributes["last"]))


def _mean(op: Op, values: Values) -> Values:
    y = np.sum(values["x"], axis=_reduced_axes(op), keepdims=op.attributes["keep_dims"], dtype=np.float64)
    return {"y": np.asarray(y / op.attributes["divisor"])}


def _mean_gradient(op: Op, values: Values) -> Values:
    dy, reduced = values["dy"], op.attributes["reduced"]
    wide = dy if op.attributes["keep_dims"] else np.expand_dims(dy, _reduced_axes(op))
    shape = (*wide.shape[: op.attributes["first"]], *reduced, *wide.shape[op.attributes["last"] :])
    return {"dx": np.broadcast_to(wide.astype(np.float64) / op.attributes["divisor"], shape)}


def _extreme(op: Op, values: Values) -> Values:
    pick = np.maximum if op.attributes["largest"] else np.minimum
    return {"y": pick.reduce(values["x"], axis=_reduced_axes(op), keepdims=op.attributes["keep_dims"])}


def _extreme_gradient(op: Op, values: Values) -> Values:
    x, first, last = values["x"], op.attributes["first"], op.attributes["last"]
    flat = x.reshape(*x.shape[:first], -1, *x.shape[last:])
    y, dy = (values[role].reshape(*x.shape[:first], 1, *x.shape[last:]) for role in ("y", "dy"))
    chosen = np.isclose(flat, y, rtol=2.0**-30, atol=0)
    if op.attributes["first_only"]:
        chosen &= np.cumsum(chosen, axis=first) == 1
    share = dy / np.maximum(np.sum(chosen, axis=first, keepdims=True), 1)
    return {"dx": np.where(chosen, share, 0).reshape(x.shape)}


def _spread(w: Any, rank: int) -> Any:
    """A slope for each channel, the axis behind the batch."""
    return np.expand_dims(w, (0, *range(2, rank))) if len(w) > 1 else w[0]


def _prelu(op: Op, values: Values) -> Values:
    x = values["x"]
    return {"y": np.maximum(x, 0) + _spread(values["w"], x.ndim) * np.minimum(x, 0)}


def _prelu_gradient(op: Op, values: Values) -> Values:
    right = np.greater(values["x"], 0)
    return {"dx": values["dy"] * (right + _spread(values["w"], right.ndim) * ~right)}


def _prelu_slopes(op: Op, values: Values) -> Values:
    terms = np.minimum(values["x"], 0) * values["dy"]
    if not op.attributes["per_channel"]:
        return {"dw": np.sum(terms).reshape(1)}
    return {"dw": np.moveaxis(terms, 1, 0).reshape(terms.shape[1], -1).sum(axis=1)}


ORACLES: Oracles = {
    ("softmax", "FW"): _softmax,
    ("softmax", "IG"): _softmax_gradient,
    ("log_softmax", "FW"): _log_softmax,
    ("log_softmax", "IG"): _log_softmax_gradient,
    ("prelu", "FW"): _prelu,
    ("prelu", "IG"): _prelu_gradient,
    ("prelu", "WG"): _prelu_slopes,
    **{(name, "FW"): _mean for name in ("reduce_mean", "reduce_sum")},
    **{(name, "IG"): _mean_gradient for name in ("reduce_mean", "reduce_sum")},
    **{(name, "FW"): _extreme for name in ("reduce_max", "reduce_min")},
    **{(name, "IG"): _extreme_gradient for name in ("reduce_max", "reduce_min")},
}

"""Untiled NumPy evaluation of what the recurrent layers share, whole batch at a time, any float dtype."""

from __future__ import annotations

import numpy as np

from trainlib.graph import Op
from trainlib.primitives.definition import Values
from trainlib.steps import Array


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), for large |x| too."""
    small = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, 1, small) / (1 + small)
    return result


def initial_state(values: Values, role: str, sequence: Array, hidden: int) -> Array:
    """The given state [batch, hidden], or zeros for the batch of `sequence`."""
    if role in values:
        return values[role]
    return np.zeros((len(sequence), hidden), sequence.dtype)


def weight_gradient(op: Op, values: Values) -> Values:
    """dwx, dwh and both bias gradients from the gradients of the gates of all steps."""
    g, y = values["g"], values["y"]
    at_hidden = values.get("gh", g)
    first = initial_state(values, "x1", y, y.shape[2])[:, None]
    before = np.concatenate([first, y[:, :-1]], axis=1)
    return {
        "dwx": np.einsum("nti,ntg->ig", values["x"], g, optimize=True),
        "dwh": np.einsum("nth,ntg->hg", before, at_hidden, optimize=True),
        "dbx": g.sum(axis=(0, 1)),
        "dbh": at_hidden.sum(axis=(0, 1)),
    }


def input_gradient(op: Op, values: Values) -> Values:
    """dx = g · wxᵀ."""
    return {"dx": np.einsum("ntg,ig->nti", values["g"], values["wx"], optimize=True)}

# SPDX-License-Identifier: Apache-2.0
"""Untiled NumPy evaluation of the recurrent layers, whole batch at a time, any float dtype.

Walk over the steps and products are written here once more; a cell is its row program.
"""

from __future__ import annotations

import numpy as np

from trainlib.ir.graph import Op
from trainlib.ir.steps import Array
from trainlib.primitives.definition import Reference, Values
from trainlib.primitives.recurrent.recurrent import Cell


def initial_state(values: Values, role: str, sequence: Array, hidden: int) -> Array:
    """The given state [batch, hidden], or zeros for the batch of `sequence`."""
    if role in values:
        return values[role]
    return np.zeros((len(sequence), hidden), sequence.dtype)


def forward(cell: Cell) -> Reference:
    """y and what is saved, from the first step to the last."""

    def reference(op: Op, values: Values) -> Values:
        x, wx, wh = values["x"], values["wx"], values["wh"]
        h, c = (initial_state(values, role, x, len(wh)) for role in ("x1", "x2"))
        steps: list[dict[str, Array]] = []
        for time in range(x.shape[1]):
            made = cell.advance(x[:, time] @ wx + values.get("bx", 0), h @ wh + values.get("bh", 0), h, c)
            h, c = made["y"], made.get("c", c)
            steps.append(made)
        return {role: np.stack([made[role] for made in steps], axis=1) for role in ("y", *cell.saved)}

    return reference


def backward(cell: Cell) -> Reference:
    """g and gh of all steps, and the gradients of the initial states, from the last step to the first."""

    def reference(op: Op, values: Values) -> Values:
        dy, wh = values["dy"], values["wh"]
        dh, dc = np.zeros_like(dy[:, 0]), np.zeros_like(dy[:, 0])
        steps: list[dict[str, Array]] = []
        for time in range(dy.shape[1] - 1, -1, -1):
            kept = {role: values[role][:, time] for role in ("y", *cell.saved) if role in values}
            for role, source, given in (("before", "y", "x1"), ("cell_before", "c", "x2")):
                if source in values:
                    first = initial_state(values, given, dy, dy.shape[2])
                    kept[role] = values[source][:, time - 1] if time else first
            made = cell.retreat(kept, dy[:, time] + dh, dc)
            dh = made.get("gh", made["g"]) @ wh.T + made.get("direct", 0)
            dc = made.get("dc", dc)
            steps.append(made)
        steps.reverse()
        results = {"dx1": dh, "dx2": dc}
        for role in ("g", "gh"):
            if role in steps[0]:
                results[role] = np.stack([made[role] for made in steps], axis=1)
        return results

    return reference


def projection(op: Op, values: Values) -> Values:
    """px [n, gates, L, hidden] = x · wx, and the biases that may be added before the recurrence."""
    flat = np.einsum("nti,ig->ntg", values["x"], values["wx"], optimize=True)
    flat = flat + values.get("bx", 0) + values.get("bh", 0)
    gates = flat.shape[2] // op.attributes["hidden"]
    return {"px": flat.reshape(*flat.shape[:2], gates, -1).swapaxes(1, 2)}


def weight_gradient(op: Op, values: Values) -> Values:
    """dwh and its bias gradient from the gradients of the gates of all steps."""
    y = values["y"]
    g = values["gh"] if "gh" in values else values["g"]
    first = initial_state(values, "x1", y, y.shape[2])[:, None]
    before = np.concatenate([first, y[:, :-1]], axis=1)
    return {"dwh": np.einsum("nth,ntg->hg", before, g, optimize=True), "dbh": g.sum(axis=(0, 1))}


def input_weight_gradient(op: Op, values: Values) -> Values:
    """dwx and its bias gradient."""
    x, g = values["x"], values["g"]
    return {"dwx": np.einsum("nti,ntg->ig", x, g, optimize=True), "dbx": g.sum(axis=(0, 1))}


def input_gradient(op: Op, values: Values) -> Values:
    """dx = g · wxᵀ."""
    return {"dx": np.einsum("ntg,ig->nti", values["g"], values["wx"], optimize=True)}

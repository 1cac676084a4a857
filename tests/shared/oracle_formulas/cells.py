# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells in other words than their row programs, a batch [n, gates·units] at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trainlib.ir.steps import Array
    from trainlib.primitives.definition import Values


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), for large |x| too."""
    small = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, 1, small) / (1 + small)
    return result


def _gru_advance(from_x: Array, from_h: Array, h: Array, c: Array) -> dict[str, Array]:
    x_r, x_z, x_n = np.split(from_x, 3, axis=1)
    h_r, h_z, h_n = np.split(from_h, 3, axis=1)
    r, z = _sigmoid(x_r + h_r), _sigmoid(x_z + h_z)
    n = np.tanh(x_n + r * h_n)
    return {"y": (1 - z) * n + z * h, "gates": np.hstack([r, z, n]), "hn": h_n}


def _gru_retreat(kept: Values, dh: Array, dc: Array) -> dict[str, Array]:
    r, z, n = np.split(kept["gates"], 3, axis=1)
    da_n = dh * (1 - z) * (1 - n**2)
    da_z = dh * (kept["before"] - n) * (z - z**2)
    da_r = da_n * kept["hn"] * (r - r**2)
    return {"g": np.hstack([da_r, da_z, da_n]), "gh": np.hstack([da_r, da_z, r * da_n]), "direct": z * dh}


def _lstm_advance(from_x: Array, from_h: Array, h: Array, c: Array) -> dict[str, Array]:
    i, f, g, o = np.split(from_x + from_h, 4, axis=1)
    i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
    new = f * c + i * g
    return {"y": o * np.tanh(new), "gates": np.hstack([i, f, g, o]), "c": new}


def _lstm_retreat(kept: Values, dh: Array, dc: Array) -> dict[str, Array]:
    i, f, g, o = np.split(kept["gates"], 4, axis=1)
    tanh_c = np.tanh(kept["c"])
    dc = dc + dh * o * (1 - tanh_c**2)
    parts = [dc * g * (i - i**2), dc * kept["cell_before"] * (f - f**2), dc * i * (1 - g**2)]
    return {"g": np.hstack([*parts, dh * tanh_c * (o - o**2)]), "dc": dc * f}


def _rnn_advance(from_x: Array, from_h: Array, h: Array, c: Array) -> dict[str, Array]:
    return {"y": np.tanh(from_x + from_h)}


def _rnn_retreat(kept: Values, dh: Array, dc: Array) -> dict[str, Array]:
    return {"g": (1 - kept["y"] ** 2) * dh}


ADVANCE = {"gru": _gru_advance, "lstm": _lstm_advance, "rnn": _rnn_advance}
RETREAT = {"gru": _gru_retreat, "lstm": _lstm_retreat, "rnn": _rnn_retreat}

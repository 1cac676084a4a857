# SPDX-License-Identifier: Apache-2.0
"""Vanilla recurrent layer: h_t = tanh(x_t·Wx + bx + h_{t-1}·Wh + bh), with backpropagation through time.

PULP-TrainLib's RNN takes all previous states from a buffer, has no biases, no state gradient, and does not
compile on its main branch. See `trainlib.primitives.recurrent.recurrent`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainlib.ir.steps import Array
from trainlib.primitives.definition import Example, Values
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.recurrent.recurrent import Cell, Pieces
from trainlib.primitives.recurrent.recurrent_layer import recurrent_primitive
from trainlib.primitives.recurrent.recurrent_reference import CellReference


class _TanhCell(Cell):
    """One gate, nothing saved but the output."""

    uses = ("y",)

    def forward(self, build: TileBuilder, pieces: Pieces) -> None:
        """h = tanh(p + q)."""
        projected, recurrent, state = (pieces[name] for name in ("projected", "recurrent", "after"))
        arrays, reads = {"P": projected, "Q": recurrent, "Y": state}, (projected, recurrent)
        hidden = state.shape[0]
        build.run("rnn_cell_fw", arrays, reads, (state,), lambda p, q: np.tanh(p + q), elements=hidden)

    def backward(self, build: TileBuilder, pieces: Pieces) -> None:
        """g = (1 - y²)(dy + carry)."""
        y, dy, carry, result = (pieces[name] for name in ("y", "dy", "carry", "g"))

        def gates(state: Array, arriving: Array, from_next: Array) -> Any:
            return (arriving + from_next) * (1 - state) * (1 + state)

        arrays = {"X": y, "G": dy, "D": carry, "Y": result}
        build.run("rnn_cell_bw", arrays, (y, dy, carry), (result,), gates, elements=y.shape[0])


def _advance(from_x: Array, from_h: Array, h: Array, c: Array) -> dict[str, Array]:
    return {"y": np.tanh(from_x + from_h)}


def _retreat(kept: Values, dh: Array, dc: Array) -> dict[str, Array]:
    return {"g": (1 - kept["y"] ** 2) * dh}


PRIMITIVE = recurrent_primitive(
    "rnn",
    _TanhCell(),
    CellReference(_advance, _retreat),
    examples=(
        Example({"hidden": 5}, ((4, 3),), roundings=10),
        Example({"hidden": 4, "bias": False}, ((3, 6), (4,)), roundings=10),
        Example({"hidden": 1}, ((1, 1), (1,)), roundings=10),
        Example({"hidden": 5, "stepwise": True}, ((4, 3),), roundings=10),
    ),
)

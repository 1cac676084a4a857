# SPDX-License-Identifier: Apache-2.0
"""Long short-term memory, gates input, forget, cell, output as in PyTorch: c' = f c + i g, h = o tanh(c').

Inputs: the sequence, and if wanted the initial state and the initial cell. FW saves gates and cells.
PULP-TrainLib has no LSTM; the lowering follows its RNN. See `trainlib.primitives.recurrent.recurrent`.
"""

from __future__ import annotations

import numpy as np

from trainlib.ir.steps import Array
from trainlib.primitives.definition import Example, Values
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.recurrent.recurrent import Cell, Pieces, logistic
from trainlib.primitives.recurrent.recurrent_layer import recurrent_primitive
from trainlib.primitives.recurrent.recurrent_reference import CellReference, sigmoid


class _LstmCell(Cell):
    """Four gates and a cell."""

    gates = 4
    has_cell = True
    gates_saved = True
    uses = ("gates", "c", "cell_before")

    def forward(self, build: TileBuilder, pieces: Pieces) -> None:
        """The gates in place of the projection, the new cell and the new state."""
        names = ("projected", "recurrent", "cell_before", "cell_after", "after")
        projected, recurrent, cell, cell_after, state = (pieces[name] for name in names)
        hidden = state.shape[0]

        def states(*arrays: Array) -> tuple[Array, ...]:
            sums = (arrays[0] + arrays[1]).reshape(4, hidden)
            let_in, keep, let_out = (logistic(sums[index]) for index in (0, 1, 3))
            candidate = np.tanh(sums[2])
            new = keep * arrays[2] + let_in * candidate
            return np.concatenate([let_in, keep, candidate, let_out]), new, let_out * np.tanh(new)

        arrays = {"P": projected, "Q": recurrent, "C": cell, "D": cell_after, "Y": state}
        reads, writes = (projected, recurrent, cell), (projected, cell_after, state)
        build.run("lstm_cell_fw", arrays, reads, writes, states, elements=hidden)

    def backward(self, build: TileBuilder, pieces: Pieces) -> None:
        """Gradients of the gates, and of the cell before, in place of that of the cell after."""
        names = ("gates", "c", "cell_before", "dy", "carry", "cell_carry")
        given, result = tuple(pieces[name] for name in names), pieces["g"]
        hidden = given[1].shape[0]

        def gradients(*arrays: Array) -> tuple[Array, ...]:
            let_in, keep, candidate, let_out = arrays[0].reshape(4, hidden)
            _, now, previous, arriving, from_next, cell_gradient = arrays
            gradient, squashed = arriving + from_next, np.tanh(now)
            at_cell = cell_gradient + gradient * let_out * (1 - squashed) * (1 + squashed)
            gates_out = (
                at_cell * candidate * let_in * (1 - let_in),
                at_cell * previous * keep * (1 - keep),
                at_cell * let_in * (1 - candidate) * (1 + candidate),
                gradient * squashed * let_out * (1 - let_out),
            )
            return np.concatenate(gates_out), at_cell * keep

        arrays = dict(zip("PCXGDZY", (*given, result), strict=True))
        results = (result, given[-1])
        build.run("lstm_cell_bw", arrays, given, results, gradients, elements=hidden)


def _advance(from_x: Array, from_h: Array, h: Array, c: Array) -> dict[str, Array]:
    i, f, g, o = np.split(from_x + from_h, 4, axis=1)
    i, f, g, o = sigmoid(i), sigmoid(f), np.tanh(g), sigmoid(o)
    new = f * c + i * g
    return {"y": o * np.tanh(new), "gates": np.hstack([i, f, g, o]), "c": new}


def _retreat(kept: Values, dh: Array, dc: Array) -> dict[str, Array]:
    i, f, g, o = np.split(kept["gates"], 4, axis=1)
    tanh_c = np.tanh(kept["c"])
    dc = dc + dh * o * (1 - tanh_c**2)
    parts = [dc * g * (i - i**2), dc * kept["cell_before"] * (f - f**2), dc * i * (1 - g**2)]
    return {"g": np.hstack([*parts, dh * tanh_c * (o - o**2)]), "dc": dc * f}


PRIMITIVE = recurrent_primitive(
    "lstm",
    _LstmCell(),
    CellReference(_advance, _retreat, ("gates", "c")),
    examples=(
        Example({"hidden": 5}, ((4, 3),), roundings=14),
        Example({"hidden": 4, "bias": False}, ((3, 6), (4,), (4,)), roundings=14),
        Example({"hidden": 3}, ((2, 2), (3,)), roundings=14),
        Example({"hidden": 1}, ((1, 1),), roundings=14),
        Example({"hidden": 5, "stepwise": True}, ((4, 3), (5,), (5,)), roundings=14),
    ),
)

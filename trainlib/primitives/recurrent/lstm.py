# SPDX-License-Identifier: Apache-2.0
"""Long short-term memory, gates input, forget, cell, output as in PyTorch: c' = f c + i g, h = o tanh(c').

Inputs: the sequence, and if wanted the initial state and the initial cell. FW saves gates and cells.
PULP-TrainLib has no LSTM; the lowering follows its RNN. See `trainlib.primitives.recurrent.recurrent`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainlib.ir.steps import Array
from trainlib.primitives.definition import Example
from trainlib.primitives.lowering.row_loop import RowLoop
from trainlib.primitives.recurrent.recurrent import Cell, CellLoop, Gates, logistic
from trainlib.primitives.recurrent.recurrent_layer import recurrent_primitive


def _states(projected: Gates, recurrent: Gates, cell: Array) -> Any:
    """The gates in place of the projection, the new cell and the new state."""
    let_in, keep, candidate, let_out = (p + q for p, q in zip(projected, recurrent, strict=True))
    let_in, keep, let_out = logistic(let_in), logistic(keep), logistic(let_out)
    candidate = np.tanh(candidate)
    new = keep * cell + let_in * candidate
    return (let_in, keep, candidate, let_out), new, let_out * np.tanh(new)


def _gradients(gates: Gates, now: Array, before: Array, dy: Array, carry: Array, dc: Array) -> Any:
    """Gradients of the gates, and of the cell before, in place of that of the cell after."""
    let_in, keep, candidate, let_out = gates
    gradient, squashed = dy + carry, np.tanh(now)
    at_cell = dc + gradient * let_out * (1 - squashed) * (1 + squashed)
    gates_out = (
        at_cell * candidate * let_in * (1 - let_in),
        at_cell * before * keep * (1 - keep),
        at_cell * let_in * (1 - candidate) * (1 + candidate),
        gradient * squashed * let_out * (1 - let_out),
    )
    return gates_out, at_cell * keep


CELL = Cell(
    forward=CellLoop(
        "lstm_cell_fw",
        {"P": "projected", "Q": "recurrent", "C": "cell_before", "D": "cell_after", "Y": "after"},
        RowLoop(_states, "PQC", "PDY", parts={"P": 4, "Q": 4}),
    ),
    backward=CellLoop(
        "lstm_cell_bw",
        {
            **{"P": "gates", "C": "c", "X": "cell_before", "G": "dy"},
            **{"D": "carry", "Z": "cell_carry", "Y": "g"},
        },
        RowLoop(_gradients, "PCXGDZ", "YZ", parts={"P": 4, "Y": 4}),
    ),
    uses=("gates", "c", "cell_before"),
    gates=4,
    has_cell=True,
    gates_saved=True,
)

PRIMITIVE = recurrent_primitive(
    "lstm",
    CELL,
    examples=(
        Example({"hidden": 5}, ((4, 3),), roundings=14),
        Example({"hidden": 4, "bias": False}, ((3, 6), (4,), (4,)), roundings=14),
        Example({"hidden": 3}, ((2, 2), (3,)), roundings=14),
        Example({"hidden": 1}, ((1, 1),), roundings=14),
        Example({"hidden": 5, "stepwise": True}, ((4, 3), (5,), (5,)), roundings=14),
    ),
)

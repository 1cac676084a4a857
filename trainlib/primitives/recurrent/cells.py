# SPDX-License-Identifier: Apache-2.0
"""The recurrent cells; `trainlib.primitives.recurrent.recurrent` makes layers of them.

RNN: h_t = tanh(x_t·Wx + bx + h_{t-1}·Wh + bh), with backpropagation through time. PULP-TrainLib's takes all
previous states from a buffer, has no biases, no state gradient, and does not compile on its main branch.

GRU, gates reset, update, new as in PyTorch: h' = (1 - z) n + z h with r = σ(px_r + qh_r), z = σ(px_z + qh_z),
n = tanh(px_n + r·qh_n), px = x·Wx + bx and qh = h·Wh + bh. The reset gate multiplies the recurrent product
with its bias, so that bias is added at every step. FW saves the gates and qh_n.

LSTM, gates input, forget, cell, output as in PyTorch: c' = f c + i g, h = o tanh(c'). Inputs: the sequence,
and if wanted the initial state and the initial cell. FW saves gates and cells. PULP-TrainLib has neither; the
lowerings follow its RNN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainlib.ir.steps import Array
from trainlib.primitives.definition import Example
from trainlib.primitives.lowering.row_loop import RowLoop
from trainlib.primitives.recurrent.recurrent import Cell, CellLoop, Gates, logistic
from trainlib.primitives.recurrent.recurrent_layer import recurrent_primitive

RNN = Cell(
    forward=CellLoop(
        "rnn_cell_fw",
        {"P": "projected", "Q": "recurrent", "Y": "after"},
        RowLoop(lambda p, q: np.tanh(p + q), "PQ", "Y"),
    ),
    backward=CellLoop(
        "rnn_cell_bw",
        {"X": "y", "G": "dy", "D": "carry", "Y": "g"},
        RowLoop(lambda y, dy, carry: (dy + carry) * (1 - y) * (1 + y), "XGD", "Y"),
    ),
    uses=("y",),
)


def _gru_states(projected: Gates, recurrent: Gates, before: Array) -> Any:
    """The gates in place of the projection, the new state, the part of n that r multiplies."""
    (p_r, p_z, p_n), (q_r, q_z, q_n) = projected, recurrent
    reset, update = logistic(p_r + q_r), logistic(p_z + q_z)
    new = np.tanh(p_n + reset * q_n)
    return (reset, update, new), new + update * (before - new), q_n


def _gru_gradients(gates: Gates, hn: Array, before: Array, dy: Array, carry: Array) -> Any:
    """Gradients at both products, and the way of the gradient around the gates (times z)."""
    reset, update, new = gates
    gradient = dy + carry
    g_new = gradient * (1 - update) * (1 - new) * (1 + new)
    g_update = gradient * (before - new) * update * (1 - update)
    g_reset = g_new * hn * reset * (1 - reset)
    return (g_reset, g_update, g_new), (g_reset, g_update, g_new * reset), gradient * update


GRU = Cell(
    forward=CellLoop(
        "gru_cell_fw",
        {"P": "projected", "Q": "recurrent", "H": "before", "Y": "after", "N": "hn"},
        RowLoop(_gru_states, "PQH", "PYN", parts={"P": 3, "Q": 3}),
    ),
    backward=CellLoop(
        "gru_cell_bw",
        {
            **{"P": "gates", "N": "hn", "H": "before", "G": "dy"},
            **{"D": "carry", "Y": "g", "Z": "gh", "E": "direct"},
        },
        RowLoop(_gru_gradients, "PNHGD", "YZE", parts={"P": 3, "Y": 3, "Z": 3}),
    ),
    uses=("gates", "hn", "before"),
    gates=3,
    late_bias=True,
    gates_saved=True,
    hidden_saved=True,
    hidden_gradient=True,
)


def _lstm_states(projected: Gates, recurrent: Gates, cell: Array) -> Any:
    """The gates in place of the projection, the new cell and the new state."""
    let_in, keep, candidate, let_out = (p + q for p, q in zip(projected, recurrent, strict=True))
    let_in, keep, let_out = logistic(let_in), logistic(keep), logistic(let_out)
    candidate = np.tanh(candidate)
    new = keep * cell + let_in * candidate
    return (let_in, keep, candidate, let_out), new, let_out * np.tanh(new)


def _lstm_gradients(gates: Gates, now: Array, before: Array, dy: Array, carry: Array, dc: Array) -> Any:
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


LSTM = Cell(
    forward=CellLoop(
        "lstm_cell_fw",
        {"P": "projected", "Q": "recurrent", "C": "cell_before", "D": "cell_after", "Y": "after"},
        RowLoop(_lstm_states, "PQC", "PDY", parts={"P": 4, "Q": 4}),
    ),
    backward=CellLoop(
        "lstm_cell_bw",
        {
            **{"P": "gates", "C": "c", "X": "cell_before", "G": "dy"},
            **{"D": "carry", "Z": "cell_carry", "Y": "g"},
        },
        RowLoop(_lstm_gradients, "PCXGDZ", "YZ", parts={"P": 4, "Y": 4}),
    ),
    uses=("gates", "c", "cell_before"),
    gates=4,
    has_cell=True,
    gates_saved=True,
)

PRIMITIVES = (
    recurrent_primitive(
        "rnn",
        RNN,
        examples=(
            Example({"hidden": 5}, ((4, 3),), roundings=10),
            Example({"hidden": 4, "bias": False}, ((3, 6), (4,)), roundings=10),
            Example({"hidden": 1}, ((1, 1), (1,)), roundings=10),
            Example({"hidden": 5, "stepwise": True}, ((4, 3),), roundings=10),
        ),
    ),
    recurrent_primitive(
        "gru",
        GRU,
        examples=(
            Example({"hidden": 5}, ((4, 3),), roundings=14),
            Example({"hidden": 4, "bias": False}, ((3, 6), (4,)), roundings=14),
            Example({"hidden": 1}, ((1, 1), (1,)), roundings=14),
            Example({"hidden": 5, "stepwise": True}, ((4, 3), (5,)), roundings=14),
        ),
    ),
    recurrent_primitive(
        "lstm",
        LSTM,
        examples=(
            Example({"hidden": 5}, ((4, 3),), roundings=14),
            Example({"hidden": 4, "bias": False}, ((3, 6), (4,), (4,)), roundings=14),
            Example({"hidden": 3}, ((2, 2), (3,)), roundings=14),
            Example({"hidden": 1}, ((1, 1),), roundings=14),
            Example({"hidden": 5, "stepwise": True}, ((4, 3), (5,), (5,)), roundings=14),
        ),
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""Gated recurrent unit, gates reset, update, new as in PyTorch: h' = (1 - z) n + z h.

r = σ(px_r + qh_r), z = σ(px_z + qh_z), n = tanh(px_n + r·qh_n), with px = x·Wx + bx and qh = h·Wh + bh. The
reset gate multiplies the recurrent product with its bias, so that bias is added at every step. FW saves the
gates and qh_n. PULP-TrainLib has no GRU; the lowering follows its RNN. See
`trainlib.primitives.recurrent.recurrent`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainlib.ir.steps import Array
from trainlib.primitives.definition import Example
from trainlib.primitives.lowering.row_loop import RowLoop
from trainlib.primitives.recurrent.recurrent import Cell, CellLoop, Gates, logistic
from trainlib.primitives.recurrent.recurrent_layer import recurrent_primitive


def _states(projected: Gates, recurrent: Gates, before: Array) -> Any:
    """The gates in place of the projection, the new state, the part of n that r multiplies."""
    (p_r, p_z, p_n), (q_r, q_z, q_n) = projected, recurrent
    reset, update = logistic(p_r + q_r), logistic(p_z + q_z)
    new = np.tanh(p_n + reset * q_n)
    return (reset, update, new), new + update * (before - new), q_n


def _gradients(gates: Gates, hn: Array, before: Array, dy: Array, carry: Array) -> Any:
    """Gradients at both products, and the way of the gradient around the gates (times z)."""
    reset, update, new = gates
    gradient = dy + carry
    g_new = gradient * (1 - update) * (1 - new) * (1 + new)
    g_update = gradient * (before - new) * update * (1 - update)
    g_reset = g_new * hn * reset * (1 - reset)
    return (g_reset, g_update, g_new), (g_reset, g_update, g_new * reset), gradient * update


CELL = Cell(
    forward=CellLoop(
        "gru_cell_fw",
        {"P": "projected", "Q": "recurrent", "H": "before", "Y": "after", "N": "hn"},
        RowLoop(_states, "PQH", "PYN", parts={"P": 3, "Q": 3}),
    ),
    backward=CellLoop(
        "gru_cell_bw",
        {
            **{"P": "gates", "N": "hn", "H": "before", "G": "dy"},
            **{"D": "carry", "Y": "g", "Z": "gh", "E": "direct"},
        },
        RowLoop(_gradients, "PNHGD", "YZE", parts={"P": 3, "Y": 3, "Z": 3}),
    ),
    uses=("gates", "hn", "before"),
    gates=3,
    late_bias=True,
    gates_saved=True,
    hidden_saved=True,
    hidden_gradient=True,
)

PRIMITIVE = recurrent_primitive(
    "gru",
    CELL,
    examples=(
        Example({"hidden": 5}, ((4, 3),), roundings=14),
        Example({"hidden": 4, "bias": False}, ((3, 6), (4,)), roundings=14),
        Example({"hidden": 1}, ((1, 1), (1,)), roundings=14),
        Example({"hidden": 5, "stepwise": True}, ((4, 3), (5,)), roundings=14),
    ),
)

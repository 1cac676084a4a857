# SPDX-License-Identifier: Apache-2.0
"""Vanilla recurrent layer: h_t = tanh(x_t·Wx + bx + h_{t-1}·Wh + bh), with backpropagation through time.

PULP-TrainLib's RNN takes all previous states from a buffer, has no biases, no state gradient, and does not
compile on its main branch. See `trainlib.primitives.recurrent.recurrent`.
"""

from __future__ import annotations

import numpy as np

from trainlib.primitives.definition import Example
from trainlib.primitives.lowering.row_loop import RowLoop
from trainlib.primitives.recurrent.recurrent import Cell, CellLoop
from trainlib.primitives.recurrent.recurrent_layer import recurrent_primitive

CELL = Cell(
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

PRIMITIVE = recurrent_primitive(
    "rnn",
    CELL,
    examples=(
        Example({"hidden": 5}, ((4, 3),), roundings=10),
        Example({"hidden": 4, "bias": False}, ((3, 6), (4,)), roundings=10),
        Example({"hidden": 1}, ((1, 1), (1,)), roundings=10),
        Example({"hidden": 5, "stepwise": True}, ((4, 3),), roundings=10),
    ),
)

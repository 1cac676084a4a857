# SPDX-License-Identifier: Apache-2.0
"""Vanilla recurrent layer: h_t = tanh(x_t·Wx + bx + h_{t-1}·Wh + bh), with backpropagation through time.

PULP-TrainLib's RNN takes all previous states from a buffer, has no biases, no state gradient, and does not
compile on its main branch. See `trainlib.primitives.recurrent.recurrent`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from configs.dtypes import DType
from trainlib.primitives.definition import Example, Values
from trainlib.primitives.lowering.pieces import kernel_call
from trainlib.primitives.recurrent.recurrent import Cell, Pieces
from trainlib.primitives.recurrent.recurrent_layer import recurrent_primitive
from trainlib.primitives.recurrent.recurrent_reference import CellReference
from trainlib.steps import Array, KernelCall, KernelChoice


class _TanhCell(Cell):
    """One gate, nothing saved but the output."""

    uses = ("y",)

    def forward(self, choice: KernelChoice, pieces: Pieces, dtype: DType) -> KernelCall:
        """h = tanh(p + q)."""
        projected, recurrent, state = (pieces[name] for name in ("projected", "recurrent", "after"))
        return kernel_call(
            choice,
            "rnn_cell_fw",
            {"elements": state.shape[0]},
            {"P": projected, "Q": recurrent, "Y": state},
            (projected, recurrent),
            (state,),
            lambda arrays: (np.tanh(arrays[0] + arrays[1]),),
            dtype,
        )

    def backward(self, choice: KernelChoice, pieces: Pieces, dtype: DType) -> KernelCall:
        """g = (1 - y²)(dy + carry)."""
        y, dy, carry, result = (pieces[name] for name in ("y", "dy", "carry", "g"))

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            state, arriving, from_next = arrays
            return ((arriving + from_next) * (1 - state) * (1 + state),)

        return kernel_call(
            choice,
            "rnn_cell_bw",
            {"elements": y.shape[0]},
            {"X": y, "G": dy, "D": carry, "Y": result},
            (y, dy, carry),
            (result,),
            function,
            dtype,
        )


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

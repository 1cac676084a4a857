# SPDX-License-Identifier: Apache-2.0
"""Gated recurrent unit, gates reset, update, new as in PyTorch: h' = (1 - z) n + z h.

r = σ(px_r + qh_r), z = σ(px_z + qh_z), n = tanh(px_n + r·qh_n), with px = x·Wx + bx and qh = h·Wh + bh. The
reset gate multiplies the recurrent product with its bias, so that bias is added at every step. FW saves the
gates and qh_n. PULP-TrainLib has no GRU; the lowering follows its RNN. See
`trainlib.primitives.recurrent.recurrent`.
"""

from __future__ import annotations

import numpy as np

from trainlib.ir.steps import Array
from trainlib.primitives.definition import Example, Values
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.recurrent.recurrent import Cell, Pieces, logistic
from trainlib.primitives.recurrent.recurrent_layer import recurrent_primitive
from trainlib.primitives.recurrent.recurrent_reference import CellReference, sigmoid


class _GruCell(Cell):
    """Three gates."""

    gates = 3
    late_bias = True
    gates_saved = True
    hidden_saved = True
    hidden_gradient = True
    uses = ("gates", "hn", "before")

    def forward(self, build: TileBuilder, pieces: Pieces) -> None:
        """The gates in place of the projection, the new state, the part of n that r multiplies."""
        names = ("projected", "recurrent", "before", "after", "hn")
        projected, recurrent, state, after, kept = (pieces[name] for name in names)
        hidden = state.shape[0]

        def states(*arrays: Array) -> tuple[Array, ...]:
            (p_r, p_z, p_n), (q_r, q_z, q_n) = (array.reshape(3, hidden) for array in arrays[:2])
            reset, update = logistic(p_r + q_r), logistic(p_z + q_z)
            new = np.tanh(p_n + reset * q_n)
            return np.concatenate([reset, update, new]), new + update * (arrays[2] - new), q_n

        arrays = {"P": projected, "Q": recurrent, "H": state, "Y": after, "N": kept}
        reads, writes = (projected, recurrent, state), (projected, after, kept)
        build.run("gru_cell_fw", arrays, reads, writes, states, elements=hidden)

    def backward(self, build: TileBuilder, pieces: Pieces) -> None:
        """Gradients at both products, and the way of the gradient around the gates (times z)."""
        names = ("gates", "hn", "before", "dy", "carry")
        given = tuple(pieces[name] for name in names)
        results = tuple(pieces[name] for name in ("g", "gh", "direct"))
        hidden = given[1].shape[0]

        def gradients(*arrays: Array) -> tuple[Array, ...]:
            reset, update, new = arrays[0].reshape(3, hidden)
            _, recurrent, previous, arriving, from_next = arrays
            gradient = arriving + from_next
            g_new = gradient * (1 - update) * (1 - new) * (1 + new)
            g_update = gradient * (previous - new) * update * (1 - update)
            g_reset = g_new * recurrent * reset * (1 - reset)
            return (
                np.concatenate([g_reset, g_update, g_new]),
                np.concatenate([g_reset, g_update, g_new * reset]),
                gradient * update,
            )

        arrays = dict(zip("PNHGDYZE", (*given, *results), strict=True))
        build.run("gru_cell_bw", arrays, given, results, gradients, elements=hidden)


def _advance(from_x: Array, from_h: Array, h: Array, c: Array) -> dict[str, Array]:
    x_r, x_z, x_n = np.split(from_x, 3, axis=1)
    h_r, h_z, h_n = np.split(from_h, 3, axis=1)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = np.tanh(x_n + r * h_n)
    return {"y": (1 - z) * n + z * h, "gates": np.hstack([r, z, n]), "hn": h_n}


def _retreat(kept: Values, dh: Array, dc: Array) -> dict[str, Array]:
    r, z, n = np.split(kept["gates"], 3, axis=1)
    da_n = dh * (1 - z) * (1 - n**2)
    da_z = dh * (kept["before"] - n) * (z - z**2)
    da_r = da_n * kept["hn"] * (r - r**2)
    return {"g": np.hstack([da_r, da_z, da_n]), "gh": np.hstack([da_r, da_z, r * da_n]), "direct": z * dh}


PRIMITIVE = recurrent_primitive(
    "gru",
    _GruCell(),
    CellReference(_advance, _retreat, ("gates", "hn")),
    examples=(
        Example({"hidden": 5}, ((4, 3),), roundings=14),
        Example({"hidden": 4, "bias": False}, ((3, 6), (4,)), roundings=14),
        Example({"hidden": 1}, ((1, 1), (1,)), roundings=14),
        Example({"hidden": 5, "stepwise": True}, ((4, 3), (5,)), roundings=14),
    ),
)

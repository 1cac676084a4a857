# SPDX-License-Identifier: Apache-2.0
"""Lowering of the forward step of the recurrent layers, and what all their steps share.

One layer, one direction, the whole sequence: x [batch, length, features] to y [batch, length, hidden]; the
initial state is zero or a further input. Weights are stored as PULP-TrainLib multiplies them, wx [features,
gates·hidden] and wh [hidden, gates·hidden] (PyTorch's transposed), gates in PyTorch's order, and there are
two biases, as in PyTorch.

FW: per sample P = X·Wx for the whole sequence (N=length, K=features, M=gates·hidden, the published extents),
then for each time step q = h·Wh (N=1, K=hidden, M=gates·hidden) and an elementwise cell. PULP-TrainLib has no
recurrence: it takes all states from a buffer and multiplies once. Here the state goes from step to step.
BPTT: last step first, gradients of the gates from dy and the carry, carry = g·Whᵀ (N=1). WG and IG then are
matmuls over the whole sequence: dWx = Xᵀ·g, dWh = Hᵀ·g, dX = g·Wxᵀ, with the transposes the library makes.
Steps work on one sample at a time. FW and BPTT hold the whole sequence and Wh in L1 and may be cut over the
batch only; where that is too much, the option `stepwise` makes a step of each time step
(`trainlib.primitives.recurrent.recurrent_steps`). WG and IG may be cut in every dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from configs.values import Struct
from trainlib.ir.graph import Op
from trainlib.ir.steps import Array, Tensors, part
from trainlib.primitives.lowering.axes import Area, Axes, AxesLowering
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.pieces import Piece, TileBuilder
from trainlib.primitives.lowering.row_loop import RowLoop

PROJECTION, RECURRENT, STATES, CELLS = "projection", "recurrent", "states", "cells"
"""Scratch of FW: X·Wx, h·Wh of one step, states and LSTM cells of all steps, the initial one first."""

START, CARRY, CELL_CARRY = "start", "carry", "cell_carry"
GATES_OUT, HIDDEN_OUT, DIRECT = "gate_gradients", "hidden_gradients", "direct"
"""Scratch of BPTT: a zero state, what comes back from the next step, gradients of the gates of all steps."""

Pieces = Mapping[str, Piece]
"""What a cell works on at one time step, `hidden` elements each or `hidden` of every gate.

Forward: projected (becomes the gates), recurrent, before and after (states), hn, cell_before, cell_after.
Backward: gates, hn, y, c (as saved), before, cell_before, dy, carry, cell_carry (in place), g, gh, direct.
"""

Gates = tuple[Array, ...]
"""An array of every gate."""


def logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)) by way of tanh, as the cells compute it."""
    result: Array = np.float32(0.5) + np.float32(0.5) * np.tanh(x / 2)
    return result


class CellLoop(Struct, frozen=True):
    """A cell at one time step: the nest, what lies in its arrays (names of `Pieces`), and its row program."""

    nest: str
    pieces: Mapping[str, str]
    loop: RowLoop

    def run(self, build: TileBuilder, pieces: Pieces) -> None:
        """The call of a tile."""
        arrays = {array: pieces[name] for array, name in self.pieces.items()}
        units = next(piece.shape[0] for array, piece in arrays.items() if array not in self.loop.parts)
        reads, writes = ([arrays[name] for name in side] for side in (self.loop.reads, self.loop.writes))

        def compute(*given: Array) -> tuple[Array, ...]:
            return tuple(self.loop.compute(dict(zip(self.loop.reads, given, strict=True))).values())

        build.run(self.nest, {"elements": units}, arrays, reads, writes, compute, {"rows": self.loop})

    def whole(self, values: Mapping[str, Any]) -> dict[str, Array]:
        """The same of a batch [n, units], by names of pieces: the untiled reference."""
        read = {array: values[name] for array, name in self.pieces.items() if array in self.loop.reads}
        return {self.pieces[array]: made for array, made in self.loop.compute(read, axis=1).items()}


class Cell(Struct, frozen=True):
    """One kind of recurrent cell: number of gates, what FW saves, and its elementwise kernels."""

    forward: CellLoop
    """The cell at one time step."""
    backward: CellLoop
    """Gradients of the gates at one time step."""
    uses: tuple[str, ...]
    """What the backward kernel reads beside the gradients: saved roles, before, cell_before."""
    gates: int = 1
    has_cell: bool = False
    late_bias: bool = False
    """Whether the bias of the recurrent product has to be added to that product (and not to the other)."""
    gates_saved: bool = False
    hidden_saved: bool = False
    hidden_gradient: bool = False
    """Whether the gradient at the recurrent product differs from that at the input's."""

    @property
    def gradients(self) -> tuple[str, ...]:
        """Roles of the gradients at the products, that at the recurrent one last."""
        return ("g", "gh") if self.hidden_gradient else ("g",)

    @property
    def saved(self) -> dict[str, int]:
        """What FW saves beside y, with the number of values per unit."""
        widths = {"gates": self.gates * self.gates_saved, "hn": self.hidden_saved, "c": self.has_cell}
        return {role: int(count) for role, count in widths.items() if count}

    def advance(self, from_x: Array, from_h: Array, h: Array, c: Array) -> dict[str, Array]:
        """y and what is saved of one time step, from x·Wx + bx, h·Wh + bh, and the state and cell before."""
        given = {"projected": from_x, "recurrent": from_h, "before": h, "cell_before": c}
        made = self.forward.whole(given)
        roles = {"after": "y", "projected": "gates", "hn": "hn", "cell_after": "c"}
        return {role: made[name] for name, role in roles.items() if role == "y" or role in self.saved}

    def retreat(self, kept: Mapping[str, Array], dh: Array, dc: Array) -> dict[str, Array]:
        """g, gh (where it differs), direct (around the gates to the state before), dc (to the cell before).

        From what was saved, and the gradients that arrive at y and c.
        """
        made = self.backward.whole({**kept, "dy": dh, "carry": 0.0, "cell_carry": dc})
        return {"dc" if name == "cell_carry" else name: array for name, array in made.items()}


_SEQUENCES = {"features": ("x", "dx"), "hidden": ("y", "dy", "c", "hn"), "columns": ("gates", "g", "gh")}

_AXES: Mapping[str, Axes] = {
    **{role: (BATCH, "steps", width) for width, roles in _SEQUENCES.items() for role in roles},
    **dict.fromkeys(("x1", "x2", "dx1", "dx2"), (BATCH, "hidden")),
    **{"wx": ("features", "columns"), "wh": ("hidden", "columns"), "bx": ("columns",), "bh": ("columns",)},
}
"""Dimensions of every tensor."""


class RecurrentLowering(AxesLowering):
    """What the steps share."""

    kept: Axes = (BATCH,)

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    def axes(self, role: str) -> Axes:
        """Sequences, states and weights."""
        return _AXES[role]

    def default_kernel(self, op: Op) -> str:
        """Columns over cores: with N = 1 a split of rows would leave all cores but one idle."""
        return "mm_M"

    @staticmethod
    def sizes(op: Op) -> tuple[int, int, int, int]:
        """Length, features, hidden, gates·hidden."""
        numbers = op.attributes
        hidden = numbers["hidden"]
        return numbers["length"], numbers["features"], hidden, numbers["gates"] * hidden

    def dimensions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, steps, input features, the state; columns of all gates, or gates and units of each."""
        length, features, hidden, columns = self.sizes(op)
        sizes = {BATCH: op.attributes["batch"], "steps": length, "features": features, "hidden": hidden}
        return {**sizes, "columns": columns, "gates": self.cell.gates, "units": hidden}


class Forward(RecurrentLowering):
    """FW; the batch may be cut."""

    def macs(self, op: Op, tensors: Tensors) -> int:
        """Input and recurrent product of every step."""
        length, features, hidden, columns = self.sizes(op)
        return int(op.attributes["batch"]) * length * columns * (features + hidden)

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some samples, one after the other; all weights."""
        length, _, hidden, columns = self.sizes(area.op)
        build.temporary(PROJECTION, length, columns)
        build.temporary(RECURRENT, columns)
        build.temporary(STATES, length + 1, hidden)
        if self.cell.has_cell:
            build.temporary(CELLS, length + 1, hidden)
        if self.cell.hidden_saved:
            build.temporary("hidden_part", length, hidden)
        for sample in area.samples:
            self._sample(area.op, build, sample)

    def _sample(self, op: Op, build: TileBuilder, sample: int) -> None:
        length, features, hidden, columns = self.sizes(op)
        cell = self.cell
        projection, recurrent = Piece(PROJECTION, (length, columns)), Piece(RECURRENT, (columns,))
        x = Piece(part("x", sample), (length, features))
        wx, wh = Piece("wx", (features, columns)), Piece("wh", (hidden, columns))
        build.matmul(x, wx, projection)
        for role in ("bx", "bh"):
            if role in op and not (role == "bh" and cell.late_bias):
                build.add(projection, Piece(role, (columns,)))
        starts = [(STATES, "x1")] + ([(CELLS, "x2")] if cell.has_cell else [])
        for buffer, role in starts:
            given = Piece(part(role, sample), (hidden,)) if role in op else None
            build.copy_or_zero(given, Piece(part(buffer, 0), (hidden,)))
        for time in range(length):
            build.matmul(Piece(part(STATES, time), (hidden,)), wh, recurrent)
            if cell.late_bias and "bh" in op:
                build.add(recurrent, Piece("bh", (columns,)))
            pieces = {
                "projected": projection.row(time),
                "recurrent": recurrent,
                "before": Piece(part(STATES, time), (hidden,)),
                "after": Piece(part(STATES, time + 1), (hidden,)),
                "hn": Piece(part("hidden_part", time), (hidden,)),
                "cell_before": Piece(part(CELLS, time), (hidden,)),
                "cell_after": Piece(part(CELLS, time + 1), (hidden,)),
            }
            cell.forward.run(build, pieces)
        kept = {
            "y": Piece(STATES, (length, hidden), hidden),
            "gates": projection,
            "c": Piece(CELLS, (length, hidden), hidden),
            "hn": Piece("hidden_part", (length, hidden)),
        }
        for role in op.writes:
            build.copy(kept[role], Piece(part(role, sample), kept[role].shape))

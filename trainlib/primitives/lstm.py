"""Long short-term memory, gates input, forget, cell, output as in PyTorch: c' = f c + i g, h = o tanh(c').

Inputs: the sequence, and if wanted the initial state and the initial cell. FW saves gates and cells.
PULP-TrainLib has no LSTM; the lowering follows its RNN. See `trainlib.primitives.recurrent`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainlib.graph import Op, Tensor
from trainlib.primitives import recurrent_reference as shared
from trainlib.primitives.definition import Example, LayerPlan, LayerPrimitive, Refused, Step, Values
from trainlib.primitives.pieces import Piece, nest_call
from trainlib.primitives.recurrent import (
    CARRY,
    CELL_CARRY,
    CELLS,
    GATES_OUT,
    PROJECTION,
    RECURRENT,
    STATES,
    Cell,
    Forward,
    RecurrentSchema,
    plan_recurrent,
    sequence_cases,
)
from trainlib.primitives.recurrent_backward import Backward, InputGradient, WeightGradient
from trainlib.steps import Array, KernelCall, KernelChoice, part


def _logistic(x: Array) -> Array:
    result: Array = np.float32(0.5) + np.float32(0.5) * np.tanh(x / 2)
    return result


class _LstmCell(Cell):
    """Four gates and a cell."""

    gates = 4
    has_cell = True
    gates_saved = True

    def forward(self, op: Op, choice: KernelChoice, time: int, dtype: str) -> KernelCall:
        """The gates in place of the projection, the new cell and the new state."""
        hidden = op.attributes["hidden"]
        projected, recurrent = Piece(part(PROJECTION, time), (4 * hidden,)), Piece(RECURRENT, (4 * hidden,))
        cell, after = (Piece(part(CELLS, step), (hidden,)) for step in (time, time + 1))
        state = Piece(part(STATES, time + 1), (hidden,))

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            sums = (arrays[0] + arrays[1]).reshape(4, hidden)
            let_in, keep, let_out = (_logistic(sums[index]) for index in (0, 1, 3))
            candidate = np.tanh(sums[2])
            new = keep * arrays[2] + let_in * candidate
            return np.concatenate([let_in, keep, candidate, let_out]), new, let_out * np.tanh(new)

        return nest_call(
            choice,
            "lstm_cell_fw",
            {"elements": hidden},
            {"P": projected, "Q": recurrent, "C": cell, "D": after, "Y": state},
            (projected, recurrent, cell),
            (projected, after, state),
            function,
            dtype,
        )

    def backward(
        self,
        choice: KernelChoice,
        time: int,
        dtype: str,
        sample: int,
        before: Piece,
        cell_before: Piece,
        sizes: tuple[int, int],
    ) -> KernelCall:
        """Gradients of the gates, and of the cell before, in place of that of the cell after."""
        hidden = sizes[1]
        gates = Piece(part("gates", sample), (4 * hidden,), time * 4 * hidden)
        cell, dy = (Piece(part(role, sample), (hidden,), time * hidden) for role in ("c", "dy"))
        carry, cell_carry = Piece(CARRY, (hidden,)), Piece(CELL_CARRY, (hidden,))
        result = Piece(part(GATES_OUT, time), (4 * hidden,))

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
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

        return nest_call(
            choice,
            "lstm_cell_bw",
            {"elements": hidden},
            {
                "P": gates,
                "C": cell,
                "X": cell_before,
                "G": dy,
                "D": carry,
                "Z": cell_carry,
                "Y": result,
            },
            (gates, cell, cell_before, dy, carry, cell_carry),
            (result, cell_carry),
            function,
            dtype,
        )


_CELL = _LstmCell()


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    return plan_recurrent(_CELL, "lstm", attributes, inputs, where)


def _reference_forward(op: Op, values: Values) -> Values:
    x, wx, wh = values["x"], values["wx"], values["wh"]
    bias = values["bx"] + values["bh"] if "bx" in values else 0
    h, c = (shared.initial_state(values, role, x, len(wh)) for role in ("x1", "x2"))
    states, cells, gates = [], [], []
    for time in range(x.shape[1]):
        i, f, g, o = np.split(x[:, time] @ wx + h @ wh + bias, 4, axis=1)
        i, f, g, o = shared.sigmoid(i), shared.sigmoid(f), np.tanh(g), shared.sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        states.append(h)
        cells.append(c)
        gates.append(np.hstack([i, f, g, o]))
    return {"y": np.stack(states, 1), "c": np.stack(cells, 1), "gates": np.stack(gates, 1)}


def _reference_backward(op: Op, values: Values) -> Values:
    c, dy, wh = values["c"], values["dy"], values["wh"]
    first = shared.initial_state(values, "x2", c, c.shape[2])
    g_all = np.zeros_like(values["gates"])
    carry, dc = np.zeros_like(dy[:, 0]), np.zeros_like(dy[:, 0])
    for time in range(c.shape[1] - 1, -1, -1):
        i, f, g, o = np.split(values["gates"][:, time], 4, axis=1)
        tanh_c = np.tanh(c[:, time])
        dh = dy[:, time] + carry
        dc = dc + dh * o * (1 - tanh_c**2)
        previous = c[:, time - 1] if time else first
        parts = [dc * g * (i - i**2), dc * previous * (f - f**2), dc * i * (1 - g**2)]
        g_all[:, time] = np.hstack([*parts, dh * tanh_c * (o - o**2)])
        carry, dc = g_all[:, time] @ wh.T, dc * f
    return {"g": g_all, "dx1": carry, "dx2": dc}


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    x, has_bias = tensors["x"], "bx" in tensors
    zero = x.new_zeros(len(x), attributes["hidden"])
    start = [tensors.get(role, zero)[None] for role in ("x1", "x2")]
    weights = [tensors["wx"].T, tensors["wh"].T, *(tensors[role] for role in ("bx", "bh") if has_bias)]
    output, _, _ = torch.lstm(x, start, weights, has_bias, 1, 0.0, False, False, True)
    return output


PRIMITIVE = LayerPrimitive(
    name="lstm",
    schema=RecurrentSchema,
    plan=_plan,
    steps=(
        Step(
            "FW",
            ("x", "wx", "wh", "bx?", "bh?", "x1?", "x2?"),
            ("y", "gates", "c"),
            _reference_forward,
            Forward(_CELL),
        ),
        Step(
            "BPTT",
            ("dy", "gates", "c", "wh", "x2?"),
            ("g", "dx1?", "dx2?"),
            _reference_backward,
            Backward(_CELL),
        ),
        Step(
            "WG",
            ("x", "y", "g", "x1?"),
            ("dwx", "dwh", "dbx?", "dbh?"),
            shared.weight_gradient,
            WeightGradient(_CELL),
        ),
        Step("IG", ("g", "wx"), ("dx",), shared.input_gradient, InputGradient(_CELL)),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example({"hidden": 5}, ((4, 3),), roundings=14),
        Example({"hidden": 4, "bias": False}, ((3, 6), (4,), (4,)), roundings=14),
        Example({"hidden": 3}, ((2, 2), (3,)), roundings=14),
        Example({"hidden": 1}, ((1, 1),), roundings=14),
    ),
    refused=(
        Refused({"hidden": 0}, ((4, 3),), "hidden"),
        Refused({"hidden": 4}, ((3,),), "needs a sequence"),
        Refused({"hidden": 4}, ((2, 3), (4,), (5,)), "initial state of lstm"),
        Refused({"hidden": 4}, ((2, 3), (4,), (4,), (4,)), "1 to 3 inputs"),
    ),
    inputs=(1, 3),
    cases=lambda: sequence_cases(states=2),
    layouts=None,
)

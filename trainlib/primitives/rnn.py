"""Vanilla recurrent layer: h_t = tanh(x_t·Wx + bx + h_{t-1}·Wh + bh), with backpropagation through time.

PULP-TrainLib's RNN takes all previous states from a buffer, has no biases, no state gradient, and does not
compile on its main branch. See `trainlib.primitives.recurrent`.
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


class _TanhCell(Cell):
    """One gate, nothing saved but the output."""

    def forward(self, op: Op, choice: KernelChoice, time: int, dtype: str) -> KernelCall:
        """h = tanh(p + q)."""
        shape = (op.attributes["hidden"],)
        projected, recurrent = Piece(part(PROJECTION, time), shape), Piece(RECURRENT, shape)
        state = Piece(part(STATES, time + 1), shape)
        return nest_call(
            choice,
            "rnn_cell_fw",
            {"elements": shape[0]},
            {"P": projected, "Q": recurrent, "Y": state},
            (projected, recurrent),
            (state,),
            lambda arrays: (np.tanh(arrays[0] + arrays[1]),),
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
        """g = (1 - y²)(dy + carry)."""
        shape = (sizes[1],)
        y, dy = (Piece(part(role, sample), shape, time * sizes[1]) for role in ("y", "dy"))
        carry, result = Piece(CARRY, shape), Piece(part(GATES_OUT, time), shape)

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            state, arriving, from_next = arrays
            return ((arriving + from_next) * (1 - state) * (1 + state),)

        return nest_call(
            choice,
            "rnn_cell_bw",
            {"elements": sizes[1]},
            {"X": y, "G": dy, "D": carry, "Y": result},
            (y, dy, carry),
            (result,),
            function,
            dtype,
        )


_CELL = _TanhCell()


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    return plan_recurrent(_CELL, "rnn", attributes, inputs, where)


def _reference_forward(op: Op, values: Values) -> Values:
    x, wx, wh = values["x"], values["wx"], values["wh"]
    bias = values["bx"] + values["bh"] if "bx" in values else 0
    h = shared.initial_state(values, "x1", x, len(wh))
    states = []
    for time in range(x.shape[1]):
        h = np.tanh(x[:, time] @ wx + h @ wh + bias)
        states.append(h)
    return {"y": np.stack(states, axis=1)}


def _reference_backward(op: Op, values: Values) -> Values:
    y, dy, wh = values["y"], values["dy"], values["wh"]
    g = np.zeros_like(dy)
    carry = np.zeros_like(dy[:, 0])
    for time in range(y.shape[1] - 1, -1, -1):
        g[:, time] = (1 - y[:, time] ** 2) * (dy[:, time] + carry)
        carry = g[:, time] @ wh.T
    return {"g": g, "dx1": carry}


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    x, has_bias = tensors["x"], "bx" in tensors
    start = tensors.get("x1", x.new_zeros(len(x), attributes["hidden"]))
    weights = [tensors["wx"].T, tensors["wh"].T, *(tensors[role] for role in ("bx", "bh") if has_bias)]
    output, _ = torch.rnn_tanh(x, start[None], weights, has_bias, 1, 0.0, False, False, True)
    return output


PRIMITIVE = LayerPrimitive(
    name="rnn",
    schema=RecurrentSchema,
    plan=_plan,
    steps=(
        Step("FW", ("x", "wx", "wh", "bx?", "bh?", "x1?"), ("y",), _reference_forward, Forward(_CELL)),
        Step("BPTT", ("y", "dy", "wh"), ("g", "dx1?"), _reference_backward, Backward(_CELL)),
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
        Example({"hidden": 5}, ((4, 3),), roundings=10),
        Example({"hidden": 4, "bias": False}, ((3, 6), (4,)), roundings=10),
        Example({"hidden": 1}, ((1, 1), (1,)), roundings=10),
    ),
    refused=(
        Refused({"hidden": 0}, ((4, 3),), "hidden"),
        Refused({"hidden": 4}, ((3,),), "needs a sequence"),
        Refused({"hidden": 4}, ((2, 3), (5,)), "initial state of rnn"),
        Refused({"hidden": 4}, ((2, 3), (4,), (4,)), "1 to 2 inputs"),
    ),
    inputs=(1, 2),
    cases=lambda: sequence_cases(states=1),
    layouts=None,
)

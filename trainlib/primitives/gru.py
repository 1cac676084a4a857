"""Gated recurrent unit, gates reset, update, new as in PyTorch: h' = (1 - z) n + z h.

r = σ(px_r + qh_r), z = σ(px_z + qh_z), n = tanh(px_n + r·qh_n), with px = x·Wx + bx and qh = h·Wh + bh. The
reset gate multiplies the recurrent product with its bias, so that bias is added at every step. FW saves the
gates and qh_n. PULP-TrainLib has no GRU; the lowering follows its RNN. See `trainlib.primitives.recurrent`.
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
    DIRECT,
    GATES_OUT,
    HIDDEN_OUT,
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


class _GruCell(Cell):
    """Three gates."""

    gates = 3
    late_bias = True
    gates_saved = True
    hidden_saved = True
    hidden_gradient = True

    def forward(self, op: Op, choice: KernelChoice, time: int, dtype: str) -> KernelCall:
        """The gates in place of the projection, the new state, the part of n that r multiplies."""
        hidden = op.attributes["hidden"]
        projected, recurrent = Piece(part(PROJECTION, time), (3 * hidden,)), Piece(RECURRENT, (3 * hidden,))
        state, after = Piece(part(STATES, time), (hidden,)), Piece(part(STATES, time + 1), (hidden,))
        kept = Piece(part("hidden_part", time), (hidden,))

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
            (p_r, p_z, p_n), (q_r, q_z, q_n) = (array.reshape(3, hidden) for array in arrays[:2])
            reset, update = _logistic(p_r + q_r), _logistic(p_z + q_z)
            new = np.tanh(p_n + reset * q_n)
            return np.concatenate([reset, update, new]), new + update * (arrays[2] - new), q_n

        return nest_call(
            choice,
            "gru_cell_fw",
            {"elements": hidden},
            {"P": projected, "Q": recurrent, "H": state, "Y": after, "N": kept},
            (projected, recurrent, state),
            (projected, after, kept),
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
        """Gradients at both products, and the way of the gradient around the gates (times z)."""
        hidden = sizes[1]
        gates = Piece(part("gates", sample), (3 * hidden,), time * 3 * hidden)
        kept, dy = (Piece(part(role, sample), (hidden,), time * hidden) for role in ("hn", "dy"))
        carry, direct = Piece(CARRY, (hidden,)), Piece(DIRECT, (hidden,))
        at_input = Piece(part(GATES_OUT, time), (3 * hidden,))
        at_hidden = Piece(part(HIDDEN_OUT, time), (3 * hidden,))

        def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
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

        return nest_call(
            choice,
            "gru_cell_bw",
            {"elements": hidden},
            {
                "P": gates,
                "N": kept,
                "H": before,
                "G": dy,
                "D": carry,
                "E": direct,
                "Y": at_input,
                "Z": at_hidden,
            },
            (gates, kept, before, dy, carry),
            (at_input, at_hidden, direct),
            function,
            dtype,
        )


_CELL = _GruCell()


def _plan(attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str) -> LayerPlan:
    return plan_recurrent(_CELL, "gru", attributes, inputs, where)


def _reference_forward(op: Op, values: Values) -> Values:
    x, wx, wh = values["x"], values["wx"], values["wh"]
    bx, bh = (values["bx"], values["bh"]) if "bx" in values else (0, 0)
    h = shared.initial_state(values, "x1", x, len(wh))
    states, gates, kept = [], [], []
    for time in range(x.shape[1]):
        from_x = np.split(x[:, time] @ wx + bx, 3, axis=1)
        from_h = np.split(h @ wh + bh, 3, axis=1)
        r = shared.sigmoid(from_x[0] + from_h[0])
        z = shared.sigmoid(from_x[1] + from_h[1])
        n = np.tanh(from_x[2] + r * from_h[2])
        h = (1 - z) * n + z * h
        states.append(h)
        gates.append(np.hstack([r, z, n]))
        kept.append(from_h[2])
    return {"y": np.stack(states, 1), "gates": np.stack(gates, 1), "hn": np.stack(kept, 1)}


def _reference_backward(op: Op, values: Values) -> Values:
    y, dy, wh = values["y"], values["dy"], values["wh"]
    first = shared.initial_state(values, "x1", y, y.shape[2])
    g, gh = np.zeros_like(values["gates"]), np.zeros_like(values["gates"])
    carry = np.zeros_like(dy[:, 0])
    for time in range(y.shape[1] - 1, -1, -1):
        previous = y[:, time - 1] if time else first
        r, z, n = np.split(values["gates"][:, time], 3, axis=1)
        dh = dy[:, time] + carry
        da_n = dh * (1 - z) * (1 - n**2)
        da_z = dh * (previous - n) * (z - z**2)
        da_r = da_n * values["hn"][:, time] * (r - r**2)
        g[:, time] = np.hstack([da_r, da_z, da_n])
        gh[:, time] = np.hstack([da_r, da_z, r * da_n])
        carry = gh[:, time] @ wh.T + z * dh
    return {"g": g, "gh": gh, "dx1": carry}


def _torch_forward(torch: Any, attributes: Mapping[str, Any], tensors: Mapping[str, Any]) -> Any:
    x, has_bias = tensors["x"], "bx" in tensors
    start = tensors.get("x1", x.new_zeros(len(x), attributes["hidden"]))
    weights = [tensors["wx"].T, tensors["wh"].T, *(tensors[role] for role in ("bx", "bh") if has_bias)]
    output, _ = torch.gru(x, start[None], weights, has_bias, 1, 0.0, False, False, True)
    return output


PRIMITIVE = LayerPrimitive(
    name="gru",
    schema=RecurrentSchema,
    plan=_plan,
    steps=(
        Step(
            "FW",
            ("x", "wx", "wh", "bx?", "bh?", "x1?"),
            ("y", "gates", "hn"),
            _reference_forward,
            Forward(_CELL),
        ),
        Step(
            "BPTT",
            ("y", "dy", "gates", "hn", "wh", "x1?"),
            ("g", "gh", "dx1?"),
            _reference_backward,
            Backward(_CELL),
        ),
        Step(
            "WG",
            ("x", "y", "g", "gh", "x1?"),
            ("dwx", "dwh", "dbx?", "dbh?"),
            shared.weight_gradient,
            WeightGradient(_CELL),
        ),
        Step("IG", ("g", "wx"), ("dx",), shared.input_gradient, InputGradient(_CELL)),
    ),
    torch_forward=_torch_forward,
    examples=(
        Example({"hidden": 5}, ((4, 3),), roundings=14),
        Example({"hidden": 4, "bias": False}, ((3, 6), (4,)), roundings=14),
        Example({"hidden": 1}, ((1, 1), (1,)), roundings=14),
    ),
    refused=(
        Refused({"hidden": 0}, ((4, 3),), "hidden"),
        Refused({"hidden": 4}, ((3,),), "needs a sequence"),
        Refused({"hidden": 4}, ((2, 3), (5,)), "initial state of gru"),
        Refused({"hidden": 4}, ((2, 3), (4,), (4,)), "1 to 2 inputs"),
    ),
    inputs=(1, 2),
    cases=lambda: sequence_cases(states=1),
    layouts=None,
)

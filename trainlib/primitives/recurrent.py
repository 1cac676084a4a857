"""What the recurrent layers share: shapes, parameters, and the lowering of their four steps.

One layer, one direction, the whole sequence: x [batch, length, features] to y [batch, length, hidden]; the
initial state is zero or a further input. Weights are stored as PULP-TrainLib multiplies them, wx [features,
gates·hidden] and wh [hidden, gates·hidden] (PyTorch's transposed), gates in PyTorch's order, and there are
two biases, as in PyTorch.

FW: per sample P = X·Wx for the whole sequence (N=length, K=features, M=gates·hidden, the published extents),
then for each time step q = h·Wh (N=1, K=hidden, M=gates·hidden) and an elementwise cell. PULP-TrainLib has no
recurrence: it takes all states from a buffer and multiplies once. Here the state goes from step to step.
BPTT: last step first, gradients of the gates from dy and the carry, carry = g·Whᵀ (N=1). WG and IG then are
matmuls over the whole sequence: dWx = Xᵀ·g, dWh = Hᵀ·g, dX = g·Wxᵀ, with the transposes the library makes.
Steps work on one sample at a time. FW, BPTT and IG may be cut over the batch, WG over columns of its result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.graph import Initial, Op, Tensor
from trainlib.primitives.calls import NoMatmul, batch_extent, batch_range, box
from trainlib.primitives.definition import Example, LayerPlan, Parameter, Positive, Saved
from trainlib.primitives.pieces import (
    Piece,
    add_call,
    copy_call,
    piece_matmul_call,
    zero_call,
)
from trainlib.steps import Extent, KernelCall, KernelChoice, Operand, Scratch, TileTask, part

PROJECTION, RECURRENT, STATES, CELLS = "projection", "recurrent", "states", "cells"
"""Scratch of FW: X·Wx, h·Wh of one step, states and LSTM cells of all steps, the initial one first."""

START, CARRY, CELL_CARRY, GATES_OUT, HIDDEN_OUT, DIRECT = (
    "start",
    "carry",
    "cell_carry",
    "gate_gradients",
    "hidden_gradients",
    "direct",
)
"""Scratch of BPTT: a zero state, what comes back from the next step, gradients of the gates of all steps."""


class RecurrentSchema(LayerSchema):
    """Options of all recurrent layers."""

    hidden: Positive
    bias: bool = True


class Cell:
    """One kind of recurrent cell: number of gates, what FW saves, and its elementwise kernels."""

    gates = 1
    has_cell = False
    late_bias = False
    """Whether the bias of the recurrent product has to be added to that product (and not to the other)."""
    gates_saved = False
    hidden_saved = False
    hidden_gradient = False
    """Whether the gradient at the recurrent product differs from that at the input's."""

    def forward(self, op: Op, choice: KernelChoice, time: int, dtype: str) -> KernelCall:
        """The cell at one time step, on the scratch of FW."""
        raise NotImplementedError

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
        """Gradients of the gates at one time step; `before` is the state it began with, `sizes` L and H."""
        raise NotImplementedError


def plan_recurrent(
    cell: Cell, name: str, attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str
) -> LayerPlan:
    """Shapes; ShapeError for inputs that are no sequences and states of a wrong size."""
    shape = inputs[0].shape
    if len(shape) != 3:
        raise ShapeError(
            f"{name} needs a sequence (length, features), its input has shape {shape[1:]}", where=where
        )
    batch, length, features = shape
    hidden, gates = attributes["hidden"], cell.gates
    for state in inputs[1:]:
        if state.shape != (batch, hidden):
            raise ShapeError(
                f"the initial state of {name} has shape {state.shape[1:]}, not ({hidden},)",
                where=where,
                cure=f"an input of {hidden} values, or hidden: {state.shape[-1]}",
            )
    start = Initial("uniform", float(hidden**-0.5))
    columns = gates * hidden
    parameters = {"wx": Parameter((features, columns), start), "wh": Parameter((hidden, columns), start)}
    if attributes["bias"]:
        parameters |= {"bx": Parameter((columns,), start), "bh": Parameter((columns,), start)}
    saved = {"g": Saved((batch, length, columns))}
    if cell.gates_saved:
        saved["gates"] = Saved((batch, length, columns))
    if cell.has_cell:
        saved["c"] = Saved((batch, length, hidden))
    if cell.hidden_saved:
        saved["hn"] = Saved((batch, length, hidden))
    if cell.hidden_gradient:
        saved["gh"] = Saved((batch, length, columns))
    numbers = {"batch": batch, "length": length, "features": features, "hidden": hidden, "gates": gates}
    return LayerPlan((batch, length, hidden), parameters, saved, attributes=numbers)


def sequence_cases(states: int) -> Any:
    """A hypothesis strategy of small examples with up to `states` initial states."""
    from hypothesis import strategies as st

    def example(length: int, features: int, hidden: int, given: int, bias: bool) -> Example:
        inputs = ((length, features), *((hidden,) for _ in range(given)))
        return Example({"hidden": hidden, "bias": bias}, inputs, roundings=16)

    small = st.integers(1, 5)
    return st.builds(example, small, small, small, st.integers(0, states), st.booleans())


class RecurrentLowering(NoMatmul):
    """What the steps share."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    def default_kernel(self, op: Op) -> str:
        """Columns over cores: with N = 1 a split of rows would leave all cores but one idle."""
        return "mm_M"

    @staticmethod
    def sizes(op: Op) -> tuple[int, int, int, int]:
        """Length, features, hidden, gates·hidden."""
        numbers = op.attributes
        hidden = numbers["hidden"]
        return numbers["length"], numbers["features"], hidden, numbers["gates"] * hidden

    @staticmethod
    def sequence(op: Op, role: str, samples: Extent, width: int) -> Operand:
        """All time steps of some samples."""
        return box(op, role, samples, (0, op.attributes["length"]), (0, width))


class Forward(RecurrentLowering):
    """FW; the batch may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples."""
        return batch_extent(op.attributes["batch"])

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """Input and recurrent product of every step."""
        length, features, hidden, columns = self.sizes(op)
        return int(op.attributes["batch"]) * length * columns * (features + hidden)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some samples, one after the other; all weights."""
        length, features, hidden, columns = self.sizes(op)
        cell, dtype = self.cell, tensors[op["y"]].dtype
        samples = batch_range(ranges, op.attributes["batch"])
        inputs = [
            self.sequence(op, "x", samples, features),
            box(op, "wx", (0, features), (0, columns)),
            box(op, "wh", (0, hidden), (0, columns)),
        ]
        inputs += [box(op, role, (0, columns)) for role in ("bx", "bh") if role in op]
        inputs += [box(op, role, samples, (0, hidden)) for role in ("x1", "x2") if role in op]
        widths = {"y": hidden, "gates": columns, "c": hidden, "hn": hidden}
        outputs = [self.sequence(op, role, samples, widths[role]) for role in op.writes]
        scratch = [
            Scratch(PROJECTION, (length, columns), dtype),
            Scratch(RECURRENT, (columns,), dtype),
            Scratch(STATES, (length + 1, hidden), dtype),
        ]
        if cell.has_cell:
            scratch.append(Scratch(CELLS, (length + 1, hidden), dtype))
        if cell.hidden_saved:
            scratch.append(Scratch("hidden_part", (length, hidden), dtype))
        calls: list[KernelCall] = []
        for sample in range(samples[1] - samples[0]):
            calls += self._sample(op, choice, sample, dtype)
        return TileTask(tuple(inputs), tuple(outputs), tuple(scratch), tuple(calls))

    def _sample(self, op: Op, choice: KernelChoice, sample: int, dtype: str) -> list[KernelCall]:
        length, features, hidden, columns = self.sizes(op)
        cell = self.cell
        projection, recurrent = Piece(PROJECTION, (length, columns)), Piece(RECURRENT, (columns,))
        x = Piece(part("x", sample), (length, features))
        wx, wh = Piece("wx", (features, columns)), Piece("wh", (hidden, columns))
        calls = [
            piece_matmul_call(
                choice, a=x, b=wx, c=projection, n=length, k=features, m=columns, trans_b=False, dtype=dtype
            )
        ]
        early = [role for role in ("bx", "bh") if role in op and not (role == "bh" and cell.late_bias)]
        calls += [add_call(choice, projection, Piece(role, (columns,)), dtype) for role in early]
        starts = [(STATES, "x1")] + ([(CELLS, "x2")] if cell.has_cell else [])
        for buffer, role in starts:
            first = Piece(part(buffer, 0), (hidden,))
            given = Piece(part(role, sample), (hidden,))
            calls.append(
                copy_call(choice, given, first, dtype) if role in op else zero_call(choice, first, dtype)
            )
        for time in range(length):
            state = Piece(part(STATES, time), (hidden,))
            calls.append(
                piece_matmul_call(
                    choice, a=state, b=wh, c=recurrent, n=1, k=hidden, m=columns, trans_b=False, dtype=dtype
                )
            )
            if cell.late_bias and "bh" in op:
                calls.append(add_call(choice, recurrent, Piece("bh", (columns,)), dtype))
            calls.append(cell.forward(op, choice, time, dtype))
        kept = {
            "y": Piece(STATES, (length, hidden), hidden),
            "gates": projection,
            "c": Piece(CELLS, (length, hidden), hidden),
            "hn": Piece("hidden_part", (length, hidden)),
        }
        calls += [
            copy_call(choice, kept[role], Piece(part(role, sample), kept[role].shape), dtype)
            for role in op.writes
        ]
        return calls

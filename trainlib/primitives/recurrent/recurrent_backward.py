# SPDX-License-Identifier: Apache-2.0
"""Backward steps of the recurrent layers as kernel calls: BPTT, weight gradients, input gradient."""

from __future__ import annotations

from collections.abc import Mapping

from configs.dtypes import DType
from trainlib.graph import Op, Tensor
from trainlib.primitives.lowering.calls import batch_extent, batch_range, box
from trainlib.primitives.lowering.pieces import (
    Piece,
    add_call,
    added_matmul_calls,
    column_sum_call,
    copy_call,
    piece_matmul_call,
    transpose_piece_call,
    zero_call,
)
from trainlib.primitives.recurrent.recurrent import (
    CARRY,
    CELL_CARRY,
    DIRECT,
    GATES_OUT,
    HIDDEN_OUT,
    START,
    Cell,
    RecurrentLowering,
)
from trainlib.steps import Extent, KernelCall, KernelChoice, Scratch, TileTask, part


class Backward(RecurrentLowering):
    """BPTT: gradients of the gates of all steps, and of the initial states; the batch may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples."""
        return batch_extent(op.attributes["batch"])

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """One recurrent product per step; before the first step only if its state wants a gradient."""
        length, _, hidden, columns = self.sizes(op)
        steps = length if "dx1" in op else length - 1
        return int(op.attributes["batch"]) * steps * columns * hidden

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some samples, one after the other, each from its last step to its first."""
        length, _, hidden, columns = self.sizes(op)
        cell, dtype = self.cell, tensors[op["g"]].dtype
        samples = batch_range(ranges, op.attributes["batch"])
        widths = {"y": hidden, "dy": hidden, "gates": columns, "c": hidden, "hn": hidden}
        inputs = [self.sequence(op, role, samples, widths[role]) for role in op.reads if role in widths]
        inputs.append(box(op, "wh", (0, hidden), (0, columns)))
        inputs += [box(op, role, samples, (0, hidden)) for role in ("x1", "x2") if role in op.reads]
        outputs = [self.sequence(op, role, samples, columns) for role in ("g", "gh") if role in op.writes]
        outputs += [box(op, role, samples, (0, hidden)) for role in ("dx1", "dx2") if role in op]
        scratch = [
            Scratch(START, (hidden,), dtype),
            Scratch(CARRY, (hidden,), dtype),
            Scratch(GATES_OUT, (length, columns), dtype),
        ]
        if cell.has_cell:
            scratch.append(Scratch(CELL_CARRY, (hidden,), dtype))
        if cell.hidden_gradient:
            scratch.append(Scratch(HIDDEN_OUT, (length, columns), dtype))
            scratch.append(Scratch(DIRECT, (hidden,), dtype))
        calls = [zero_call(choice, Piece(START, (hidden,)), dtype)]
        for sample in range(samples[1] - samples[0]):
            calls += self._sample(op, choice, sample, dtype)
        return TileTask(tuple(inputs), tuple(outputs), tuple(scratch), tuple(calls))

    def _sample(self, op: Op, choice: KernelChoice, sample: int, dtype: DType) -> list[KernelCall]:
        length, _, hidden, columns = self.sizes(op)
        cell = self.cell
        carry, start = Piece(CARRY, (hidden,)), Piece(START, (hidden,))
        wh = Piece("wh", (hidden, columns))
        gradients = HIDDEN_OUT if cell.hidden_gradient else GATES_OUT
        calls = [zero_call(choice, carry, dtype)]
        if cell.has_cell:
            calls.append(zero_call(choice, Piece(CELL_CARRY, (hidden,)), dtype))
        for time in reversed(range(length)):
            before = Piece(part("y", sample), (hidden,), (time - 1) * hidden)
            cell_before = Piece(part("c", sample), (hidden,), (time - 1) * hidden)
            if time == 0:
                before = Piece(part("x1", sample), (hidden,)) if "x1" in op.reads else start
                cell_before = Piece(part("x2", sample), (hidden,)) if "x2" in op.reads else start
            at = {"before": before, "cell_before": cell_before, "carry": carry}
            at |= {
                role: Piece(part(role, sample), (hidden,), time * hidden) for role in ("y", "dy", "hn", "c")
            }
            at |= {
                "gates": Piece(part("gates", sample), (columns,), time * columns),
                "cell_carry": Piece(CELL_CARRY, (hidden,)),
                "g": Piece(part(GATES_OUT, time), (columns,)),
                "gh": Piece(part(HIDDEN_OUT, time), (columns,)),
                "direct": Piece(DIRECT, (hidden,)),
            }
            calls.append(cell.backward(choice, at, dtype))
            if time == 0 and "dx1" not in op:
                break
            at_time = Piece(part(gradients, time), (columns,))
            calls.append(
                piece_matmul_call(
                    choice, a=at_time, b=wh, c=carry, n=1, k=columns, m=hidden, trans_b=True, dtype=dtype
                )
            )
            if cell.hidden_gradient:
                calls.append(add_call(choice, carry, Piece(DIRECT, (hidden,)), dtype))
        results = {
            "g": Piece(GATES_OUT, (length, columns)),
            "gh": Piece(HIDDEN_OUT, (length, columns)),
            "dx1": carry,
            "dx2": Piece(CELL_CARRY, (hidden,)),
        }
        calls += [
            copy_call(choice, results[role], Piece(part(role, sample), results[role].shape), dtype)
            for role in op.writes
        ]
        return calls


class _SequenceLowering(RecurrentLowering):
    """Matmuls over the whole sequence, every dimension of which may be cut."""

    def default_kernel(self, op: Op) -> str:
        """The kernel PULP-TrainLib's RNN is hard-wired to."""
        return "mm_unroll_4x1"

    def dimensions(self, op: Op) -> dict[str, int]:
        """Samples, steps."""
        return {**batch_extent(op.attributes["batch"]), "steps": op.attributes["length"]}

    def cut(self, op: Op, ranges: Mapping[str, Extent], width: str) -> tuple[Extent, Extent, Extent, Extent]:
        """Samples, steps, `width` and columns of a tile; what `ranges` does not name is whole."""
        length, _, _, columns = self.sizes(op)
        return (
            batch_range(ranges, op.attributes["batch"]),
            ranges.get("steps", (0, length)),
            ranges.get(width, (0, op.attributes[width])),
            ranges.get("columns", (0, columns)),
        )


class WeightGradient(_SequenceLowering):
    """dW [rows x columns] = sum over samples and steps of sourceᵀ·g, and the bias with the first rows.

    `width` names the rows: features for dWx, whose source is x; hidden for dWh, whose source is the state
    before each step. (rows, length, columns), the source transposed first.
    """

    def __init__(self, cell: Cell, width: str) -> None:
        super().__init__(cell)
        self.width = width
        self.weight, self.bias = ("dwx", "dbx") if width == "features" else ("dwh", "dbh")
        self.gradient = "gh" if width == "hidden" and cell.hidden_gradient else "g"

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Rows and columns of the weights."""
        return {self.width: op.attributes[self.width], "columns": self.sizes(op)[3]}

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, steps."""
        return self.dimensions(op)

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """batch · length · rows · columns."""
        length, _, _, columns = self.sizes(op)
        return int(op.attributes["batch"] * length * columns * op.attributes[self.width])

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """A box of the weights, from some steps of some samples."""
        dtype = tensors[op[self.weight]].dtype
        samples, steps, rows, columns = self.cut(op, ranges, self.width)
        batch, length, height, count = (last - first for first, last in (samples, steps, rows, columns))
        shifted = self.width == "hidden"
        inputs = [box(op, self.gradient, samples, steps, columns)]
        source, taken = ("y", (max(steps[0] - 1, 0), steps[1] - 1)) if shifted else ("x", steps)
        if taken[1] > taken[0]:
            inputs.append(box(op, source, samples, taken, rows))
        started = shifted and steps[0] == 0
        if started and "x1" in op:
            inputs.append(box(op, "x1", samples, rows))
        scratch = [Scratch("transposed", (height, length), dtype)]
        if started:
            scratch.append(Scratch("before", (length, height), dtype))
        if batch > 1:
            scratch.append(Scratch("dw_of_sample", (height, count), dtype))
        turned = Piece("transposed", (height, length))
        calls: list[KernelCall] = []
        for sample in range(batch):
            left = Piece(part(source, sample), (length, height))
            if started:
                left = Piece("before", (length, height))
                calls += self._before(op, choice, sample, (length, height), dtype)
            calls.append(transpose_piece_call(choice, left, turned, dtype))
            calls += added_matmul_calls(
                choice,
                a=turned,
                b=Piece(part(self.gradient, sample), (length, count)),
                c=Piece(self.weight, (height, count)),
                n=height,
                k=length,
                m=count,
                trans_b=False,
                dtype=dtype,
                scratch=Piece("dw_of_sample", (height, count)) if sample else None,
            )
        outputs = [box(op, self.weight, rows, columns)]
        if self.bias in op and rows[0] == 0:
            outputs.append(box(op, self.bias, columns))
            whole = Piece(self.gradient, (batch, length, count))
            calls.append(column_sum_call(choice, whole, Piece(self.bias, (count,)), dtype))
        return TileTask(tuple(inputs), tuple(outputs), tuple(scratch), tuple(calls))

    def _before(
        self, op: Op, choice: KernelChoice, sample: int, shape: tuple[int, int], dtype: DType
    ) -> list[KernelCall]:
        """The states before the first steps: the initial one, then those of y."""
        length, height = shape
        first = Piece(part("before", 0), (height,))
        given = Piece(part("x1", sample), (height,))
        calls = [copy_call(choice, given, first, dtype) if "x1" in op else zero_call(choice, first, dtype)]
        if length > 1:
            y = Piece(part("y", sample), (length - 1, height))
            later = Piece(part("before", 1, length), (length - 1, height))
            calls.append(copy_call(choice, y, later, dtype))
        return calls


class InputGradient(_SequenceLowering):
    """IG: dX = g·Wxᵀ; (length, columns, features)."""

    def default_kernel(self, op: Op) -> str:
        """Columns over cores."""
        return "mm_M"

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, steps, input features."""
        return {**self.dimensions(op), "features": op.attributes["features"]}

    def reductions(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Columns of Wx."""
        return {"columns": self.sizes(op)[3]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """batch · length · gates·hidden · features."""
        length, features, _, columns = self.sizes(op)
        return int(op.attributes["batch"]) * length * columns * features

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some steps of some samples, a box of Wx, transposed once."""
        dtype = tensors[op["dx"]].dtype
        samples, steps, wanted, summed = self.cut(op, ranges, "features")
        batch, length, count, columns = (last - first for first, last in (samples, steps, wanted, summed))
        turned = Piece("wx_transposed", (columns, count))
        calls = [transpose_piece_call(choice, Piece("wx", (count, columns)), turned, dtype)]
        for sample in range(batch):
            calls.append(
                piece_matmul_call(
                    choice,
                    a=Piece(part("g", sample), (length, columns)),
                    b=turned,
                    c=Piece(part("dx", sample), (length, count)),
                    n=length,
                    k=columns,
                    m=count,
                    trans_b=False,
                    dtype=dtype,
                )
            )
        return TileTask(
            (box(op, "g", samples, steps, summed), box(op, "wx", wanted, summed)),
            (box(op, "dx", samples, steps, wanted),),
            (Scratch("wx_transposed", (columns, count), dtype),),
            tuple(calls),
        )

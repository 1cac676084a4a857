"""Backward steps of the recurrent layers as kernel calls: BPTT, weight gradients, input gradient."""

from __future__ import annotations

from collections.abc import Mapping

from trainlib.graph import Op, Tensor
from trainlib.primitives.calls import batch_extent, batch_range, box
from trainlib.primitives.pieces import (
    Piece,
    add_call,
    added_matmul_calls,
    column_sum_call,
    copy_call,
    piece_matmul_call,
    transpose_piece_call,
    zero_call,
)
from trainlib.primitives.recurrent import (
    CARRY,
    CELL_CARRY,
    DIRECT,
    GATES_OUT,
    HIDDEN_OUT,
    START,
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

    def _sample(self, op: Op, choice: KernelChoice, sample: int, dtype: str) -> list[KernelCall]:
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
            calls.append(cell.backward(choice, time, dtype, sample, before, cell_before, (length, hidden)))
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


class WeightGradient(RecurrentLowering):
    """WG: dWx = sum over the batch of Xᵀ·g, dWh of Hᵀ·g with H the states before each step, and biases."""

    def default_kernel(self, op: Op) -> str:
        """The kernel PULP-TrainLib's RNN is hard-wired to."""
        return "mm_unroll_4x1"

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Columns of the weights: units of the gates."""
        return {"columns": self.sizes(op)[3]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """The same number as FW."""
        length, features, hidden, columns = self.sizes(op)
        return int(op.attributes["batch"]) * length * columns * (features + hidden)

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some columns; all samples and steps."""
        length, features, hidden, _ = self.sizes(op)
        batch, dtype, columns = op.attributes["batch"], tensors[op["dwx"]].dtype, ranges["columns"]
        count, samples = columns[1] - columns[0], (0, op.attributes["batch"])
        second = "gh" if self.cell.hidden_gradient else "g"
        inputs = [self.sequence(op, "x", samples, features), self.sequence(op, "y", samples, hidden)]
        inputs += [box(op, role, samples, (0, length), columns) for role in ("g", "gh") if role in op.reads]
        if "x1" in op:
            inputs.append(box(op, "x1", samples, (0, hidden)))
        outputs = [box(op, "dwx", (0, features), columns), box(op, "dwh", (0, hidden), columns)]
        outputs += [box(op, role, columns) for role in ("dbx", "dbh") if role in op]
        scratch = [
            Scratch("x_transposed", (features, length), dtype),
            Scratch("before", (length, hidden), dtype),
            Scratch("before_transposed", (hidden, length), dtype),
        ]
        if batch > 1:
            scratch.append(Scratch("dwx_of_sample", (features, count), dtype))
            scratch.append(Scratch("dwh_of_sample", (hidden, count), dtype))
        before = Piece("before", (length, hidden))
        calls: list[KernelCall] = []
        for sample in range(batch):
            x, y = Piece(part("x", sample), (length, features)), Piece(part("y", sample), (length, hidden))
            calls.append(transpose_piece_call(choice, x, Piece("x_transposed", (features, length)), dtype))
            first = Piece(part("before", 0), (hidden,))
            given = Piece(part("x1", sample), (hidden,))
            calls.append(
                copy_call(choice, given, first, dtype) if "x1" in op else zero_call(choice, first, dtype)
            )
            if length > 1:
                later = Piece(part("before", 1, length), (length - 1, hidden))
                calls.append(copy_call(choice, y.rows(0, length - 1), later, dtype))
            calls.append(
                transpose_piece_call(choice, before, Piece("before_transposed", (hidden, length)), dtype)
            )
            products = (
                ("x_transposed", "g", "dwx", features),
                ("before_transposed", second, "dwh", hidden),
            )
            for left, right, target, rows in products:
                calls += added_matmul_calls(
                    choice,
                    a=Piece(left, (rows, length)),
                    b=Piece(part(right, sample), (length, count)),
                    c=Piece(target, (rows, count)),
                    n=rows,
                    k=length,
                    m=count,
                    trans_b=False,
                    dtype=dtype,
                    scratch=Piece(f"{target}_of_sample", (rows, count)) if sample else None,
                )
        for role, source in (("dbx", "g"), ("dbh", second)):
            if role in op:
                whole = Piece(source, (batch, length, count))
                calls.append(column_sum_call(choice, whole, Piece(role, (count,)), dtype))
        return TileTask(tuple(inputs), tuple(outputs), tuple(scratch), tuple(calls))


class InputGradient(RecurrentLowering):
    """IG: dX = g·Wxᵀ; samples and features may be cut."""

    def extents(self, op: Op, tensors: Mapping[str, Tensor]) -> Mapping[str, int]:
        """Samples, input features."""
        return {**batch_extent(op.attributes["batch"]), "features": op.attributes["features"]}

    def macs(self, op: Op, tensors: Mapping[str, Tensor]) -> int:
        """batch · length · gates·hidden · features."""
        length, features, _, columns = self.sizes(op)
        return int(op.attributes["batch"]) * length * columns * features

    def tile(
        self, op: Op, tensors: Mapping[str, Tensor], ranges: Mapping[str, Extent], choice: KernelChoice
    ) -> TileTask:
        """Some samples, some rows of Wx, transposed once."""
        length, _, _, columns = self.sizes(op)
        dtype, wanted = tensors[op["dx"]].dtype, ranges["features"]
        count, samples = wanted[1] - wanted[0], batch_range(ranges, op.attributes["batch"])
        turned = Piece("wx_transposed", (columns, count))
        calls = [transpose_piece_call(choice, Piece("wx", (count, columns)), turned, dtype)]
        for sample in range(samples[1] - samples[0]):
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
            (self.sequence(op, "g", samples, columns), box(op, "wx", wanted, (0, columns))),
            (box(op, "dx", samples, (0, length), wanted),),
            (Scratch("wx_transposed", (columns, count), dtype),),
            tuple(calls),
        )

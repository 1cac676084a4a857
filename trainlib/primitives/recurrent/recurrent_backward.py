# SPDX-License-Identifier: Apache-2.0
"""Backward steps of the recurrent layers as kernel calls: BPTT, weight gradients, input gradient."""

from __future__ import annotations

from collections.abc import Mapping

from trainlib.graph import Op
from trainlib.primitives.lowering.calls import batch_extent, batch_range, box
from trainlib.primitives.lowering.pieces import Piece, TileBuilder
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
from trainlib.steps import Extent, KernelChoice, Ranges, Tensors, TileTask, part


class Backward(RecurrentLowering):
    """BPTT: gradients of the gates of all steps, and of the initial states; the batch may be cut."""

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples."""
        return batch_extent(op.attributes["batch"])

    def macs(self, op: Op, tensors: Tensors) -> int:
        """One recurrent product per step; before the first step only if its state wants a gradient."""
        length, _, hidden, columns = self.sizes(op)
        steps = length if "dx1" in op else length - 1
        return int(op.attributes["batch"]) * steps * columns * hidden

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some samples, one after the other, each from its last step to its first."""
        length, _, hidden, columns = self.sizes(op)
        cell, build = self.cell, TileBuilder(choice, tensors[op["g"]].dtype)
        samples = batch_range(ranges, op.attributes["batch"])
        widths = {"y": hidden, "dy": hidden, "gates": columns, "c": hidden, "hn": hidden}
        inputs = [self.sequence(op, role, samples, widths[role]) for role in op.reads if role in widths]
        inputs.append(box(op, "wh", (0, hidden), (0, columns)))
        inputs += [box(op, role, samples, (0, hidden)) for role in ("x1", "x2") if role in op.reads]
        outputs = [self.sequence(op, role, samples, columns) for role in ("g", "gh") if role in op.writes]
        outputs += [box(op, role, samples, (0, hidden)) for role in ("dx1", "dx2") if role in op]
        start = build.temporary(START, hidden)
        build.temporary(CARRY, hidden)
        build.temporary(GATES_OUT, length, columns)
        if cell.has_cell:
            build.temporary(CELL_CARRY, hidden)
        if cell.hidden_gradient:
            build.temporary(HIDDEN_OUT, length, columns)
            build.temporary(DIRECT, hidden)
        build.zero(start)
        for sample in range(samples[1] - samples[0]):
            self._sample(op, build, sample)
        return build.task(inputs, outputs)

    def _sample(self, op: Op, build: TileBuilder, sample: int) -> None:
        length, _, hidden, columns = self.sizes(op)
        cell = self.cell
        carry, start = Piece(CARRY, (hidden,)), Piece(START, (hidden,))
        wh = Piece("wh", (hidden, columns))
        gradients = HIDDEN_OUT if cell.hidden_gradient else GATES_OUT
        build.zero(carry)
        if cell.has_cell:
            build.zero(Piece(CELL_CARRY, (hidden,)))
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
            cell.backward(build, at)
            if time == 0 and "dx1" not in op:
                break
            build.matmul(Piece(part(gradients, time), (columns,)), wh, carry, trans_b=True)
            if cell.hidden_gradient:
                build.add(carry, Piece(DIRECT, (hidden,)))
        results = {
            "g": Piece(GATES_OUT, (length, columns)),
            "gh": Piece(HIDDEN_OUT, (length, columns)),
            "dx1": carry,
            "dx2": Piece(CELL_CARRY, (hidden,)),
        }
        for role in op.writes:
            build.copy(results[role], Piece(part(role, sample), results[role].shape))


class _SequenceLowering(RecurrentLowering):
    """Matmuls over the whole sequence, every dimension of which may be cut."""

    def default_kernel(self, op: Op) -> str:
        """The kernel PULP-TrainLib's RNN is hard-wired to."""
        return "mm_unroll_4x1"

    def dimensions(self, op: Op) -> dict[str, int]:
        """Samples, steps."""
        return {**batch_extent(op.attributes["batch"]), "steps": op.attributes["length"]}

    def cut(self, op: Op, ranges: Ranges, width: str) -> tuple[Extent, Extent, Extent, Extent]:
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

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Rows and columns of the weights."""
        return {self.width: op.attributes[self.width], "columns": self.sizes(op)[3]}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, steps."""
        return self.dimensions(op)

    def macs(self, op: Op, tensors: Tensors) -> int:
        """batch · length · rows · columns."""
        length, _, _, columns = self.sizes(op)
        return int(op.attributes["batch"] * length * columns * op.attributes[self.width])

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """A box of the weights, from some steps of some samples."""
        build = TileBuilder(choice, tensors[op[self.weight]].dtype)
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
        turned = build.temporary("transposed", height, length)
        before = build.temporary("before", length, height) if started else None
        term = build.temporary("dw_of_sample", height, count) if batch > 1 else None
        for sample in range(batch):
            if before:
                self._before(op, build, sample, length, height)
            build.transpose(before or Piece(part(source, sample), (length, height)), turned)
            g, dw = Piece(part(self.gradient, sample), (length, count)), Piece(self.weight, (height, count))
            build.added_matmul(turned, g, dw, term if sample else None)
        outputs = [box(op, self.weight, rows, columns)]
        if self.bias in op and rows[0] == 0:
            outputs.append(box(op, self.bias, columns))
            build.column_sum(Piece(self.gradient, (batch, length, count)), Piece(self.bias, (count,)))
        return build.task(inputs, outputs)

    def _before(self, op: Op, build: TileBuilder, sample: int, length: int, height: int) -> None:
        """The states before the first steps: the initial one, then those of y."""
        given = Piece(part("x1", sample), (height,)) if "x1" in op else None
        build.copy_or_zero(given, Piece(part("before", 0), (height,)))
        if length > 1:
            y = Piece(part("y", sample), (length - 1, height))
            build.copy(y, Piece(part("before", 1, length), (length - 1, height)))


class InputGradient(_SequenceLowering):
    """IG: dX = g·Wxᵀ; (length, columns, features)."""

    def default_kernel(self, op: Op) -> str:
        """Columns over cores."""
        return "mm_M"

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, steps, input features."""
        return {**self.dimensions(op), "features": op.attributes["features"]}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Columns of Wx."""
        return {"columns": self.sizes(op)[3]}

    def macs(self, op: Op, tensors: Tensors) -> int:
        """batch · length · gates·hidden · features."""
        length, features, _, columns = self.sizes(op)
        return int(op.attributes["batch"]) * length * columns * features

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some steps of some samples, a box of Wx, transposed once."""
        build = TileBuilder(choice, tensors[op["dx"]].dtype)
        samples, steps, wanted, summed = self.cut(op, ranges, "features")
        batch, length, count, columns = (last - first for first, last in (samples, steps, wanted, summed))
        turned = build.temporary("wx_transposed", columns, count)
        build.transpose(Piece("wx", (count, columns)), turned)
        for sample in range(batch):
            g, dx = Piece(part("g", sample), (length, columns)), Piece(part("dx", sample), (length, count))
            build.matmul(g, turned, dx)
        inputs = (box(op, "g", samples, steps, summed), box(op, "wx", wanted, summed))
        return build.task(inputs, (box(op, "dx", samples, steps, wanted),))

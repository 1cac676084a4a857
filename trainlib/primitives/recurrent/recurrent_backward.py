# SPDX-License-Identifier: Apache-2.0
"""Backward steps of the recurrent layers as kernel calls: BPTT, weight gradients, input gradient."""

from __future__ import annotations

from collections.abc import Sequence

from trainlib.ir.graph import Op
from trainlib.ir.steps import Ranges, Tensors, part
from trainlib.primitives.lowering.axes import Area, Axes
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.forks import column_sum
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


class Backward(RecurrentLowering):
    """BPTT: gradients of the gates of all steps, and of the initial states; the batch may be cut."""

    def macs(self, op: Op, tensors: Tensors) -> int:
        """One recurrent product per step; before the first step only if its state wants a gradient."""
        length, _, hidden, columns = self.sizes(op)
        steps = length if "dx1" in op else length - 1
        return int(op.attributes["batch"]) * steps * columns * hidden

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some samples, one after the other, each from its last step to its first."""
        length, _, hidden, columns = self.sizes(area.op)
        start = build.temporary(START, hidden)
        build.temporary(CARRY, hidden)
        build.temporary(GATES_OUT, length, columns)
        if self.cell.has_cell:
            build.temporary(CELL_CARRY, hidden)
        if self.cell.hidden_gradient:
            build.temporary(HIDDEN_OUT, length, columns)
            build.temporary(DIRECT, hidden)
        build.zero(start)
        for sample in area.samples:
            self._sample(area.op, build, sample)

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
            cell.backward.run(build, at)
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


class WeightGradient(RecurrentLowering):
    """dW [rows x columns] = sum over samples and steps of sourceᵀ·g, and the bias with the first rows.

    `width` names the rows: features for dWx, whose source is x; hidden for dWh, whose source is the state
    before each step. (rows, length, columns), the source transposed first.
    """

    summed = (BATCH, "steps")

    def __init__(self, cell: Cell, width: str) -> None:
        super().__init__(cell)
        self.kept = (width, "columns")
        self.begun = (width, "steps")
        self.source = "x" if width == "features" else "y"
        self.gradient = cell.gradients[-1] if width == "hidden" else "g"

    def default_kernel(self, op: Op) -> str:
        """The kernel PULP-TrainLib's RNN is hard-wired to."""
        return "mm_unroll_4x1"

    def axes(self, role: str) -> Axes:
        """The states before the steps are y one step earlier, and the initial one."""
        if role[0] == "d":
            return self.kept if role[1] == "w" else self.kept[1:]
        return (BATCH, "earlier", "hidden") if role == "y" else super().axes(role)

    def area(self, op: Op, tensors: Tensors, ranges: Ranges) -> Area:
        """With the steps before those of the tile."""
        area = super().area(op, tensors, ranges)
        first, last = area.extents["steps"]
        area.extents["earlier"] = (max(first - 1, 0), last - 1)
        return area

    def loaded(self, area: Area) -> Sequence[str]:
        """Of the states what there is before the steps."""
        if self.source == "x":
            return self.gradient, "x"
        given = {"y": min(area.shape("earlier")) > 0, "x1": "x1" in area.op and area.begins("steps")}
        return self.gradient, *(role for role, there in given.items() if there)

    def stored(self, area: Area) -> Sequence[str]:
        """The bias with the first rows."""
        return area.op.writes if area.begins(self.kept[0]) else area.op.writes[:1]

    def compute(self, area: Area, build: TileBuilder) -> None:
        """A box of the weights, from some steps of some samples."""
        (length,), (height, count) = area.shape("steps"), area.shape(*self.kept)
        result, *bias = self.stored(area)
        target = area.piece(result)
        turned = build.temporary("transposed", height, length)
        started = self.source == "y" and area.begins("steps")
        before = build.temporary("before", length, height) if started else None
        term = build.temporary("dw_of_sample", height, count) if len(area.samples) > 1 else None
        for sample in area.samples:
            source = Piece(part(self.source, sample), (length, height))
            if before:
                given = area.piece("x1", sample) if "x1" in area.op else None
                build.copy_or_zero(given, Piece(part("before", 0), (height,)))
                if length > 1:
                    later = Piece(part("before", 1, length), (length - 1, height))
                    build.copy(Piece(source.name, later.shape), later)
            build.transpose(before or source, turned)
            build.matmul(turned, area.piece(self.gradient, sample), term if term and sample else target)
            if term and sample:
                build.add(target, term)
        for role in bias:
            column_sum(self.gradient, role, (BATCH, "steps"), self.kept[1:]).run(area, build)


class InputGradient(RecurrentLowering):
    """IG: dX = g·Wxᵀ; (length, columns, features)."""

    kept, summed = (BATCH, "steps", "features"), ("columns",)

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some steps of some samples, a box of Wx, transposed once."""
        turned = build.temporary("wx_transposed", *area.shape("columns", "features"))
        build.transpose(area.piece("wx"), turned)
        for sample in area.samples:
            g, dx = (area.piece(role, sample) for role in ("g", "dx"))
            build.matmul(g, turned, dx)

# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers one time step at a time, for weights and sequences that are larger than L1.

FW_X: px [batch, gates, length, hidden] = X·Wx with the biases that may be added early; every dimension may be
cut. FW_STEP<t>: the state h<t> and what is saved of step t, from the state before and Wh; the units may be
cut, a tile then has their columns of every gate of Wh. FW: the states side by side, y. Backward BPTT_CELL<t>
has the gradients of the gates of step t, BPTT_CARRY<t> that of the state before it, and BPTT puts g (and gh)
of all steps side by side. What a step hands to the next goes by way of the memory behind L1, and so does Wh:
that is the price of being cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from configs.values import replace
from trainlib.ir.graph import Op
from trainlib.ir.steps import (
    Extent,
    KernelChoice,
    Operand,
    Ranges,
    StepLowering,
    Tensors,
    TileTask,
    part,
)
from trainlib.primitives.lowering.axes import Area, Axes, AxesLowering
from trainlib.primitives.lowering.calls import BATCH, box
from trainlib.primitives.lowering.pieces import Piece, TileBuilder
from trainlib.primitives.recurrent.recurrent import Cell, RecurrentLowering


def _size(extent: Extent) -> int:
    return extent[1] - extent[0]


def _of_gate(gate: int, hidden: int, units: Extent) -> Extent:
    """Columns of some units of a gate, in a dimension that holds all gates one after the other."""
    return gate * hidden + units[0], gate * hidden + units[1]


class Projection(RecurrentLowering):
    """FW_X: one matmul per sample and gate; (steps, features, units)."""

    kept, summed = (BATCH, "gates", "steps", "units"), ("features",)
    begun, moved = ("gates", *summed), StepLowering.moved

    def axes(self, role: str) -> Axes:
        """Of x and px; the weights are taken gate by gate."""
        return (BATCH, "steps", "features") if role == "x" else self.kept

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some units of some gates; the biases with the first features."""
        area, build = self.area(op, tensors, ranges), TileBuilder(choice, tensors[op["px"]].dtype)
        inputs, summed = [area.box("x")], area.extents["features"]
        biases = [role for role in ("bx", "bh") if role in op and area.begins("features")]
        for number, gate in enumerate(range(*area.extents["gates"])):
            columns = _of_gate(gate, op.attributes["hidden"], area.extents["units"])
            inputs.append(Operand(op["wx"], (summed, columns), f"wx{number}"))
            inputs += [Operand(op[role], (columns,), f"{role}{number}") for role in biases]
        (gates,), (rows, inner, count) = area.shape("gates"), area.shape("steps", "features", "units")
        for sample, number in product(area.samples, range(gates)):
            target = Piece(part("px", sample), (rows, count), number * rows * count)
            x = area.piece("x", sample)
            build.matmul(x, Piece(f"wx{number}", (inner, count)), target)
            for role in biases:
                build.add(target, Piece(f"{role}{number}", (count,)))
        return build.task(inputs, (area.box("px"),))


class _OneStep(RecurrentLowering):
    """What the steps of one time step share: samples and units may be cut."""

    kept, placed = (BATCH, "units"), True

    def __init__(self, cell: Cell, time: int) -> None:
        super().__init__(cell)
        self.time = time

    def macs(self, op: Op, tensors: Tensors) -> int:
        _, _, hidden, columns = self.sizes(op)
        return int(op.attributes["batch"]) * hidden * columns

    def among_others(self, op: Op) -> Op:
        """The op with times counted from its own."""

        def from_here(role: str) -> str:
            kind = role.rstrip("0123456789")
            return f"{kind}{int(role.removeprefix(kind)) - self.time:+}" if kind != role else role

        reads, writes = (tuple(map(from_here, roles)) for roles in (op.reads, op.writes))
        return replace(op, step=type(self).__name__, reads=reads, writes=writes)

    def cut(self, op: Op, tensors: Tensors, ranges: Ranges) -> tuple[Extent, Extent]:
        """Samples and units of a tile."""
        extents = self.area(op, tensors, ranges).extents
        return extents[BATCH], extents["units"]

    def earlier(self, op: Op, role: str, given: str, buffer: str, *region: Extent) -> list[Operand]:
        """The box of a state of the step before, or of the one given; none where it starts at zero."""
        name = f"{role}{self.time - 1}" if self.time else given
        return [Operand(op[name], region, buffer)] if name in op.reads else []


class StepForward(_OneStep):
    """FW_STEP: per sample h·Wh gate by gate (1, hidden, units), then the cell."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some units, from the whole state before."""
        _, _, hidden, _ = self.sizes(op)
        cell, time, build = self.cell, self.time, TileBuilder(choice, tensors[op["px"]].dtype)
        samples, units = self.cut(op, tensors, ranges)
        count, gates = _size(units), cell.gates
        inputs = [box(op, "px", samples, (0, gates), (time, time + 1), units)]
        inputs += self.earlier(op, "h", "x1", "before", samples, (0, hidden))
        inputs += self.earlier(op, "c", "x2", "cell_before", samples, units)
        for gate in range(gates):
            columns = _of_gate(gate, hidden, units)
            inputs.append(Operand(op["wh"], ((0, hidden), columns), f"wh{gate}"))
            if "bh" in op:
                inputs.append(Operand(op["bh"], (columns,), f"bh{gate}"))
        outputs = [Operand(op[f"h{time}"], (samples, units), "h")]
        for role in cell.saved:
            region = (samples, (0, gates), units) if role == "gates" else (samples, units)
            outputs.append(Operand(op[f"{role}{time}"], region, role))
        recurrent = build.temporary("recurrent", gates, count)
        given = {operand.name for operand in inputs}
        if "before" not in given or (cell.has_cell and "cell_before" not in given):
            build.zero(build.temporary("start", hidden))
        for sample in range(_size(samples)):
            self._sample(build, sample, recurrent, hidden, units, given)
        return build.task(inputs, outputs)

    def _sample(
        self, build: TileBuilder, sample: int, recurrent: Piece, hidden: int, units: Extent, given: set[str]
    ) -> None:
        cell, count = self.cell, _size(units)
        state = Piece(part("before", sample) if "before" in given else "start", (hidden,), 0)
        for gate in range(cell.gates):
            target = recurrent.row(gate)
            build.matmul(state, Piece(f"wh{gate}", (hidden, count)), target)
            if f"bh{gate}" in given:
                build.add(target, Piece(f"bh{gate}", (count,)))
        projected = Piece(part("px", sample), (cell.gates * count,), 0)
        if cell.gates_saved:
            saved = Piece(part("gates", sample), (cell.gates * count,), 0)
            build.copy(projected, saved)
            projected = saved
        zero = Piece("start", (count,), 0)
        pieces = {
            "projected": projected,
            "recurrent": Piece(recurrent.name, (cell.gates * count,), 0),
            "before": Piece(state.name, (count,), units[0]),
            "after": Piece(part("h", sample), (count,), 0),
            "hn": Piece(part("hn", sample), (count,), 0),
            "cell_before": Piece(part("cell_before", sample), (count,), 0)
            if "cell_before" in given
            else zero,
            "cell_after": Piece(part("c", sample), (count,), 0),
        }
        cell.forward.run(build, pieces)


class StepBackward(_OneStep):
    """BPTT_CELL: gradients of the gates of one step, elementwise."""

    def default_kernel(self, op: Op) -> str:
        """There is no matmul in it."""
        return ""

    def macs(self, op: Op, tensors: Tensors) -> int:
        """No matmul."""
        return 0

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some units of every gate; gradients are made side by side and then put to their gates."""
        cell, time, hidden = self.cell, self.time, op.attributes["hidden"]
        build = TileBuilder(choice, tensors[op[f"g{time}"]].dtype)
        samples, units = self.cut(op, tensors, ranges)
        count = _size(units)
        inputs = [box(op, "dy", samples, (time, time + 1), units)]
        for role in ("gates", "hn", "c"):
            if f"{role}{time}" in op.reads:
                region = (samples, (0, cell.gates), units) if role == "gates" else (samples, units)
                inputs.append(Operand(op[f"{role}{time}"], region, role))
        if "y" in cell.uses:
            inputs.append(Operand(op[f"h{time}"], (samples, units), "y"))
        if "before" in cell.uses:
            inputs += self.earlier(op, "h", "x1", "before", samples, units)
        if "cell_before" in cell.uses:
            inputs += self.earlier(op, "c", "x2", "cell_before", samples, units)
        for role, buffer in (("dh", "carry"), ("dc", "cell_later")):
            if f"{role}{time + 1}" in op.reads:
                inputs.append(Operand(op[f"{role}{time + 1}"], (samples, units), buffer))
        made = ("g", "gh") if cell.hidden_gradient else ("g",)
        outputs = [
            Operand(op[f"{role}{time}"], (samples, _of_gate(gate, hidden, units)), f"{role}_{gate}")
            for role in made
            for gate in range(cell.gates)
        ]
        for role in made:
            build.temporary(role, cell.gates, count)
        build.zero(build.temporary("zero", count))
        further = {f"direct{time}": "direct", f"dc{time}": "cell_carry", "dx2": "cell_carry"}
        outputs += [
            Operand(op[role], (samples, units), buffer)
            for role, buffer in further.items()
            if role in op.writes
        ]
        present = {operand.name for operand in (*inputs, *outputs)}
        if cell.hidden_gradient and "direct" not in present:
            build.temporary("direct", _size(samples), count)
        if cell.has_cell and "cell_carry" not in present:
            build.temporary("cell_carry", _size(samples), count)
        for sample in range(_size(samples)):
            self._sample(build, sample, count, present, made)
        return build.task(inputs, outputs)

    def _sample(
        self, build: TileBuilder, sample: int, count: int, loaded: set[str], made: Sequence[str]
    ) -> None:
        gates = self.cell.gates

        def of(name: str, width: int = count) -> Piece:
            return Piece(part(name, sample), (width,), 0)

        def or_zero(name: str) -> Piece:
            return of(name) if name in loaded else Piece("zero", (count,), 0)

        pieces = {name: of(name) for name in ("hn", "y", "c", "dy", "direct", "cell_carry")}
        pieces |= {name: or_zero(name) for name in ("before", "cell_before", "carry")}
        pieces |= {"gates": of("gates", gates * count)}
        pieces |= {role: Piece(role, (gates * count,), 0) for role in made}
        if self.cell.has_cell:
            build.copy(or_zero("cell_later"), pieces["cell_carry"])
        self.cell.backward.run(build, pieces)
        for role in made:
            for gate in range(gates):
                build.copy(Piece(role, (count,), gate * count), of(f"{role}_{gate}"))


class StepCarry(_OneStep):
    """BPTT_CARRY: gradient of the state before a step, gh·Whᵀ and what goes around the gates."""

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """Some units: rows of Wh; (samples, gates·hidden, units)."""
        _, _, _, columns = self.sizes(op)
        (target,), time = op.writes, self.time
        build = TileBuilder(choice, tensors[op[target]].dtype)
        samples, units = self.cut(op, tensors, ranges)
        batch, count = _size(samples), _size(units)
        gradient = op[f"gh{time}" if self.cell.hidden_gradient else f"g{time}"]
        inputs = [Operand(gradient, (samples, (0, columns)), "g"), box(op, "wh", units, (0, columns))]
        result = Piece("carry", (batch, count))
        build.matmul(Piece("g", (batch, columns)), Piece("wh", (count, columns)), result, trans_b=True)
        if self.cell.hidden_gradient:
            inputs.append(Operand(op[f"direct{time}"], (samples, units), "direct"))
            build.add(result, Piece("direct", (batch, count)))
        return build.task(inputs, (Operand(op[target], (samples, units), "carry"),))


class SideBySide(AxesLowering):
    """FW and BPTT: [batch, width] of every time step into [batch, length, width], by copies.

    `parts` maps each result to the role of its time steps without their number.
    """

    kept = (BATCH, "columns")

    def __init__(self, parts: Mapping[str, str]) -> None:
        self.parts = parts

    def axes(self, role: str) -> Axes:
        """Of one time step, or of all."""
        return (BATCH, "steps", "columns") if role in self.parts else self.kept

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Some columns of all time steps."""
        (length, count) = area.shape("steps", "columns")
        for role, sample, time in product(area.op.writes, area.samples, range(length)):
            source = area.piece(f"{self.parts[role]}{time}", sample)
            build.copy(source, Piece(part(role, sample), (count,), time * count))

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

from collections.abc import Mapping
from itertools import product

from configs.values import replace
from trainlib.ir.graph import Op
from trainlib.ir.steps import Extent, Operand, StepLowering, Tensors, part
from trainlib.primitives.lowering.axes import Area, Axes, AxesLowering
from trainlib.primitives.lowering.calls import BATCH, box
from trainlib.primitives.lowering.pieces import Piece, TileBuilder
from trainlib.primitives.recurrent.recurrent import Cell, RecurrentLowering

Boxes = tuple[list[Operand], list[Operand]]
"""What a tile loads and what it writes."""


def _of_gate(area: Area, gate: int) -> Extent:
    """Columns of a tile's units of a gate, in a dimension that holds all gates one after the other."""
    hidden, (first, last) = area.op.attributes["hidden"], area.extents["units"]
    return gate * hidden + first, gate * hidden + last


class Projection(RecurrentLowering):
    """FW_X: one matmul per sample and gate; (steps, features, units)."""

    kept, summed = (BATCH, "gates", "steps", "units"), ("features",)
    begun, moved = ("gates", *summed), StepLowering.moved

    def axes(self, role: str) -> Axes:
        """Of x and px; the weights are taken gate by gate."""
        return (BATCH, "steps", "features") if role == "x" else self.kept

    @staticmethod
    def _biases(area: Area) -> list[str]:
        return [role for role in ("bx", "bh") if role in area.op and area.begins("features")]

    def boxes(self, area: Area) -> Boxes:
        """Some units of some gates; the biases with the first features."""
        inputs, op = [area.box("x")], area.op
        for number, gate in enumerate(range(*area.extents["gates"])):
            columns = _of_gate(area, gate)
            inputs.append(Operand(op["wx"], (area.extents["features"], columns), f"wx{number}"))
            inputs += [Operand(op[role], (columns,), f"{role}{number}") for role in self._biases(area)]
        return inputs, [area.box("px")]

    def compute(self, area: Area, build: TileBuilder) -> None:
        """A matmul and its biases per sample and gate."""
        (gates,), (rows, inner, count) = area.shape("gates"), area.shape("steps", "features", "units")
        for sample, number in product(area.samples, range(gates)):
            target = Piece(part("px", sample), (rows, count), number * rows * count)
            build.matmul(area.piece("x", sample), Piece(f"wx{number}", (inner, count)), target)
            for role in self._biases(area):
                build.add(target, Piece(f"{role}{number}", (count,)))


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

    def units(self, area: Area, **roles: str) -> list[Operand]:
        """The samples and units of a tile, in buffers by name, of those tensors of a step that there are."""
        op, samples, units = area.op, area.extents[BATCH], area.extents["units"]
        every = {"gates": (samples, (0, self.cell.gates), units)}
        boxes = ((buffer, every.get(buffer, (samples, units))) for buffer in roles)
        return [Operand(op[roles[buffer]], region, buffer) for buffer, region in boxes if roles[buffer] in op]

    def earlier(self, role: str, given: str) -> str:
        """The state of the step before, or the one given: there is none where it starts at zero."""
        return f"{role}{self.time - 1}" if self.time else given


class StepForward(_OneStep):
    """FW_STEP: per sample h·Wh gate by gate (1, hidden, units), then the cell."""

    def boxes(self, area: Area) -> Boxes:
        """Some units, from the whole state before."""
        op, cell, time, whole = area.op, self.cell, self.time, area.extents["hidden"]
        samples, before = area.extents[BATCH], self.earlier("h", "x1")
        inputs = [box(op, "px", samples, (0, cell.gates), (time, time + 1), area.extents["units"])]
        inputs += [Operand(op[before], (samples, whole), "before")] if before in op else []
        inputs += self.units(area, cell_before=self.earlier("c", "x2"))
        for gate in range(cell.gates):
            columns = _of_gate(area, gate)
            inputs.append(Operand(op["wh"], (whole, columns), f"wh{gate}"))
            if "bh" in op:
                inputs.append(Operand(op["bh"], (columns,), f"bh{gate}"))
        return inputs, self.units(area, **{role: f"{role}{time}" for role in ("h", *cell.saved)})

    def compute(self, area: Area, build: TileBuilder) -> None:
        """One sample after the other."""
        (hidden, count), cell = area.shape("hidden", "units"), self.cell
        recurrent = build.temporary("recurrent", cell.gates, count)
        given = {operand.name for operand in self.boxes(area)[0]}
        if "before" not in given or (cell.has_cell and "cell_before" not in given):
            build.zero(build.temporary("start", hidden))
        for sample in area.samples:
            self._sample(build, sample, recurrent, hidden, area.extents["units"], given)

    def _sample(
        self, build: TileBuilder, sample: int, recurrent: Piece, hidden: int, units: Extent, given: set[str]
    ) -> None:
        cell, count = self.cell, units[1] - units[0]
        state = Piece(part("before", sample) if "before" in given else "start", (hidden,), 0)
        for gate in range(cell.gates):
            target = recurrent.row(gate)
            build.matmul(state, Piece(f"wh{gate}", (hidden, count)), target)
            if f"bh{gate}" in given:
                build.add(target, Piece(f"bh{gate}", (count,)))

        def of(name: str, width: int = count) -> Piece:
            return Piece(part(name, sample), (width,), 0)

        projected = of("px", cell.gates * count)
        if cell.gates_saved:
            saved = of("gates", cell.gates * count)
            build.copy(projected, saved)
            projected = saved
        pieces = {
            "projected": projected,
            "recurrent": Piece(recurrent.name, (cell.gates * count,), 0),
            "before": Piece(state.name, (count,), units[0]),
            "after": of("h"),
            "hn": of("hn"),
            "cell_before": of("cell_before") if "cell_before" in given else Piece("start", (count,), 0),
            "cell_after": of("c"),
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

    def boxes(self, area: Area) -> Boxes:
        """Some units of every gate."""
        op, time, samples = area.op, self.time, area.extents[BATCH]
        states = {"y": f"h{time}", "before": self.earlier("h", "x1"), "cell_before": self.earlier("c", "x2")}
        later = {"carry": f"dh{time + 1}", "cell_later": f"dc{time + 1}"}
        saved = {role: f"{role}{time}" for role in ("gates", "hn", "c")}
        outputs = [
            Operand(op[f"{role}{time}"], (samples, _of_gate(area, gate)), f"{role}_{gate}")
            for role in self.cell.gradients
            for gate in range(self.cell.gates)
        ]
        further = {"direct": f"direct{time}", "cell_carry": f"dc{time}" if time else "dx2"}
        dy = box(op, "dy", samples, (time, time + 1), area.extents["units"])
        return [dy, *self.units(area, **saved, **states, **later)], outputs + self.units(area, **further)

    def compute(self, area: Area, build: TileBuilder) -> None:
        """Gradients are made side by side and then put to their gates."""
        cell, (samples, count) = self.cell, area.shape(BATCH, "units")
        inputs, outputs = self.boxes(area)
        for role in cell.gradients:
            build.temporary(role, cell.gates, count)
        build.zero(build.temporary("zero", count))
        present = {operand.name for operand in (*inputs, *outputs)}
        if cell.hidden_gradient and "direct" not in present:
            build.temporary("direct", samples, count)
        if cell.has_cell and "cell_carry" not in present:
            build.temporary("cell_carry", samples, count)
        for sample in area.samples:
            self._sample(build, sample, count, present)

    def _sample(self, build: TileBuilder, sample: int, count: int, loaded: set[str]) -> None:
        gates = self.cell.gates

        def of(name: str, width: int = count) -> Piece:
            return Piece(part(name, sample), (width,), 0)

        def or_zero(name: str) -> Piece:
            return of(name) if name in loaded else Piece("zero", (count,), 0)

        pieces = {name: of(name) for name in ("hn", "y", "c", "dy", "direct", "cell_carry")}
        pieces |= {name: or_zero(name) for name in ("before", "cell_before", "carry")}
        pieces |= {"gates": of("gates", gates * count)}
        pieces |= {role: Piece(role, (gates * count,), 0) for role in self.cell.gradients}
        if self.cell.has_cell:
            build.copy(or_zero("cell_later"), pieces["cell_carry"])
        self.cell.backward.run(build, pieces)
        for role in self.cell.gradients:
            for gate in range(gates):
                build.copy(Piece(role, (count,), gate * count), of(f"{role}_{gate}"))


class StepCarry(_OneStep):
    """BPTT_CARRY: gradient of the state before a step, gh·Whᵀ and what goes around the gates."""

    def boxes(self, area: Area) -> Boxes:
        """Some units: rows of Wh."""
        op, time, columns = area.op, self.time, area.extents["columns"]
        gradient = op[f"{self.cell.gradients[-1]}{time}"]
        inputs = [Operand(gradient, (area.extents[BATCH], columns), "g")]
        inputs.append(box(op, "wh", area.extents["units"], columns))
        return inputs + self.units(area, direct=f"direct{time}"), self.units(area, carry=op.writes[0])

    def compute(self, area: Area, build: TileBuilder) -> None:
        """(samples, gates·hidden, units)."""
        batch, columns, count = area.shape(BATCH, "columns", "units")
        result = Piece("carry", (batch, count))
        build.matmul(Piece("g", (batch, columns)), Piece("wh", (count, columns)), result, trans_b=True)
        if self.cell.hidden_gradient:
            build.add(result, Piece("direct", (batch, count)))


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

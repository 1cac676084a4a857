# SPDX-License-Identifier: Apache-2.0
"""Shapes, parameters and steps of the recurrent layers: what one cell becomes as a layer of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from configs.errors import ShapeError
from configs.model_file import LayerSchema
from trainlib.ir.graph import Initial, Op, Tensor
from trainlib.primitives.definition import (
    Example,
    LayerPlan,
    LayerPrimitive,
    Parameter,
    Positive,
    Saved,
    Step,
    Values,
)
from trainlib.primitives.lowering.boxes import sequence_of
from trainlib.primitives.recurrent import recurrent_reference as shared
from trainlib.primitives.recurrent.recurrent import Cell, Forward
from trainlib.primitives.recurrent.recurrent_backward import Backward, InputGradient, WeightGradient
from trainlib.primitives.recurrent.recurrent_steps import (
    Projection,
    SideBySide,
    StepBackward,
    StepCarry,
    StepForward,
)


class _RecurrentSchema(LayerSchema):
    hidden: Positive
    """Size of the hidden state."""
    bias: bool = True
    """Whether there are trained biases."""
    stepwise: bool = False
    """Make each time step a separate op, so that the weights (or the sequence) may be larger than L1."""


def _plan(
    cell: Cell, name: str, attributes: Mapping[str, Any], inputs: Sequence[Tensor], where: str
) -> LayerPlan:
    """Shapes; ShapeError for inputs that are no sequences and states of a wrong size."""
    batch, length, features = sequence_of(inputs[0], name, where)
    hidden, gates = attributes["hidden"], cell.gates
    for state in inputs[1:]:
        if state.shape != (batch, hidden):
            raise ShapeError(
                f"the initial state has shape {state.shape[1:]}, but hidden: {hidden} needs ({hidden},)",
                where=where,
                cure=f"use a state of {hidden} values, or hidden: {state.shape[-1]}",
            )
    start = Initial("uniform", float(hidden**-0.5))
    columns = gates * hidden
    parameters = {"wx": Parameter((features, columns), start), "wh": Parameter((hidden, columns), start)}
    if attributes["bias"]:
        parameters |= {"bx": Parameter((columns,), start), "bh": Parameter((columns,), start)}
    saved = {role: Saved((batch, length, columns)) for role in cell.gradients}
    numbers = {"batch": batch, "length": length, "features": features, "hidden": hidden, "gates": gates}
    steps: tuple[str, ...] = ()
    if attributes["stepwise"]:
        steps = _stepwise_names(length)
        saved["px"] = Saved((batch, gates, length, hidden))
        for time in range(length):
            for role in ("h", "direct", "dh", "dc", *cell.saved):
                unit = (batch, gates, hidden) if role == "gates" else (batch, hidden)
                saved[f"{role}{time}"] = Saved(unit)
            saved |= {f"{role}{time}": Saved((batch, columns)) for role in cell.gradients}
    else:
        saved |= {role: Saved((batch, length, count * hidden)) for role, count in cell.saved.items()}
    return LayerPlan((batch, length, hidden), parameters, saved, attributes=numbers, steps=steps)


def _stepwise_names(length: int) -> tuple[str, ...]:
    forward = [f"FW_STEP{time}" for time in range(length)]
    backward = [
        name for time in reversed(range(length)) for name in (f"BPTT_CELL{time}", f"BPTT_CARRY{time}")
    ]
    last = f"of{length}"
    return ("FW_X", *forward, f"FW_{last}", *backward, f"BPTT_{last}", "WG_X", "WG", "IG")


def _whole_steps(cell: Cell) -> tuple[Step, ...]:
    states = "x1? x2?" if cell.has_cell else "x1?"
    kept = [role for role in cell.uses if role in cell.saved]
    needs_state = "y" in cell.uses or "before" in cell.uses
    given = [*(["x1?"] if "before" in cell.uses else []), *(["x2?"] if cell.has_cell else [])]
    read = " ".join([*(["y"] if needs_state else []), "dy", *kept, "wh", *given])
    return (
        Step.of(
            "FW",
            f"x wx wh bx? bh? {states} -> y {' '.join(cell.saved)}",
            shared.forward(cell),
            Forward(cell),
            formula=True,
        ),
        Step.of(
            "BPTT",
            f"{read} -> {' '.join(cell.gradients)} {states.replace('x', 'dx')}",
            shared.backward(cell),
            Backward(cell),
            formula=True,
        ),
        Step.of("WG_X", "x g -> dwx dbx?", shared.input_weight_gradient, WeightGradient(cell, "features")),
        Step.of(
            "WG",
            f"y {cell.gradients[-1]} x1? -> dwh dbh?",
            shared.weight_gradient,
            WeightGradient(cell, "hidden"),
        ),
        Step.of("IG", "g wx -> dx", shared.input_gradient, InputGradient(cell)),
    )


def _joined(parts: Mapping[str, str], length: int) -> Callable[[Op, Values], Values]:
    def reference(op: Op, values: Values) -> Values:
        return {
            role: np.stack([values[f"{single}{time}"] for time in range(length)], axis=1)
            for role, single in parts.items()
        }

    return reference


def _forward_step(cell: Cell, time: int) -> Step:
    states = [f"h{time - 1}", *([f"c{time - 1}"] if cell.has_cell else [])]
    if time == 0:
        states = ["x1?", *(["x2?"] if cell.has_cell else [])]

    def evaluate(op: Op, values: Values) -> Values:
        from_x = values["px"][:, :, time].reshape(len(values["px"]), -1)
        like = np.zeros((len(from_x), len(values["wh"])), from_x.dtype)
        h, c = (
            values.get(f"{role}{time - 1}" if time else given, like)
            for role, given in (("h", "x1"), ("c", "x2"))
        )
        from_h = h @ values["wh"] + values.get("bh", 0)
        made = cell.advance(from_x, from_h, h, c)
        results = {f"{role}{time}": made[role] for role in cell.saved}
        if "gates" in made:
            results[f"gates{time}"] = made["gates"].reshape(len(from_x), cell.gates, -1)
        return {f"h{time}": made["y"], **results}

    return Step(
        f"FW_STEP{time}",
        ("px", "wh", *(["bh?"] if cell.late_bias else []), *states),
        (f"h{time}", *(f"{role}{time}" for role in cell.saved)),
        evaluate,
        StepForward(cell, time),
        formula=True,
    )


def _backward_step(cell: Cell, time: int) -> Step:
    before = {"before": (f"h{time - 1}", "x1"), "cell_before": (f"c{time - 1}", "x2")}
    names = {role: (saved if time else given) for role, (saved, given) in before.items() if role in cell.uses}
    kept = {role: f"{'h' if role == 'y' else role}{time}" for role in cell.uses if role not in before}
    later = [f"dh{time + 1}?", *([f"dc{time + 1}?"] if cell.has_cell else [])]

    def evaluate(op: Op, values: Values) -> Values:
        dy = values["dy"][:, time]
        flat = {role: values[name].reshape(len(dy), -1) for role, name in kept.items()}
        flat |= {role: values.get(name, np.zeros_like(dy)) for role, name in names.items()}
        dh, dc = (values.get(f"{role}{time + 1}", np.zeros_like(dy)) for role in ("dh", "dc"))
        made = cell.retreat(flat, dy + dh, dc)
        results = {f"{role}{time}": array for role, array in made.items()}
        return {**results, "dx2": made["dc"]} if "dc" in made else results

    writes = [f"g{time}"]
    if cell.hidden_gradient:
        writes += [f"gh{time}", f"direct{time}?"]
    if cell.has_cell:
        writes.append(f"dc{time}?" if time else "dx2?")
    reads = ("dy", *kept.values(), *(f"{name}?" for name in names.values()), *later)
    return Step(f"BPTT_CELL{time}", reads, tuple(writes), evaluate, StepBackward(cell, time), formula=True)


def _carry_step(cell: Cell, time: int) -> Step:
    gradient = f"{cell.gradients[-1]}{time}"
    result = f"dh{time}" if time else "dx1"

    def evaluate(op: Op, values: Values) -> Values:
        return {result: values[gradient] @ values["wh"].T + values.get(f"direct{time}", 0)}

    reads = (gradient, "wh", *([f"direct{time}"] if cell.hidden_gradient else []))
    return Step(f"BPTT_CARRY{time}", reads, (result if time else "dx1?",), evaluate, StepCarry(cell, time))


def _stepwise(cell: Cell) -> Callable[[str], Step | None]:
    @cache
    def step(name: str) -> Step | None:
        if name == "FW_X":
            reads = ("x", "wx", "bx?", *([] if cell.late_bias else ["bh?"]))
            return Step(name, reads, ("px",), shared.projection, Projection(cell))
        match = re.fullmatch(r"(FW_STEP|FW_of|BPTT_CELL|BPTT_CARRY|BPTT_of)(\d+)", name)
        if match is None:
            return None
        kind, number = match[1], int(match[2])
        if kind == "FW_STEP":
            return _forward_step(cell, number)
        if kind == "BPTT_CELL":
            return _backward_step(cell, number)
        if kind == "BPTT_CARRY":
            return _carry_step(cell, number)
        parts = {"y": "h"} if kind == "FW_of" else {role: role for role in cell.gradients}
        reads = tuple(f"{single}{time}" for single in parts.values() for time in range(number))
        return Step(name, reads, tuple(parts), _joined(parts, number), SideBySide(parts))

    return step


def recurrent_primitive(name: str, cell: Cell, examples: tuple[Example, ...]) -> LayerPrimitive:
    """The layer of a cell: with one step for the whole sequence, or with steps per time step."""
    states = 2 if cell.has_cell else 1
    return LayerPrimitive(
        name=name,
        schema=_RecurrentSchema,
        plan=lambda attributes, inputs, where: _plan(cell, name, attributes, inputs, where),
        steps=_whole_steps(cell),
        repeated=_stepwise(cell),
        examples=examples,
        inputs=(1, 1 + states),
        layouts=None,
    )

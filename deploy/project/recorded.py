# SPDX-License-Identifier: Apache-2.0
"""What the simulator has found in the iterations an export is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from configs.dtypes import dtype_of, is_float, is_narrow
from configs.values import Struct
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import Array
from trainlib.ir.varying import Varying
from trainlib.primitives.lowering.elementwise import ElementwiseLowering
from trainlib.references.op_truth import largest_finite
from trainlib.references.verdicts import WIDE_CAP, Verdict
from trainlib.registry import lowering_of

SHARE = WIDE_CAP
"""Of the largest element of a tensor, or of its gain: what the number check caps arithmetic at.

The gain of a sum is the root of its squared terms: among up to a million of them one that is missing shows.
"""

COMPARED = 2
"""Iterations whose every result is compared, op by op: the first, and one of those that have states."""

ROUNDINGS = 4
"""Half last bits of the largest element by which a 16-bit tensor may differ: its inputs are rounded, too."""

MOST = float(np.finfo(np.float32).max) / 2
"""The largest room: an infinity never differs from a number by so little."""

Values = Mapping[str, Array]


class Room(Struct, frozen=True):
    """By how much an element may differ, its last bit apart; `few`: only some elements may differ at all."""

    size: float = 0.0
    few: bool = False


EQUAL = Room()


@dataclass(slots=True)
class Recorded:
    """Tensors by name: `kept` before the first iteration, `fed` per mini-batch in order.

    `results` are those of the ops of the first `COMPARED` iterations in the order they were carried out, and
    after every iteration what is kept; `losses` those of every mini-batch, `totals` the loss of every
    iteration, which schedules may follow.
    """

    kept: Values = field(default_factory=dict)
    fed: list[Values] = field(default_factory=list)
    results: list[Values] = field(default_factory=list)
    losses: list[Sequence[float]] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    """What the number check has found of a result: how far rounding, and its inputs, may move an element."""

    @property
    def compared(self) -> int:
        """Iterations whose results of ops are known."""
        return min(COMPARED, len(self.totals))

    def followed(self, varying: Sequence[Varying]) -> list[list[float]]:
        """The numbers that follow a schedule, per iteration."""
        return [
            [item.rule(number, self.totals[:number]) for item in varying]
            for number in range(len(self.totals))
        ]

    def rooms(self, graphs: Sequence[TrainingGraph]) -> dict[str, Room]:
        """By how much an element of a result may differ from what was found, its last bit apart.

        Every op that is compared begins with what the simulator had, so this is what one op rounds: twice
        what the number check allows, since both may round; at most a share of the largest element. Where
        terms cancel (the gradient of a scale that a later norm takes out) it is a share of the terms. What an
        optimizer has moved may differ by a share of how far it has moved: 1 - beta^t of an Adam takes most,
        where a last bit of the power is 3e-5 of the update. In 16 bit a last bit may be as large as the
        update, so few elements may differ.
        """
        rooms: dict[str, Room] = {}
        moved_by_elements = _moved_by_elements(graphs)
        now = dict(self.kept)
        for tensors in self.results:
            for name, values in tensors.items():
                if not is_float(values.dtype):
                    room = 0.0
                elif name in moved_by_elements:
                    before = now[moved_by_elements[name]].astype(np.float64)
                    with np.errstate(invalid="ignore"):  # infinity less infinity
                        room = SHARE * largest_finite(values.astype(np.float64) - before)
                    now[moved_by_elements[name]] = values
                else:
                    room = self._room(name, values)
                few = name in moved_by_elements and is_narrow(values.dtype)
                rooms[name] = Room(min(max(room, rooms.get(name, EQUAL).size), MOST), few)
        return rooms

    def _room(self, name: str, values: Array) -> float:
        verdict = self.verdicts.get(name)
        share = SHARE
        if is_narrow(values.dtype):
            share += ROUNDINGS * dtype_of(values.dtype).unit_roundoff
        if verdict is None or not verdict.room:
            return share * largest_finite(values)
        return min(2 * verdict.room, share * max(largest_finite(values), verdict.gain))

    def watch(self, iteration: int) -> Callable[[str, Values], None] | None:
        """Who is to hear of the ops of an iteration, counted from 0 (`scheduler.executor.Watch`)."""
        return (lambda name, tensors: self.results.append(tensors)) if iteration < COMPARED else None

    def iteration(
        self,
        batch: Sequence[Values],
        total: float,
        losses: Sequence[Sequence[float]],
        kept: Callable[[], Values],
    ) -> None:
        """An iteration has ended, with these losses of its mini-batches; `kept` tells weights and states."""
        self.fed += batch
        self.losses += losses
        if len(self.totals) < COMPARED:
            tensors = kept()
            self.results.append({name: tensors[name] for name in self.kept})
        self.totals.append(total)


def _moved_by_elements(graphs: Sequence[TrainingGraph]) -> dict[str, str]:
    """What optimizers make of weights and states, element by element: after -> before."""
    moved: dict[str, str] = {}
    for graph in graphs:
        before = {after: name for name, after in graph.updates.items()}
        for op in graph.ops:
            lowering = lowering_of(op)
            if isinstance(lowering, ElementwiseLowering) and not lowering.batched:
                moved |= {name: before[name] for name in op.outputs if name in before}
    return moved

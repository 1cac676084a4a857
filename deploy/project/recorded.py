# SPDX-License-Identifier: Apache-2.0
"""What the simulator has found in the iterations an export is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from configs.dtypes import is_float
from trainlib.ir.steps import Array
from trainlib.ir.varying import Varying
from trainlib.references.verdicts import WIDE_CAP

SHARE = WIDE_CAP
"""Of the largest element of a tensor, or of its gain: what the number check caps arithmetic at.

The gain of a sum is the root of its squared terms: among up to a million of them one that is missing shows.
"""

COMPARED = 2
"""Iterations whose every result is compared, op by op: the first, and one of those that have states."""

Values = Mapping[str, Array]


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
    gains: Mapping[str, float] = field(default_factory=dict)
    """How far the elements of a result move with what it is made of, by the number check."""

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

    def rooms(self) -> dict[str, float]:
        """By how much an element of a result may differ from what was found: a share of the largest of them.

        Every op that is compared begins with what the simulator had, so this is what one op rounds. Where
        terms cancel (the gradient of a scale that a later norm takes out) it is a share of the terms.
        """
        rooms = {name: SHARE * gain for name, gain in self.gains.items()}
        for tensors in self.results:
            for name, values in tensors.items():
                if is_float(values.dtype):
                    largest = float(np.max(np.abs(values), initial=0))
                    rooms[name] = max(SHARE * largest, rooms.get(name, 0.0))
                else:
                    rooms[name] = 0.0
        return rooms

    def watch(self, iteration: int) -> Callable[[str, Values], None] | None:
        """Who is to hear of the ops of an iteration, counted from 0 (`scheduler.executor.Watch`)."""
        return self._op if iteration < COMPARED else None

    def _op(self, name: str, tensors: Values) -> None:
        self.results.append(tensors)

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

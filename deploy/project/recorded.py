# SPDX-License-Identifier: Apache-2.0
"""What the simulator has found in the iterations an export is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from configs.dtypes import is_float
from trainlib.ir.steps import Array
from trainlib.ir.varying import Varying
from trainlib.references.verdicts import WIDE_CAP

OF_LARGEST = WIDE_CAP
"""Of the largest element of a tensor: what the number check caps arithmetic at."""

OF_GAIN = 1e-4
"""Relative error of what a tensor is made of: a thousand roundings, all of an iteration's before it."""

Values = Mapping[str, Array]


@dataclass(slots=True)
class Recorded:
    """Tensors by name: `kept` before the first iteration and `after` the last, `fed` per mini-batch in order.

    `ops` are the results of the ops of the first iteration, in the order they were carried out; `losses`
    those of every mini-batch, `totals` the loss of every iteration, which schedules may follow.
    """

    kept: Values = field(default_factory=dict)
    fed: list[Values] = field(default_factory=list)
    ops: list[tuple[str, Values]] = field(default_factory=list)
    losses: list[Sequence[float]] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    after: Values = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)
    """How far the elements of a result move with what it is made of, by the first number check."""

    def followed(self, varying: Sequence[Varying]) -> list[list[float]]:
        """The numbers that follow a schedule, per iteration."""
        return [
            [item.rule(number, self.totals[:number]) for item in varying]
            for number in range(len(self.totals))
        ]

    def room(self, name: str, values: Array) -> float:
        """By how much an element of a result may differ from what was found: a share of the largest of them.

        What is left of terms that cancel (the gradient of a scale that a later norm takes out) moves with
        their roundings, so it has the share of its gain that they may reach, if that is more.
        """
        if not is_float(values.dtype) or not values.size:
            return 0.0
        return max(OF_LARGEST * float(np.max(np.abs(values))), OF_GAIN * self.gains.get(name, 0.0))

    def op(self, name: str, tensors: Values) -> None:
        """An op of the first iteration has ended (`scheduler.executor.Watch`)."""
        self.ops.append((name, tensors))

    def iteration(self, batch: Sequence[Values], total: float, losses: Sequence[Sequence[float]]) -> None:
        """An iteration has ended, with these losses of its mini-batches."""
        self.fed += batch
        self.totals.append(total)
        self.losses += losses

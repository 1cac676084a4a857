# SPDX-License-Identifier: Apache-2.0
"""What the simulator has found in the iterations an export is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainlib.ir.steps import Array

Values = Mapping[str, Array]


@dataclass(slots=True)
class Recorded:
    """Tensors by name: `kept` before the first iteration and `after` the last, `fed` per mini-batch in order.

    `ops` are the results of the ops of the first iteration, in the order they were carried out; `losses` those of
    every mini-batch, `varying` the numbers that follow a schedule, per iteration.
    """

    kept: Values = field(default_factory=dict)
    fed: list[Values] = field(default_factory=list)
    ops: list[tuple[str, Values]] = field(default_factory=list)
    losses: list[Sequence[float]] = field(default_factory=list)
    varying: list[Sequence[float]] = field(default_factory=list)
    after: Values = field(default_factory=dict)

    def op(self, name: str, tensors: Values) -> None:
        """An op of the first iteration has ended (`scheduler.executor.Watch`)."""
        self.ops.append((name, tensors))

    def iteration(self, batch: Sequence[Values], varying: Sequence[float], losses: Sequence[Sequence[float]]) -> None:
        """An iteration has ended."""
        self.fed += batch
        self.varying.append(varying)
        self.losses += losses

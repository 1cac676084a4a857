# SPDX-License-Identifier: Apache-2.0
"""Which schedules are exported: a covering set over model, tuning, buffering, batch and optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arch.spec.soc_config import FORMS

ROWS = (
    (0, 0, 0, 0),
    (1, 1, 1, 1),
    (0, 0, 1, 1),
    (1, 1, 0, 0),
    (0, 1, 0, 1),
    (1, 0, 1, 0),
    (0, 1, 1, 0),
    (1, 0, 0, 1),
)
"""Levels of tuned, double, batch 4 and Adam, in pairs that are each other's opposite.

Every model takes a pair, so it meets every level of every factor; four models in a row have all eight rows,
in which every two factors meet in all four ways.
"""

L3 = "16MiB"
"""What mobilenet-v1 takes with a batch of 4, and some."""

SANITIZERS = ("address", "undefined", "thread")


@dataclass(frozen=True, slots=True)
class Case:
    """One export: a model by name, or a training graph by file, and how it is planned.

    A tuned schedule has the buffering that was found; a graph says batch and update itself, and is not tuned.
    """

    model: str
    tuned: bool
    double: bool
    batch: int
    adam: bool
    sanitizers: tuple[str, ...]
    form: str

    @property
    def name(self) -> str:
        """Short, and another for every case."""
        short = Path(self.model).parent.name if self.is_graph else self.model
        words = [short, "tuned" if self.tuned else "double" if self.double else "single"]
        if not self.is_graph:
            words += [f"batch{self.batch}", "adam" if self.adam else "sgd"]
        return "-".join(words)

    @property
    def is_graph(self) -> bool:
        """Whether it is a training graph that somebody else made."""
        return self.model.endswith(".onnx")

    @property
    def options(self) -> list[str]:
        """Those of the command line but for a schedule."""
        batch = [] if self.is_graph else ["--batch", str(self.batch), "--l3", L3]
        buffering = [] if self.tuned else ["--buffering", "double" if self.double else "single"]
        return [*buffering, *batch, "--form", self.form]


def covering(models: Sequence[str]) -> list[Case]:
    """Two cases a model, one of each form; the first with one or two of the sanitizers."""
    cases = []
    for number, model in enumerate(models):
        for turn in (0, 1):
            tuned, double, many, adam = ROWS[(2 * number + turn) % len(ROWS)]
            some = (
                SANITIZERS[number % 3 :][:1]
                if turn
                else [*SANITIZERS[: number % 3], *SANITIZERS[number % 3 + 1 :]]
            )
            tuned = tuned and not model.endswith(".onnx")
            form, batch = FORMS[turn], 4 if many else 1
            cases.append(Case(model, bool(tuned), bool(double), batch, bool(adam), tuple(some), form))
    return cases

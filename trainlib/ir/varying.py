# SPDX-License-Identifier: Apache-2.0
"""Numbers of ops that are others in every iteration: learning rates and momenta under a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from trainlib.ir.graph import TrainingGraph

Rule = Callable[[int, Sequence[float]], float]
"""The value in an iteration (from 0), of which the losses of those before it are known."""


@dataclass(slots=True)
class Varying:
    """An attribute whose value is `now`, by `rule`; kernels and references read it when they compute.

    No time depends on it, so nothing is planned or priced again. To graphs and caches it is its `text`.
    """

    text: str
    rule: Rule = field(compare=False, repr=False)
    steps: int | None = field(default=None, compare=False, repr=False)
    """Iterations it is known of; None: all."""
    now: float = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Begin with the first iteration."""
        self.now = self.rule(0, ())


def varying_of(graphs: Iterable[TrainingGraph]) -> list[Varying]:
    """All numbers that vary, of the ops of these graphs and of what is planned from them."""
    updates = (op for graph in graphs for op in graph.ops if op.step == "UPD")
    return [value for op in updates for value in op.attributes.values() if isinstance(value, Varying)]


def begin_iteration(varying: Iterable[Varying], number: int, losses: Sequence[float]) -> None:
    """Let them have the values of iteration `number`."""
    for value in varying:
        value.now = value.rule(number, losses)

# SPDX-License-Identifier: Apache-2.0
"""Has training moved a tensor as far as its golden says? Judged by the update, not by the size of the tensor.

A weight of 1 that moves by 1e-4 is wrong by all of its update when it is wrong by 1e-4. Allowed is what fp32
takes each time the weight is stored, half an ulp there and half an ulp here, and `SHARE` of the update.

What is off by more may lie at a kink: where an input of a ReLU is a rounding away from 0, the sums of two
right implementations give it two gradients, and all weights in front of it move by some per cent. So the
references train again, `NUDGED` times, with all that ops read moved by an ulp: the machine and the golden
may each be as far from the references as these are.

An update that is not ten times what is allowed decides nothing: a learning rate that is a tenth too large
would pass. Such tensors are counted, neither right nor wrong. Some are nothing but rounding (a bias in front
of a batch norm), of sums with more of it than a nudge has; off by more than `SUMS` times that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from configs.values import Struct
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import Array
from trainlib.references.conditioning import nudges
from trainlib.references.reference import evaluate
from trainlib.training.phases import TrainingPhases

SHARE = 1e-5
"""Of the largest update of a tensor: what another order of sums makes of gradients."""

DECIDES = 0.1
"""Share of the update that the error and what is allowed must together stay below."""

SUMS = 16
"""Roundings of a sum of few terms, where a nudge is one: as the room of `trainlib.references.op_truth`
begins."""

RIGHT, WRONG, NOT_DECIDABLE = "right", "wrong", "not decidable"

Draw = Mapping[str, Array]
"""What one training by the references has made of every tensor: its update, or its first gradient."""


class GoldenUpdate(Struct, frozen=True):
    """A tensor before training, after it by its golden, and as found; `stored` is how often it was updated.

    Of a gradient `before` is zeros and `stored` 0. `found` is None for what the graph does not have.
    """

    name: str
    before: Array
    golden: Array
    found: Array | None
    stored: int

    @property
    def update(self) -> float:
        """How far the golden has moved at most."""
        return _largest(_difference(self.golden, self.before))

    @property
    def storage(self) -> Array:
        """What storing may have moved each element: half an ulp for both sides, each time."""
        size = np.maximum(np.abs(self.before), np.abs(self.golden)).astype(np.float32)
        return self.stored * np.spacing(size).astype(np.float64)

    @property
    def error(self) -> float:
        """Largest difference from the golden."""
        return np.inf if self.found is None else _largest(_difference(self.found, self.golden))

    def beyond_storage(self, difference: Array) -> float:
        """The largest difference that storing does not explain."""
        return _largest(np.maximum(np.abs(difference) - self.storage, 0))

    def judged(self, spread: float = 0.0) -> JudgedUpdate:
        """The verdict; `spread` is how far roundings move the update of this tensor."""
        allowed = SHARE * self.update + spread
        room = _largest(self.storage) + allowed
        off = np.inf if self.found is None else self.beyond_storage(_difference(self.found, self.golden))
        tenth = DECIDES * self.update
        if not off <= allowed * (SUMS if room > tenth else 1) < np.inf:
            verdict = WRONG
        else:
            verdict = RIGHT if off + room <= tenth else NOT_DECIDABLE
        return JudgedUpdate(self.name, verdict, self.error, self.update, room)


class JudgedUpdate(Struct, frozen=True):
    """The verdict on one tensor: its largest error, the largest update of its golden, and what is allowed."""

    name: str
    verdict: str
    error: float
    update: float
    room: float

    @property
    def share(self) -> float:
        """The error as a share of the update."""
        return self.error / self.update if self.update else 0.0 if not self.error else np.inf

    def __str__(self) -> str:
        return f"{self.name} is off by {self.error:.3g}, {self.share:.2g} of its update"


def judge_updates(updates: Sequence[GoldenUpdate], draws: Callable[[], Sequence[Draw]]) -> list[JudgedUpdate]:
    """Verdicts on all tensors; `draws` are trainings by the references, the first one not nudged.

    They are asked for if a tensor is off by more than its storage and `SHARE` of its update.
    """
    first = [item.judged() for item in updates]
    if not any(item.verdict == WRONG for item in first):
        return first
    base, *nudged = draws() or ({},)
    return [
        item.judged(2 * max(item.beyond_storage(draw[item.name] - base[item.name]) for draw in nudged))
        if nudged and item.name in base
        else judged
        for item, judged in zip(updates, first, strict=True)
    ]


def trained(
    phases: TrainingPhases,
    start: Mapping[str, Array],
    samples: Sequence[Mapping[str, Array]],
    seed: int | None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """What is kept after training by the references, and the gradients of the first mini-batch by weight.

    With a `seed` what ops read is moved by an ulp, up, down or not, but for what they update.
    """
    kept, mini = dict(start), phases.mini_batch
    generator = np.random.default_rng(seed) if seed is not None else None
    gradients: dict[str, Array] = {}
    for number, sample in enumerate(samples, start=1):
        values = _carried_out(mini, kept, sample, generator)
        if number == 1:
            gradients = {weight: values[name] for weight, name in mini.gradients.items()}
        if phases.update is not None and number % phases.mini_batches == 0:
            _carried_out(phases.update, kept, {}, generator)
    return kept, gradients


def _carried_out(
    graph: TrainingGraph,
    kept: dict[str, Array],
    sample: Mapping[str, Array],
    generator: np.random.Generator | None,
) -> dict[str, Array]:
    reading = () if generator is None else (nudges(graph, generator),)
    values = evaluate(graph, {**kept, **sample}, *reading)
    kept.update({name: values[after] for name, after in graph.updates.items()})
    return values


def _difference(left: Array, right: Array) -> Array:
    with np.errstate(invalid="ignore"):  # of infinities: no number
        apart: Array = left.astype(np.float64) - right.astype(np.float64)
    return apart


def _largest(array: Array) -> float:
    """Largest size of an element, infinite where one is no number."""
    return float(np.abs(array).max(initial=0.0)) if np.isfinite(array).all() else np.inf

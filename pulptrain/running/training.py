# SPDX-License-Identifier: Apache-2.0
"""Iteration after iteration on the simulated machine: which are checked, and when training ends early."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from configs.errors import NotFiniteError
from configs.values import Struct
from pulptrain.inputs.npz_file import LOSSES
from pulptrain.running.machine import Machine
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.numerics import rounded
from trainlib.ir.steps import Array
from trainlib.ir.varying import begin_iteration
from trainlib.references.verdicts import FAILED, Verdict

if TYPE_CHECKING:
    from deploy.project.recorded import Recorded
    from pulptrain.running.every_iteration import EveryIteration
    from pulptrain.running.number_check import NumberCheck
    from truth.samples import Fed

Progress = Callable[[int, int, float], None]
"""Called with (iterations done, iterations in all, loss of the last one)."""

ACCURACIES = 20
"""How often the accuracy is asked in a training run, about."""

STIR = 0.2
"""How far the values of the stirred iteration are at most from those a tensor starts with."""


class NotFinite(Struct, frozen=True):
    """The iteration (from 1) in which an op made an infinity or a NaN, and which op that was."""

    iteration: int
    error: NotFiniteError

    def as_dict(self) -> dict[str, Any]:
        """For the summary of a run."""
        error = self.error
        return {
            "iteration": self.iteration,
            "op": error.op,
            "tensor": error.tensor,
            "value": error.value,
            "dtype": error.dtype,
        }


class Training:
    """All iterations of one run; `kept` are weights, buffers and optimizer states at its start.

    `fed` says what the samples must be, if they are to be compared; all iterations are kept in `record`.
    `seed` draws one of the iterations that are followed.
    """

    def __init__(
        self,
        machine: Machine,
        mini_batches: int,
        samples: Iterator[Mapping[str, Array]],
        kept: Mapping[str, Array],
        fed: Fed | None = None,
        record: Recorded | None = None,
        seed: int = 0,
    ) -> None:
        self.machine = machine
        self.losses: list[float] = []
        """Mean loss of each iteration done; of several losses their sum."""
        self.terms: dict[str, list[float]] = {}
        """Mean of each loss of the network alone, by its tensor."""
        self.accuracies: dict[int, float] = {}
        """Share of test samples classified rightly, by the iteration after which it was asked."""
        self.not_finite: NotFinite | None = None
        self.check: NumberCheck | None = None
        self._accuracy: Callable[[], float] | None = None
        self._ask_every = self._last_asked = 0
        self._mini_batches = mini_batches
        self._samples = samples
        self._fed = fed
        self._record = record
        self._drawn = 0
        """Mini-batches taken from `samples`."""
        self._before: Mapping[str, Array] | None = dict(kept)
        """What the iteration under way began with; None if `_every` has it."""
        self._every: EveryIteration | None = None
        self._seed = seed
        self._varying = machine.varying
        machine.load_state(kept)
        if record is not None:
            record.kept = dict(kept)

    @property
    def wrong(self) -> bool:
        """Whether a tensor that was checked is wrong."""
        return self.check is not None and self.check.wrong

    def first(self, iterations: int, *, check: bool) -> None:
        """Simulate each program once in time; with `check` look at its numbers, then at stirred ones.

        `iterations` are those that will be carried out in all.

        Much starts at 0: biases, moments of an optimizer, the second matrix of an adapter. A term that is
        left out or added twice would not show, so the same iteration is computed once more, aside, with
        values in their place that are not 0.
        """
        if not check:
            self._carry_out([{}] * self._mini_batches, None, ())
            return
        from pulptrain.running.every_iteration import EveryIteration
        from pulptrain.running.number_check import FOLLOWED, NumberCheck

        kept = self._began_with
        self._followed = min(iterations, FOLLOWED)
        self._aside_numbers = {iterations, drawn_iteration(self._followed + 1, iterations, self._seed)}
        self.check = NumberCheck(kept, self.machine.programs, self._followed, self.machine.given)
        self._every = EveryIteration(self.machine, self.check)
        if self._fed is not None:
            for name, why in self._fed.started(kept).items():
                self.check.add(Verdict(name, FAILED, why=why))
        batch = self._batch()
        self._iterate(batch, self.check)
        graph = self.machine.mini.schedule.graph
        values = stirred_values(graph, kept)
        stirred = self.check.aside(values, "the iteration with changed data")
        self.check.take_over(self._again(batch, stirred, values))
        shaken = self.check.shaking(values) if self.not_finite is None else None
        if shaken is not None:
            self.check.take_over(self._again(batch, shaken, values))

    def go_on(self, iterations: int, progress: Progress | None) -> bool:
        """Replay until so many iterations are done; True if Ctrl-C ended it early."""
        assert self.check is not None
        try:
            while len(self.losses) < iterations and self.not_finite is None:
                number = len(self.losses) + 1
                batch, last = self._batch(), None
                check = self.check if number <= self._followed else None
                if check is None:
                    self._before = None
                    if number in self._aside_numbers:
                        self._before = self.machine.fetch_state()
                        check = last = self._aside(number)
                self._iterate(batch, check)
                if self.not_finite is not None and check is None:
                    came = tuple(self.losses[:-1])
                    last = self._again(batch, self._aside(number), self._began_with, came)
                if last is not None:
                    self.check.take_over(last)
                    self.check.iterations += 1
                    self.check.numbers.append(number)
                if progress is not None:
                    progress(len(self.losses), iterations, self.losses[-1])
        except KeyboardInterrupt:
            self._take_back()
            return True
        return False

    @property
    def _began_with(self) -> Mapping[str, Array]:
        """What the iteration under way, or the last one that has ended, began with."""
        if self._before is None and self._every is not None:
            self._before = self._every.started()
        return self._before or {}

    def _take_back(self) -> None:
        """Make the memories hold what the last iteration left that has ended: the one under way has not."""
        assert self._every is not None
        self.machine.record(None)
        self.machine.program_ended = None
        for phase in self.machine.phases:
            phase.executor.watch = None
        for figures in (self.losses, *self.terms.values()):
            del figures[len(self._every.losses) :]
        self._before = self._every.started()
        self.machine.load_state(self._before)
        self._carry_out(self._every.batch, None, tuple(self.losses[:-1]))

    def _aside(self, number: int) -> NumberCheck:
        """A check of an iteration that is not among the first, from what the machine has before it."""
        assert self.check is not None
        return self.check.aside(self._began_with, f"iteration {number}")

    def ask_accuracy(self, accuracy: Callable[[], float], iterations: int) -> None:
        """Ask for the accuracy at some iterations of so many, the last among them."""
        self._accuracy = accuracy
        self._ask_every = max(1, iterations // ACCURACIES)
        self._last_asked = iterations

    def ask_at_the_end(self) -> None:
        """Ask for the accuracy after the last iteration, if it ended before its time."""
        if self._accuracy is not None and len(self.losses) not in self.accuracies:
            self.accuracies[len(self.losses)] = self._accuracy()

    def _after(self) -> None:
        number = len(self.losses)
        if self._accuracy is not None and (number % self._ask_every == 0 or number == self._last_asked):
            self.accuracies[number] = self._accuracy()

    def values(self) -> dict[str, Array]:
        """Tensors after the last iteration and, under ``before/``, at its start; ``results/`` are its own.

        Results are the gradients, the output and the loss of the last mini-batch, ``results/losses`` the mean
        loss of every iteration.
        """
        executor, graph = self.machine.mini.executor, self.machine.mini.schedule.graph
        return {
            **self.machine.fetch_state(),
            **{f"before/{name}": array for name, array in self._began_with.items()},
            **{f"results/{name}": executor.fetch(name) for name in graph.results},
            LOSSES: np.array(self.losses),
        }

    def check_summary(self, summary: Mapping[str, Any], values: Mapping[str, Array]) -> None:
        """Hold what a run is about to print and save against the memories, as `EveryIteration` does."""
        if self._every is not None:
            self._every.check_summary(summary, values)

    def _batch(self) -> list[Mapping[str, Array]]:
        self._drawn += self._mini_batches
        return [next(self._samples) for _ in range(self._mini_batches)]

    def _iterate(self, batch: list[Mapping[str, Array]], check: NumberCheck | None) -> None:
        if check is not None and check is self.check:
            self._before = {name: check.memory[name] for name in self._began_with}
            check.numbers.append(len(self.losses) + 1)
        record = self._record
        self.machine.record(record.watch(len(self.losses)) if record is not None else None)
        if self._every is not None:
            self._every.begin(batch)
            self.machine.program_ended = self._every.program_ended
        losses = self._carry_out(batch, check, tuple(self.losses))
        self.machine.program_ended = None
        self.machine.record(None)
        self.losses.append(float(np.mean([sum(terms) for terms in losses])))
        if record is not None:
            record.iteration(batch, self.losses[-1], losses, self.machine.fetch_state)
        names = self.machine.mini.schedule.graph.losses
        for name, values in zip(names, zip(*losses, strict=True), strict=True):
            self.terms.setdefault(name, []).append(float(np.mean(values)))
        if self._every is not None and self.check is not None:
            self._every.end(self.losses[-1], followed=check is not None)
            self._compare_samples(batch, self.check)
        if check is not None and record is not None:
            record.verdicts = dict(check.verdicts)
        self._after()
        if self.machine.not_finite is not None:
            self.not_finite = NotFinite(len(self.losses), self.machine.not_finite)

    def _carry_out(
        self, batch: Sequence[Mapping[str, Array]], check: NumberCheck | None, losses: Sequence[float]
    ) -> list[list[float]]:
        """The iteration that comes after these losses, with what schedules say of it."""
        begin_iteration(self._varying, len(losses), losses)
        if check is not None:
            check.losses = losses
        return self.machine.iterate(batch, check)

    def _compare_samples(self, batch: list[Mapping[str, Array]], check: NumberCheck) -> None:
        """Were these the samples, labels and masks of these mini-batches?"""
        if self._fed is None or not check.output_shapes:
            return
        for number, given in enumerate(batch, start=self._drawn - len(batch)):
            for name, why in self._fed.differences(number, given, check.output_shapes).items():
                check.add(Verdict(name, FAILED, why=why))

    def _again(
        self,
        batch: list[Mapping[str, Array]],
        check: NumberCheck,
        values: Mapping[str, Array],
        losses: Sequence[float] = (),
    ) -> NumberCheck:
        """An iteration aside, of a batch that there was, followed: was it the machine or the mathematics?"""
        with self.machine.set_aside():
            self.machine.load_state(values)
            self._carry_out(batch, check, losses)
        return check


def drawn_iteration(first: int, last: int, seed: int) -> int:
    """One of the iterations from `first` to the one before `last`, by the seed; `last` if there is none."""
    if first >= last:
        return last
    return int(np.random.default_rng([seed, zlib.crc32(b"followed")]).integers(first, last))


def stirred_values(graph: TrainingGraph, kept: Mapping[str, Array]) -> dict[str, Array]:
    """Kept tensors, those that are the same number throughout (0, mostly) moved by up to `STIR`.

    States of an optimizer only move upwards, and by half of that at least: a second moment has no root below
    0, and is not less than the square of a first one.
    """
    result = dict(kept)
    for name, array in kept.items():
        tensor = graph.tensors[name]
        if tensor.dtype.is_float and array.size and (array == array.flat[0]).all():
            low = STIR / 2 if tensor.kind == "optimizer_state" else -STIR
            generator = np.random.default_rng(zlib.crc32(name.encode()))
            moved = array.astype(np.float32) + generator.uniform(low, STIR, array.shape)
            result[name] = rounded(moved.astype(np.float32), tensor.dtype)
    return result

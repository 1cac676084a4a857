# SPDX-License-Identifier: Apache-2.0
"""What every iteration of a run is held to, whether its numbers are followed or not.

The bytes of weights, buffers and optimizer states are read where the memory plan has them, before and after
each iteration, beside the calls by which a run fetches its results. Nothing may change between iterations,
nor what an iteration does not write; each op happens once; what the ops of the losses left is the loss that
is told. A trained tensor that an iteration leaves as it was is judged by the reference of its update. That
other numbers than those of another iteration were computed only a followed iteration can tell
(`pulptrain.running.number_check`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pulptrain.inputs.npz_file import LOSSES
from pulptrain.running.summary import finite_or_none
from trainlib.ir.graph import FED_KINDS, GIVEN_KINDS, KEPT_KINDS, TrainingGraph
from trainlib.ir.steps import Array
from trainlib.references.verdicts import FAILED, Verdict

if TYPE_CHECKING:
    from pulptrain.running.machine import Machine
    from pulptrain.running.number_check import NumberCheck
    from scheduler.executor import Executor

Batch = Sequence[Mapping[str, Array]]
"""The samples of each mini-batch of an iteration."""


class EveryIteration:
    """Watches the iterations of `machine`; what is wrong becomes a verdict of `check`."""

    def __init__(self, machine: Machine, check: NumberCheck) -> None:
        self._machine, self._check = machine, check
        executor, graph = machine.mini.executor, machine.mini.schedule.graph
        self._names = graph.of_kind(*KEPT_KINDS)
        self._views = [executor.bytes_of(name) for name in self._names]
        self._due = [[(op.name, len(op.outputs)) for op in program.ops] for program in machine.programs]
        self._updates = {
            name: (phase.executor, op)
            for phase in machine.phases
            for name, updated in phase.schedule.graph.updates.items()
            for op in phase.schedule.graph.ops
            if op.step == "UPD" and updated in op.outputs
        }
        self.losses: list[float] = []
        """Mean loss of each iteration, as the ops of the losses left it; of several losses their sum."""
        self._terms: list[list[float]] = []
        self._fed = {
            name: (executor.bytes_of(name), graph.tensors[name].dtype) for name in graph.of_kind(*FED_KINDS)
        }
        self.batch: Batch = ()
        """That of the last iteration that has ended."""
        self._start: list[bytes] = []
        self._end: list[bytes] = []
        self._began: list[bytes] = []
        self._under_way: Batch = ()
        self._programs = 0
        self._left: list[list[float]] = []
        self._kept: dict[str, bytes] = {}
        """What the ops of the iteration under way have left of what lives on."""

    def begin(self, batch: Batch) -> None:
        """An iteration is about to begin: nothing has changed since the one before it ended."""
        self._began = self._bytes()
        if self._end and self._began != self._end:
            self._accuse(
                self._end, self._began, "differs at the start of {} from the end of the previous iteration"
            )
        self._programs, self._left, self._kept, self._under_way = 0, [], {}, batch

    def program_ended(self, executor: Executor) -> None:
        """A program has run: each of its ops has ended once, and said of all its results where they are."""
        due = self._due[self._programs] if self._programs < len(self._due) else []
        self._programs += 1
        if executor.ended != due:
            (name, *_) = [
                item[0]
                for item in [*due, *executor.ended]
                if executor.ended.count(item) != 1 or item not in due
            ]
            self._add(name, f"the op ran never or several times in {self._iteration}")
        self._kept |= executor.written
        if executor.schedule is not self._machine.mini.schedule:
            return
        self._left.append(executor.losses)
        sample = self._under_way[len(self._left) - 1]
        for name, (view, dtype) in self._fed.items():
            if name in sample and view.tobytes() != sample[name].astype(dtype).tobytes():
                self._add(name, f"differs in the memory in {self._iteration} from the input of the machine")

    def end(self, loss: float, *, followed: bool) -> None:
        """The iteration has ended with this mean `loss`; one that is `followed` is judged elsewhere."""
        now, names = self._bytes(), self._names
        for name, before, after in zip(names, self._began, now, strict=True):
            if before == after and not followed and name in self._updates:
                self._judge(name)
            if after != self._kept.get(name, before):
                self._add(name, f"differs at the end of {self._iteration} from the result of its op")
        own = float(np.mean([sum(terms) for terms in self._left]))
        if own != loss and not (math.isnan(own) and math.isnan(loss)):
            self._add(
                self._loss, f"is reported as {loss:.9g} of {self._iteration}; its ops computed {own:.9g}"
            )
        self._terms.append([float(np.mean(terms)) for terms in zip(*self._left, strict=True)])
        self._start, self._end, self.batch = self._began, now, self._under_way
        self.losses.append(own)

    def started(self) -> dict[str, Array]:
        """The tensors the last iteration that has ended began with."""
        tensors = self._machine.mini.schedule.graph.tensors
        return {
            name: np.frombuffer(held, np.uint8).view(tensors[name].dtype).reshape(tensors[name].shape)
            for name, held in zip(self._names, self._start, strict=True)
        }

    def check_summary(self, summary: Mapping[str, Any], values: Mapping[str, Array]) -> None:
        """Hold what a run is about to print and save against what its iterations left in the memories."""
        for what, figure, own in self._figures(summary):
            if figure != own:
                self._add(self._loss, f"is reported as {figure} ({what}); the loss ops computed {own}")
        executor, results = self._machine.mini.executor, self._machine.mini.schedule.graph.results
        held = {
            **dict(zip(self._names, self._bytes(), strict=True)),
            **{f"before/{name}": part for name, part in zip(self._names, self._start, strict=True)},
            **{f"results/{name}": executor.bytes_of(name).tobytes() for name in results},
            LOSSES: np.array(self.losses).tobytes(),
        }
        for name in held.keys() | values.keys():
            if name not in values or np.ascontiguousarray(values[name]).tobytes() != held.get(name):
                self._add(
                    name.partition("/")[2] or name,
                    f"would be saved as '{name}', but differs from the memories",
                )

    def _figures(self, summary: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
        """(what, as it is told, as the ops left it) of every loss in a summary."""
        yield "loss", summary["loss"], finite_or_none(self.losses[0]) if self._loss else None
        training = summary.get("training")
        if training is not None:
            window = training["mean_window"]
            for what, own in {
                "first_loss": self.losses[0],
                "last_loss": self.losses[-1],
                "mean_loss_first": float(np.mean(self.losses[:window])),
                "mean_loss_last": float(np.mean(self.losses[-window:])),
            }.items():
                yield what, training[what], finite_or_none(own)
        for number, (name, terms) in enumerate(summary.get("loss_terms", {}).items()):
            yield name, list(terms), [finite_or_none(each[number]) for each in self._terms]

    def _bytes(self) -> list[bytes]:
        return [view.tobytes() for view in self._views]

    @property
    def _iteration(self) -> str:
        return f"iteration {len(self.losses) + 1}"

    @property
    def _loss(self) -> str:
        return next(iter(self._machine.mini.schedule.graph.losses), "")

    def _accuse(self, before: list[bytes], after: list[bytes], why: str) -> None:
        for name, old, new in zip(self._names, before, after, strict=True):
            if old != new:
                self._add(name, why.format(self._iteration))

    def _add(self, name: str, why: str) -> None:
        self._check.add(Verdict(name, FAILED, error=1.0, why=why))

    def _judge(self, name: str) -> None:
        """Judge the update of a tensor that is as it was before, if what it was made from is still there."""
        executor, op = self._updates[name]
        graph = executor.schedule.graph
        before = dict(zip(self._names, self._began, strict=True))
        own = {graph.storage_of(output) for output in op.outputs}
        values: dict[str, Array] = {}
        for read in op.inputs:
            tensor, storage = graph.tensors[read], graph.storage_of(read)
            if storage in own:
                values[read] = (
                    np.frombuffer(before[storage], np.uint8).view(tensor.dtype).reshape(tensor.shape)
                )
            elif _stays(graph, read):
                values[read] = executor.fetch(read)
            else:
                return
        self._check.judge_op(executor, op, values, {output: executor.fetch(output) for output in op.outputs})


def _stays(graph: TrainingGraph, name: str) -> bool:
    """Whether a tensor can be read after the iteration."""
    return graph.tensors[name].kind in GIVEN_KINDS or (name in graph.results and name not in graph.fleeting)

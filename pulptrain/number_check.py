"""Are the numbers of the simulated SoC right: each of an update against PyTorch, or an untiled evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pulptrain.summary import functional_summary, refuse_wrong_numbers
from scheduler.executor import Executor
from trainlib import oracle_torch, reference
from trainlib.graph import TrainingGraph
from trainlib.reference import Difference, graph_tolerance
from trainlib.steps import Array

MAX_KINKS = 8
"""Elements next to a kink that are tried on its other side."""


def _size(error: Difference) -> float:
    return error.max_rel_error


@dataclass(frozen=True, slots=True)
class _Case:
    """One program that was checked: what it was given, the truth, and the tensors compared, ours too."""

    graph: TrainingGraph
    values: Mapping[str, Array]
    truth: Mapping[str, Array]
    names: Sequence[str]
    ours: Mapping[str, Array]

    def own_rounding(self) -> float:
        """How much the network magnifies rounding."""
        return oracle_torch.own_rounding(self.graph, self.values, self.truth, self.names)

    def errors(self, truth: Mapping[str, Array]) -> dict[str, Difference]:
        """Ours against a truth."""
        scales = reference.gradient_scales(self.graph, truth)
        return reference.compare(self.ours, truth, self.names, scales)

    def across_kinks(self, tolerance: float) -> tuple[int, dict[str, Difference]]:
        """(elements moved across 0, errors then): the truth with each near element where it fits ours better.

        Elements are moved only as far as rounding could have moved them (`oracle_torch.near_kinks`).
        """
        best, moved, count = self.errors(self.truth), dict[str, Array](), 0
        for name, across in oracle_torch.near_kinks(self.graph, self.values, self.truth)[:MAX_KINKS]:
            if max(map(_size, best.values())) <= tolerance:
                break
            trial = {**moved, name: moved.get(name, 0) + across}
            found = self.errors(oracle_torch.evaluate_torch(self.graph, self.values, moved=trial))
            if sum(map(_size, found.values())) < sum(map(_size, best.values())):
                best, moved, count = found, trial, count + 1
        return count, best


class NumberCheck:
    """Follows one update in exact numbers and compares what the simulated SoC has with them.

    `kept` are the values of all kept tensors at the start. Without PyTorch the truth is the untiled NumPy
    evaluation.
    """

    def __init__(self, kept: Mapping[str, Array]) -> None:
        self.torch = oracle_torch.torch_available()
        self.kept = dict(kept)
        self.errors: dict[str, Difference] = {}
        self.tolerance = 0.0
        self.name = ""
        self._sums: dict[str, Array] = {}
        self._mini_batches = 0
        self._cases: list[_Case] = []

    def mini_batch(self, graph: TrainingGraph, sample: Mapping[str, Array], executor: Executor) -> None:
        """Check output, loss, gradients and updated tensors of the mini-batch the executor has just run."""
        truth = self._check(graph, {**self.kept, **sample}, executor, graph.results)
        self._mini_batches += 1
        for name in graph.gradients.values():
            self._sums[name] = self._sums.get(name, 0) + truth[name].astype(np.float64)
        self.kept |= {kept: truth[new] for kept, new in graph.updates.items() if new in truth}

    def update(self, graph: TrainingGraph, totals: Mapping[str, str], executor: Executor) -> None:
        """Check the update on the mean of the exact gradients.

        `totals` maps the tensors the update is given to the gradients they are the mean of.
        """
        means = {name: self._sums[gradient] / self._mini_batches for name, gradient in totals.items()}
        self._check(graph, {**self.kept, **means}, executor, ())

    def _check(
        self, graph: TrainingGraph, values: dict[str, Array], executor: Executor, results: Sequence[str]
    ) -> dict[str, Array]:
        truth = self._evaluate(graph, values)
        names = [*results, *(name for name in graph.updates.values() if name in truth)]
        names = [name for name in names if name in truth]
        self.name = self.name or graph.name
        self.tolerance = max(self.tolerance, graph_tolerance(graph, executor.schedule.options.accumulation))
        case = _Case(graph, values, truth, names, {name: executor.fetch(name) for name in names})
        for name, error in case.errors(truth).items():
            known = self.errors.get(name)
            if known is None or not error.max_rel_error <= known.max_rel_error:
                self.errors[name] = error
        self._cases.append(case)
        return truth

    def _evaluate(self, graph: TrainingGraph, values: dict[str, Array]) -> dict[str, Array]:
        if self.torch:
            return oracle_torch.evaluate_torch(graph, values)
        return reference.evaluate(graph, values)

    def summary(self) -> dict[str, Any]:
        """The entry ``functional`` of a run. Raises `PulptrainError` for a difference that is no rounding.

        Where the tolerance is not kept, the rounding error of PyTorch itself, float32 against float64, says
        whether the network is one that magnifies rounding (batch norms over few elements do). If that is not
        enough, an input of a ReLU may have been rounded across 0: `kinks_crossed` says how many were.
        """
        truth = "PyTorch" if self.torch else "untiled NumPy (PyTorch is not installed)"
        result = functional_summary(truth, self.errors, self.tolerance)
        if not result["passed"] and self.torch:
            magnified = max(case.own_rounding() for case in self._cases)
            self.tolerance = max(self.tolerance, oracle_torch.ROUNDING_MARGIN * magnified)
            result = functional_summary(truth, self.errors, self.tolerance)
        if not result["passed"] and self.torch:
            crossings = [case.across_kinks(self.tolerance) for case in self._cases]
            self.errors = {
                name: max((errors[name] for _, errors in crossings if name in errors), key=_size)
                for name in self.errors
            }
            result = functional_summary(truth, self.errors, self.tolerance)
            result["kinks_crossed"] = sum(count for count, _ in crossings)
        refuse_wrong_numbers(result, self.name)
        return result

# SPDX-License-Identifier: Apache-2.0
"""Are the numbers of the simulated SoC right: every tensor of an iteration, op by op, and the mathematics.

Two questions are asked, and both can be answered sharply:

1. Did the machine compute what each op is? Every tensor an op has left in the simulated memory is compared
   with the op's untiled float64 reference on the very numbers the op was given, rounded once as it is stored
   (`trainlib.references.op_truth`, `trainlib.references.verdicts`). What an iteration begins with is
   remembered here, not fetched from the machine, so a state that is lost or kept too long shows. Which
   programs an iteration is and which ops each of them has is known before it runs: an op that does not
   happen, or happens twice, is wrong.
2. Are these ops the training of the model as it was given? PyTorch computes its iteration by autograd and
   `torch.optim` in float64, from a reading of the model of its own (`truth`), going on from the machine's
   numbers at every tensor it knows, and must find what the references find; its weights and optimizer states
   are its own over all iterations that are followed.

Since each tensor is judged by what it was made from, no error is magnified by what comes after, no input lies
on another side of a kink for the truth than for the machine, and roundings to formats narrower than fp32 are
those that happened.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from configs.dtypes import FP32, DType, dtype_of, float_of, is_narrow
from configs.values import replace
from pulptrain.running.confirmation import Confirmation, OwnUpdates
from scheduler.executor import Executor
from scheduler.planned import Schedule
from scheduler.roundings import roundings_behind
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.numerics import rounded, widened
from trainlib.ir.steps import Array
from trainlib.references.op_truth import FEW_NUDGES, MANY_NUDGES, OpTruth, room
from trainlib.references.reference import complete, overwritten, views_of
from trainlib.references.verdicts import (
    FAILED,
    NOT_DECIDABLE,
    PASSED,
    WITHOUT_TRUTH,
    Judgement,
    Verdict,
    judged_copy,
    judged_numbers,
    leans,
    together,
)
from trainlib.registry import step_of
from truth.source import DisagreementError, Given, torch_available

FOLLOWED = 3
"""Iterations that are followed from the start; of more, the last one is checked as well."""

SURE = 0.5
"""Share of its tolerance up to which a tensor is judged by few nudges.

Of a million elements some gains seem a hundred times too small by chance; many nudges say how close it is.
"""

WITH_TORCH = "PyTorch"


class NumberCheck:
    """Verdicts on the tensors of some iterations; `kept` is what the first one begins with.

    `programs` are the graphs of one iteration in their order, a mini-batch as often as it is carried out:
    their ops are those that must happen. `iterations` of them are followed, one after the other; then nothing
    is remembered but the verdicts. `given` is the model that is trained, None of a graph that has a backward
    pass of its own.
    """

    def __init__(
        self,
        kept: Mapping[str, Array],
        programs: Sequence[TrainingGraph],
        iterations: int = FOLLOWED,
        given: Given | None = None,
    ) -> None:
        self.truth = _truth_of(given, programs)
        """What is asked."""
        self.given = given
        self.output_shapes: tuple[tuple[int, ...], ...] = ()
        """Those of the outputs the losses are of, as PyTorch finds them."""
        self.verdicts: dict[str, Verdict] = {}
        self.losses: Sequence[float] = ()
        """Those of all iterations before the one under way: schedules count them."""
        self.iterations = 0
        self.numbers: list[int] = []
        """Those that have been followed, from 1."""
        self.skipped: list[str] = []
        """What is not compared with anything beyond the references, and why."""
        self._programs = tuple(programs)
        self._carried_out = 0
        """Programs of the iteration under way that have been followed."""
        self._aside = ""
        self.only: frozenset[str] = frozenset()
        """Ops that are judged, without PyTorch; all and with it if there are none."""
        self.shaken: frozenset[str] = frozenset()
        """Storages of what these ops read, changed when the op that writes it ends."""
        self._followed = iterations
        self._roundings: dict[tuple[int, str], int] = {}
        self.begin(kept)

    def begin(self, kept: Mapping[str, Array]) -> None:
        """Follow an iteration that begins with these values, whatever came before them."""
        self.memory = dict(kept)
        self._updates: OwnUpdates | None = OwnUpdates() if self.truth == WITH_TORCH else None

    def aside(self, kept: Mapping[str, Array], name: str) -> NumberCheck:
        """A check of an iteration of the same programs that begins anywhere; its verdicts are its own.

        `name` is what the iteration is called where one of its ops is wrong.
        """
        other = NumberCheck(kept, self._programs, 1, self.given)
        other._roundings = self._roundings
        other._aside = name
        return other

    def shaking(self, kept: Mapping[str, Array]) -> NumberCheck | None:
        """A check of an iteration in which what undecided ops read is multiplied by random factors.

        The terms of a sum that cancel, as those behind two batch norms do, then cancel no more. None if all
        is decided, or reads only what the iteration begins with.
        """
        open_ = {name for name, item in self.verdicts.items() if item.verdict == NOT_DECIDABLE}
        ops = [
            (graph, op) for graph in self._programs for op in graph.ops if not open_.isdisjoint(op.outputs)
        ]
        read, written = (
            {graph.storage_of(name) for graph, op in ops for name in names(op)}
            for names in (attrgetter("inputs"), attrgetter("outputs"))
        )
        other = self.aside(kept, "the iteration with changed inputs")
        other.only, other.shaken = frozenset(op.name for _, op in ops), frozenset(read - written)
        return other if other.shaken else None

    @property
    def iteration(self) -> str:
        """What the iteration under way is called."""
        return self._aside or f"iteration {self.iterations + 1}"

    def ended(self) -> None:
        """An iteration has ended: a program of it that was not carried out is wrong in all its tensors."""
        for program in self._programs[self._carried_out :]:
            for op in program.ops:
                self._accuse(op.outputs, f"{op.name} did not run in {self.iteration}")
        self._carried_out = 0
        self.iterations += 1
        if self.iterations >= self._followed:
            self.memory.clear()
            self._updates = None

    @property
    def wrong(self) -> bool:
        """Whether a tensor failed."""
        return any(verdict.verdict == FAILED for verdict in self.verdicts.values())

    def take_over(self, other: NumberCheck) -> None:
        """Remember the verdicts of another check as well."""
        for verdict in other.verdicts.values():
            self.add(verdict)

    def followed(self, executor: Executor, graph: TrainingGraph, given: Mapping[str, Array]) -> Follower:
        """Watches one program that is about to run on the values of `given` and on what is remembered."""
        self._carried_out += 1
        return Follower(self, executor, graph, {**self.memory, **given}).watch()

    def judge_op(
        self, executor: Executor, op: Op, values: Mapping[str, Array], left: Mapping[str, Array]
    ) -> None:
        """Judge what one op made of `values`, of an iteration that is not followed."""
        Follower(self, executor, executor.schedule.graph, values).judge_op(op, left, values, None)

    def account(self, reports: Mapping[str, Sequence[Mapping[str, Array]]]) -> bool:
        """Whether each op of the program followed last has reported once, and just what it writes.

        `reports` are the tensors an op has left, each time it has ended. Whatever else is a verdict `failed`
        that names the op.
        """
        number = self._carried_out - 1
        program = self._programs[number] if number < len(self._programs) else None
        due = {op.name: op for op in program.ops} if program is not None else {}
        fine = True
        for name in (*due, *(name for name in reports if name not in due)):
            op = due.get(name)
            for tensors, why in _unaccounted(op, program, reports.get(name, ())):
                fine = False
                self._accuse(tensors or (name,), f"{name} {why} in {self.iteration}")
        return fine

    def _accuse(self, tensors: Iterable[str], why: str) -> None:
        for name in tensors:
            self.add(Verdict(name, FAILED, error=1.0, why=why))

    def add(self, verdict: Verdict) -> None:
        """Remember a verdict, together with what is known of the tensor."""
        before = self.verdicts.get(verdict.name)
        self.verdicts[verdict.name] = verdict if before is None else together(before, verdict)

    def roundings(self, schedule: Schedule, op: Op) -> int:
        """Roundings to narrow formats behind a result of an op, at most; 1 where none is on the way."""
        if not any(schedule.graph.tensors[name].dtype.is_narrow for name in op.outputs):
            return 1
        key = id(schedule), op.name
        if key not in self._roundings:
            (tiling,) = (item.tiling for item in schedule.ops if item.op.name == op.name)
            self._roundings[key] = roundings_behind(tiling)
        return self._roundings[key]

    def confirmation(
        self, graph: TrainingGraph, values: Mapping[str, Array], seen: Mapping[str, Array]
    ) -> Confirmation | None:
        """Question 2 about a program that was given `values` and has left `seen`; None if it is not asked."""
        if self.truth != WITH_TORCH or self.given is None:
            return None
        if self._updates is not None:
            self._updates.keep = self.iterations + 1 < self._followed
        try:
            made = Confirmation(self.given, graph, values, seen, self._updates, self.add, self.losses)
        except DisagreementError as error:
            self.add(Verdict(error.tensor, FAILED, why=error.why))
            return None
        self.output_shapes = made.output_shapes or self.output_shapes
        return made

    def summary(self) -> dict[str, Any]:
        """The entry ``functional`` of a run."""
        found = functional_summary(self.truth, self.verdicts.values(), self.iterations, self.skipped)
        return {**found, "iterations_followed": list(self.numbers)}


def _unaccounted(
    op: Op | None, program: TrainingGraph | None, reports: Sequence[Mapping[str, Array]]
) -> Iterator[tuple[Sequence[str], str]]:
    """(tensors, what is wrong) of what one op has reported in one program; `op` None of an unknown one."""
    if op is None or program is None:
        for report in reports:
            yield tuple(report), "ran, but is not an op of the program"
        return
    if len(reports) != 1:
        yield op.outputs, f"ran {len(reports)} times" if reports else "did not run"
    for report in reports:
        for name in op.outputs:
            tensor = program.tensors[name]
            if name not in report:
                yield (name,), "reported no result for it"
            elif (report[name].shape, str(report[name].dtype)) != (tensor.shape, tensor.dtype):
                left = report[name]
                yield (name,), f"wrote {left.dtype} {left.shape}, not {tensor.dtype} {tensor.shape},"
        others = tuple(name for name in report if name not in op.outputs)
        if others:
            yield others, "reported a tensor that it does not write"


def _truth_of(given: Given | None, programs: Iterable[TrainingGraph]) -> str:
    why = _without_torch(given)
    if not why:
        return WITH_TORCH
    shared = any(step_of(op).formula for program in programs for op in program.ops)
    return f"untiled NumPy ({why}{': tiling checked, formulas not' if shared else ''})"


def _without_torch(given: Given | None) -> str:
    """Why PyTorch is not asked, if there is a reason."""
    if given is None:
        return "the backward pass of a training graph"
    if not torch_available():
        return "PyTorch is not installed"
    from truth.network import unknown

    missing = unknown(given)
    return f"the PyTorch reference has no {' and no '.join(missing)}" if missing else ""


class Follower:
    """Collects what the ops of one program leave, and judges it when the program has ended."""

    def __init__(
        self, check: NumberCheck, executor: Executor, graph: TrainingGraph, values: Mapping[str, Array]
    ) -> None:
        self._check = check
        self._executor = executor
        self._graph = graph
        self._values = {name: values[name] for name in graph.needed_values if name in values}
        self._reports: dict[str, list[Mapping[str, Array]]] = {}

    def watch(self) -> Follower:
        """Be told by the executor from now on."""
        self._executor.watch = self._op_ended
        self._executor.change = self._shake if self._check.shaken else None
        return self

    def _shake(self, name: str, array: Array) -> None:
        dtype = self._graph.tensors[name].dtype
        if dtype.is_float and self._graph.storage_of(name) in self._check.shaken:
            factors = np.random.default_rng(zlib.crc32(name.encode())).uniform(0.5, 1, array.shape)
            array[...] = rounded(widened(array) * factors, dtype)

    def _op_ended(self, op: str, tensors: Mapping[str, Array]) -> None:
        self._reports.setdefault(op, []).append(tensors)

    @property
    def left(self) -> dict[str, Array]:
        """What all ops together have left."""
        return {name: array for op in self._graph.ops for name, array in self._left_by(op).items()}

    def _left_by(self, op: Op) -> dict[str, Array]:
        """What an op has left of the tensors it writes, of several times the last."""
        reported: dict[str, Array] = {}
        for report in self._reports.get(op.name, ()):
            reported |= report
        tensors = self._graph.tensors
        return {
            name: reported[name]
            for name in op.outputs
            if name in reported and reported[name].shape == tensors[name].shape
        }

    def judge(self, *, confirm: bool = True) -> None:
        """Judge every tensor the ops have left and what the memories hold at the end of the program.

        With `confirm` PyTorch is asked as well, if all ops have happened.
        """
        self._executor.watch = self._executor.change = None
        graph, check = self._graph, self._check
        confirm &= check.account(self._reports) and not check.only
        confirmation = check.confirmation(graph, self._values, self.left) if confirm else None
        values = dict(self._values)
        views = views_of(graph)
        complete(views, values)
        for op in graph.ops:
            left = self._left_by(op)
            if not check.only or op.name in check.only:
                self.judge_op(op, left, values, confirmation)
            values |= {**left, **overwritten(graph, left)}
            complete(views, values)
        self._judge_end(values)

    def judge_op(
        self,
        op: Op,
        left: Mapping[str, Array],
        values: Mapping[str, Array],
        confirmation: Confirmation | None,
    ) -> None:
        """Judge the results of one op on what is known, and let PyTorch confirm its reference."""
        unknown = [name for name in op.inputs if name not in values]
        if unknown:
            for name in left:
                why = f"{op.name} reads '{unknown[0]}', which no op computed"
                self._check.add(Verdict(name, WITHOUT_TRUTH, why=why))
            return
        truth = OpTruth(op, self._graph.tensors, values)
        for name in left:
            if name not in truth.names:
                self._check.add(Verdict(name, WITHOUT_TRUTH, why=f"{op.name} has no reference for it"))
        self._judge_results(truth, {name: left[name] for name in truth.names if name in left})
        if confirmation is not None:
            confirmation.add(op, truth)

    def _judge_results(self, truth: OpTruth, left: Mapping[str, Array]) -> None:
        """Verdicts on the results of one op."""
        verdicts = self._verdicts(truth, left, FEW_NUDGES)
        if not all(verdict.verdict == PASSED and verdict.ratio <= SURE for verdict in verdicts):
            # Many nudges never narrow the room: what passed stays passed, if only nearer to not decidable.
            again = self._verdicts(truth, left, MANY_NUDGES)
            verdicts = [
                first if first.verdict == PASSED and second.verdict == NOT_DECIDABLE else second
                for first, second in zip(verdicts, again, strict=True)
            ]
        for verdict in verdicts:
            self._check.add(self._final(verdict, truth, left[verdict.name]))

    def _verdicts(self, truth: OpTruth, left: Mapping[str, Array], nudges: int) -> list[Verdict]:
        """Verdicts on what one op has left, gains from so many nudges."""
        roundings = self._check.roundings(self._executor.schedule, truth.op)
        kernel = self._executor.schedule.options.accumulation == "kernel"
        numbers: dict[str, Verdict] = {}
        judgements: dict[str, Judgement] = {}
        pending = True
        while pending:
            for part in truth.parts(nudges):
                ours, name = left.get(part.name), part.name
                if ours is None:
                    continue
                if part.gain is None:
                    numbers[name] = judged_numbers(name, ours, part.value)
                    continue
                if name not in judgements:
                    judgements[name] = Judgement(name, ours.shape, ours.dtype, _summed_as(ours, kernel))
                if judgements[name].open:
                    far = room(truth, part, dtype_of(ours.dtype), roundings, kernel)
                    first = part.where.start
                    judgements[name].add(ours.reshape(-1)[part.where], part.value, far, part.gain, first)
            for item in judgements.values():
                item.end()
            pending = any(item.open for item in judgements.values())
        return [numbers[name] if name in numbers else judgements[name].verdict() for name in left]

    def _final(self, verdict: Verdict, truth: OpTruth, ours: Array) -> Verdict:
        """The verdict; failed of a narrow sum of products whose roundings lean to one side.

        What an op makes of an infinity or a NaN is right or not decidable.
        """
        why = truth.undecidable(verdict.name) if verdict.verdict == FAILED else None
        if why is not None:
            return replace(verdict, verdict=NOT_DECIDABLE, why=why)
        if verdict.verdict != PASSED or not truth.contracts or not is_narrow(ours.dtype):
            return verdict
        steps = leans(ours, truth.output(verdict.name))
        if not steps:
            return verdict
        return replace(
            verdict, verdict=FAILED, why=f"its elements are biased by {steps:.2g} steps of {ours.dtype}"
        )

    def _judge_end(self, values: Mapping[str, Array]) -> None:
        """Compare what the memories hold at the end with what the ops left; remember it for what follows."""
        graph, executor, memory = self._graph, self._executor, self._check.memory
        updates = graph.updates
        gradients = (name for name in graph.gradients.values() if name not in graph.fleeting)
        for name in (*memory, *gradients):
            if name not in graph.tensors:
                continue
            fetched = executor.fetch(name)
            left = values.get(updates.get(name, name))
            if left is None:  # its op has not happened, which is told
                memory[name] = fetched
                continue
            left = left.reshape(fetched.shape)
            why = "memory at the end of the program differs from the result of its op"
            verdict = judged_copy(name, fetched, left, why)
            if verdict.verdict != PASSED or name not in self._check.verdicts:
                self._check.add(verdict)  # an equal copy decides nothing about what the op has left
            memory[name] = left if verdict.verdict == PASSED else fetched  # equal ones lie there once


def _summed_as(stored: Array, kernel: bool) -> DType:
    """The format sums are made in: that of the kernels for such results in `kernel` accumulation."""
    kind = float_of(stored.dtype)
    return kind.sums_in if kernel and kind else FP32


def functional_summary(
    truth: str, judged: Iterable[Verdict], iterations: int, skipped: Sequence[str] = ()
) -> dict[str, Any]:
    """How the numbers agree, by the contract of ``run --json``.

    `passed` is false if a tensor failed, null if one is not decidable or has no truth, else true. `tolerance`
    is the largest of a tensor that passed. `skipped` says what else was not compared, and why.
    """
    verdicts = list(judged)
    words = (FAILED, NOT_DECIDABLE, WITHOUT_TRUTH)
    counts = {word: sum(item.verdict == word for item in verdicts) for word in words}
    passed = False if counts[FAILED] else None if counts[NOT_DECIDABLE] or counts[WITHOUT_TRUTH] else True
    worst = max(verdicts, key=lambda item: (item.verdict == FAILED, item.ratio), default=None)
    return {
        "checked_against": truth,
        "passed": passed,
        "tolerance": max((item.tolerance for item in verdicts if item.verdict == PASSED), default=0.0),
        "not_decidable": counts[NOT_DECIDABLE],
        "without_truth": counts[WITHOUT_TRUTH],
        "skipped": list(skipped),
        "iterations_checked": iterations,
        "max_abs_error": max((item.abs_error for item in verdicts), default=0.0),
        "max_rel_error": max((item.error for item in verdicts), default=0.0),
        "worst_tensor": worst.name if worst else None,
        "worst_ratio": worst.ratio if worst else 0.0,
        "tensors": [
            {
                "name": item.name,
                "error": item.error,
                "tolerance": item.tolerance,
                "verdict": item.verdict,
                **({"reason": item.why} if item.verdict != PASSED else {}),
            }
            for item in verdicts
        ],
    }

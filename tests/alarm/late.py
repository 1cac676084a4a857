# SPDX-License-Identifier: Apache-2.0
"""Defects of one iteration that is not among the first three, and of what a run tells and saves.

Each is put into iteration `LATE` of eight. `SURE` are refused whichever iteration is drawn, `DRAWN` only if
that one is followed: of n iterations one in n - 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from alarm.omissions import left_out, loads, log_changed
from alarm.seams import name_of
from alarm.trial import CASES, Case, planned
from arch.blocks.soc import Soc
from arch.memories.effects import EffectLog, LogEntry
from arch.spec.program import Command, Effect
from configs.errors import PulptrainError
from configs.values import replace
from pulptrain.running import session
from pulptrain.running.machine import Machine, Phase
from pulptrain.running.session import run_prepared
from pulptrain.running.training import Training, drawn_iteration
from scheduler.executor import Executor

LATE, ITERATIONS = 6, 8

(MLP,) = (case for case in CASES if case.model == "simple-mlp")

Machinery = Callable[[], AbstractContextManager[None]]

SURE: dict[str, Machinery] = {}
DRAWN: dict[str, Machinery] = {}


def _in(score: dict[str, Machinery], name: str) -> Callable[[Machinery], Machinery]:
    def register(machine: Machinery) -> Machinery:
        score[name] = machine
        return machine

    return register


@contextmanager
def _wrapped(owner: Any, name: str, around: Callable[[Callable[..., Any], Any], Any]) -> Iterator[None]:
    """Calls of a method go to `around(the method as it was, its object, ...)`."""
    was = getattr(owner, name)

    def instead(self: Any, *given: Any, **more: Any) -> Any:
        return around(lambda *other: was(self, *(other or given), **more), self, *given, **more)

    with patch.object(owner, name, instead):
        yield


def _number(training: Training) -> int:
    return len(training.losses) + 1


@contextmanager
def _late(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """`around` as in `_wrapped`, but only in iteration `LATE`."""
    now: list[int] = []

    def iterate(was: Callable[..., Any], training: Training, *given: Any) -> Any:
        now[:] = [_number(training)]
        try:
            return was()
        finally:
            now.clear()

    def called(was: Callable[..., Any], *given: Any, **more: Any) -> Any:
        return around(was, *given, **more) if now == [LATE] else was()

    with ExitStack() as stack:
        stack.enter_context(_wrapped(Training, "_iterate", iterate))
        stack.enter_context(_wrapped(owner, name, called))
        yield


def _replaying(ops: Callable[[str], bool], change: Callable[[list[LogEntry]], list[LogEntry]]) -> Machinery:
    """In that iteration the machine does other things in some ops."""

    def replay(was: Callable[..., Any], soc: Soc, log: EffectLog) -> None:
        names = {name_of(entry.subject) for entry in log.entries if hasattr(entry.subject, "results")}
        was(EffectLog(log_changed(log, [name for name in names if ops(name)], change)))

    return lambda: _late(Soc, "replay", replay)


def _but_told(entries: list[LogEntry]) -> list[LogEntry]:
    """No kernel, nothing stored, but the op ends as always."""
    *before, end = entries
    return [*(entry for entry in before if loads(entry.subject)), end]


def _last_store_left_out(entries: list[LogEntry]) -> list[LogEntry]:
    stores = [item.key for item in entries if isinstance(item.subject, Command) and not item.subject.to_l1]
    return [item for item in entries if not (isinstance(item.subject, Command) and item.key == stores[-1])]


def _half_a_store(entries: list[LogEntry]) -> list[LogEntry]:
    first = next(
        item.subject for item in entries if not loads(item.subject) and isinstance(item.subject, Command)
    )
    half = replace(first, line_bytes=first.line_bytes // 8 * 4)
    return [item._replace(subject=half) if item.subject is first else item for item in entries]


def _wrong_kernels(entries: list[LogEntry]) -> list[LogEntry]:
    def wrong(effect: Effect) -> Effect:
        def function(arrays: Any) -> Any:
            results = tuple(np.array(result) for result in effect.function(arrays))
            _flip(results[0].reshape(-1).view(np.uint8))
            return results

        return replace(effect, function=function)

    changed = {id(item.subject): wrong(item.subject) for item in entries if isinstance(item.subject, Effect)}
    return [item._replace(subject=changed.get(id(item.subject), item.subject)) for item in entries]


def _flip(part: np.ndarray) -> None:
    """The highest bit of the fraction of the first fp32."""
    part[2] ^= 0x40


def _update(name: str) -> bool:
    return name.endswith(".UPD")


SURE["every update left out of one iteration"] = _replaying(_update, left_out)
SURE["every update left out of one iteration, and told as if it had happened"] = _replaying(
    _update, _but_told
)
SURE["one weight's update left out of one iteration, and told as if it had happened"] = _replaying(
    lambda name: name == "fc1.UPD", _but_told
)
SURE["an op of the forward pass left out of one iteration"] = _replaying(
    lambda name: name == "fc1.FW", left_out
)
SURE["a state of the optimizer not stored in one iteration"] = _replaying(
    lambda name: name == "fc1.UPD", _last_store_left_out
)
DRAWN["half of an updated weight not stored in one iteration"] = _replaying(
    lambda name: name == "fc1.UPD", _half_a_store
)
DRAWN["a bit of a weight gradient flipped in one iteration"] = _replaying(
    lambda name: name == "fc1.WG", _wrong_kernels
)
DRAWN["a bit of an updated weight flipped in one iteration as it is computed"] = _replaying(
    lambda name: name == "fc1.UPD", _wrong_kernels
)


def _weight(machine: Machine) -> np.ndarray:
    return machine.mini.executor.bytes_of(machine.mini.schedule.graph.weights[0])


@_in(SURE, "a bit of a weight flipped between two iterations")
def _between() -> AbstractContextManager[None]:
    def batch(was: Callable[..., Any], training: Training) -> Any:
        if _number(training) == LATE:
            _flip(_weight(training.machine))
        return was()

    return _wrapped(Training, "_batch", batch)


@_in(SURE, "a bit of a weight flipped behind its update")
def _behind() -> AbstractContextManager[None]:
    def iterate(was: Callable[..., Any], machine: Machine, *given: Any) -> Any:
        losses = was()
        _flip(_weight(machine))
        return losses

    return _late(Machine, "iterate", iterate)


@_in(DRAWN, "a bit of a weight flipped before it is read")
def _before() -> AbstractContextManager[None]:
    def run(was: Callable[..., Any], phase: Phase) -> Any:
        executor = phase.executor
        _flip(executor.bytes_of(executor.schedule.graph.weights[0]))
        return was()

    return _late(Phase, "run", run)


@_in(SURE, "a sample exchanged for that of another iteration")
def _exchanged() -> AbstractContextManager[None]:
    seen: list[Any] = []

    def batch(was: Callable[..., Any], training: Training) -> Any:
        seen.append(was())
        return seen[0] if _number(training) == LATE else seen[-1]

    return _wrapped(Training, "_batch", batch)


@_in(SURE, "a sample exchanged on its way to the memory")
def _on_its_way() -> AbstractContextManager[None]:
    def load(was: Callable[..., Any], executor: Any, values: Mapping[str, np.ndarray]) -> Any:
        return was({name: array[::-1] for name, array in values.items()})

    return _late(Executor, "load", load)


@_in(SURE, "the loss of another iteration told of one")
def _stale_loss() -> AbstractContextManager[None]:
    before: list[Any] = []

    def iterate(was: Callable[..., Any], machine: Machine, *given: Any) -> Any:
        before.append(was())
        return before[-1] if machine.program_ended is None or len(before) != LATE + 1 else before[-2]

    return _wrapped(Machine, "iterate", iterate)


@_in(SURE, "the last loss printed is that of the iteration before")
def _printed() -> AbstractContextManager[None]:
    was = session._training_summary

    def summary(training: Training, *given: Any) -> dict[str, Any]:
        return {**was(training, *given), "last_loss": training.losses[-2]}

    return patch.object(session, "_training_summary", summary)


def _saving(change: Callable[[dict[str, np.ndarray]], None]) -> Machinery:
    def values(was: Callable[..., Any], training: Training) -> dict[str, np.ndarray]:
        found = was()
        change(found)
        return found

    return lambda: _wrapped(Training, "values", values)


def _stale_weight(values: dict[str, np.ndarray]) -> None:
    name = next(name for name in values if f"before/{name}" in values)
    values[name] = values[f"before/{name}"]


def _stale_before(values: dict[str, np.ndarray]) -> None:
    name = next(name for name in values if f"before/{name}" in values)
    values[f"before/{name}"] = values[name]


def _other_gradient(values: dict[str, np.ndarray]) -> None:
    name = next(name for name in values if name.endswith(".grad"))
    values[name] = -values[name]


def _without_one(values: dict[str, np.ndarray]) -> None:
    del values[next(iter(values))]


SURE["weights saved as they were before the last iteration"] = _saving(_stale_weight)
SURE["weights before the last iteration saved as they were after it"] = _saving(_stale_before)
SURE["another gradient saved"] = _saving(_other_gradient)
SURE["a tensor not saved"] = _saving(_without_one)


def refused(machine: Machinery, seed: int, case: Case = MLP, dtype: str = "fp32") -> bool:
    """Whether a run of `ITERATIONS` with the defect in it is refused."""
    settings = replace(case.settings(dtype), seed=seed)
    try:
        with machine():
            run_prepared(planned(case, dtype), settings, iterations=ITERATIONS).refuse_wrong_numbers()
    except PulptrainError:
        return True
    return False


def seeds_that_draw(number: int) -> Iterator[int]:
    """Seeds by which this iteration of `ITERATIONS` is followed."""
    return (seed for seed in range(1000) if drawn_iteration(4, ITERATIONS, seed) == number)

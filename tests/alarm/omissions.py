# SPDX-License-Identifier: Apache-2.0
"""What does not happen, or happens twice: ops in some iterations, actions of a program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

from alarm.registry import Wrong, defect
from alarm.seams import actions_of, changed, name_of, op_of_step, ops_of, with_actions
from arch.blocks.soc import RunResult, Soc
from arch.memories.effects import EffectLog, Instant, LogEntry
from arch.spec.program import Action, Command, Compute, DmaStart, Effect, Program, Release, UdmaCommand
from configs.values import replace
from pulptrain.running.machine import Prepared
from scheduler.planned import OpSchedule, Schedule

FIRST_TWO = 2
"""The first iteration and the stirred one: what is carried out after them is iteration 2, of an update."""

BEGINNINGS = (Instant.DMA_SAMPLE, Instant.KERNEL_READ)
ENDS = (Instant.DMA_COMPLETE, Instant.KERNEL_COMMIT)

Change = Callable[[list[LogEntry]], list[LogEntry]]
"""Of what one op does, its end the last."""


# The machine: what it does again is not all it did.


@contextmanager
def _repeating(ops: Collection[str], change: Change, after: int = FIRST_TWO) -> Iterator[None]:
    """A machine that changes what some ops do, when a program with them has run so often."""
    repeat = Soc.replay
    logs: dict[int, tuple[EffectLog, EffectLog]] = {}
    times: dict[int, int] = {}

    def replay(soc: Soc, log: EffectLog) -> None:
        times[id(log)] = times.get(id(log), 1) + 1
        if times[id(log)] <= after:
            repeat(soc, log)
            return
        if id(log) not in logs:
            logs[id(log)] = log, EffectLog(log_changed(log, ops, change))
        repeat(soc, logs[id(log)][1])

    with patch.object(Soc, "replay", replay):
        yield


def log_changed(log: EffectLog, ops: Collection[str], change: Change) -> list[LogEntry]:
    found: list[LogEntry] = []
    of_op: list[LogEntry] = []
    for entry in log.entries:
        of_op.append(entry)
        if entry.step is Instant.RELEASE:
            found += change(of_op) if name_of(entry.subject) in ops else of_op
            of_op = []
    found += of_op
    # What a left out op has stored may end while another op is at work.
    begun = {entry.key for entry in found if entry.step in BEGINNINGS}
    return [entry for entry in found if entry.step not in ENDS or entry.key in begun]


def left_out(entries: list[LogEntry]) -> list[LogEntry]:
    """No kernel, nothing stored, nothing said at the end; what is loaded may be for the next op."""
    *before, end = entries
    kept = [entry for entry in before if loads(entry.subject)]
    return [*kept, end._replace(subject=replace(end.subject, results=()))]


def loads(subject: object) -> bool:
    if isinstance(subject, UdmaCommand):
        return subject.to_l2
    return not isinstance(subject, Effect) and (not isinstance(subject, Command) or subject.to_l1)


def _ended_twice(entries: list[LogEntry]) -> list[LogEntry]:
    *before, end = entries
    return [*before, end._replace(subject=replace(end.subject, places=())), end]


def _on_machine(
    prepared: Prepared, items: list[OpSchedule], machine: Callable[[list[str]], AbstractContextManager[None]]
) -> Wrong | None:
    names = [item.op.name for item in items]
    return Wrong(prepared, lambda: machine(names)) if names else None


def _updates(prepared: Prepared) -> list[OpSchedule]:
    return ops_of(prepared, lambda item: item.op.step == "UPD")


def _middle(step: str) -> Callable[[Prepared], list[OpSchedule]]:
    def items(prepared: Prepared) -> list[OpSchedule]:
        item = op_of_step(prepared, step)
        return [item] if item else []

    return items


def _on_repeat(
    name: str,
    items: Callable[[Prepared], list[OpSchedule]],
    change: Change = left_out,
    after: int = FIRST_TWO,
) -> None:
    """A defect of the machine that shows when a program with these ops has run so often."""

    def apply(prepared: Prepared) -> Wrong | None:
        return _on_machine(prepared, items(prepared), lambda names: _repeating(names, change, after))

    defect(name)(apply)


_on_repeat("every update left out from iteration 2 on", _updates)
_on_repeat("one weight's update left out from iteration 2 on", lambda prepared: _updates(prepared)[:1])
_on_repeat(
    "one weight's update left out in the third iteration",
    lambda prepared: _updates(prepared)[-1:],
    after=FIRST_TWO + 1,
)
_on_repeat("an op of the forward pass left out when it is done again", _middle("FW"), after=1)
_on_repeat("an op of the backward pass left out when it is done again", _middle("WG"), after=1)
_on_repeat("an op ends twice", lambda prepared: _updates(prepared)[:1], _ended_twice)


@defect("a state of the optimizer not stored from iteration 2 on")
def _no_state(prepared: Prepared) -> Wrong | None:
    items = [item for item in _updates(prepared) if len(item.op.outputs) > 1]

    def machine(names: list[str]) -> AbstractContextManager[None]:
        def change(entries: list[LogEntry]) -> list[LogEntry]:
            state = entries[-1].subject.results[-1]

            def stores_it(subject: object) -> bool:
                if not isinstance(subject, Command) or subject.to_l1 or subject.external_level != state.level:
                    return False
                return state.address <= subject.external_address < state.address + state.size_bytes

            return [entry for entry in entries if not stores_it(entry.subject)]

        return _repeating(names, change)

    return _on_machine(prepared, items[:1], machine)


@defect("every update left out from iteration 1 on")
def _never_updated(prepared: Prepared) -> Wrong | None:
    """The program that is simulated has none of their kernels, stores and results."""

    @contextmanager
    def machine(names: list[str]) -> Iterator[None]:
        run = Soc.run

        def without(soc: Soc, program: Program, **how: bool) -> RunResult:
            actions = [_idle(action) if name_of(action) in names else action for action in program.actions]
            return run(soc, replace(program, actions=tuple(actions)), **how)

        with patch.object(Soc, "run", without):
            yield

    return _on_machine(prepared, _updates(prepared), machine)


def _idle(action: Action) -> Action:
    if isinstance(action, Compute):
        return replace(action, effect=None)
    if isinstance(action, DmaStart) and not action.commands[0].to_l1:
        return replace(action, commands=())
    return replace(action, results=()) if isinstance(action, Release) else action


@defect("the program of the update not carried out from iteration 2 on")
def _no_program(prepared: Prepared) -> Wrong | None:
    if prepared.update is None:
        return None
    names = [item.op.name for item in prepared.update.ops]
    return Wrong(prepared, lambda: _repeating(names, left_out))


# The program: an action is missing, or there twice.


def _stores_of(prepared: Prepared, *steps: str) -> list[DmaStart]:
    item = op_of_step(prepared, *steps, tiles=2) or op_of_step(prepared, *steps)
    own = actions_of(prepared, item.op.name) if item else []
    return [action for action in own if isinstance(action, DmaStart) and not action.commands[0].to_l1]


def _instead(prepared: Prepared, action: Action, new: Action) -> Prepared:
    def change(own: list[Action]) -> list[Action]:
        return [new if other is action else other for other in own]

    return with_actions(prepared, name_of(action), change)


def _store(
    name: str, steps: tuple[str, ...], at: int, commands: Callable[[list[DmaStart]], tuple[Command, ...]]
) -> None:
    """A defect of the store at a place among those of an op: other `commands`, made of all of them."""

    def apply(prepared: Prepared) -> Prepared | None:
        stores = _stores_of(prepared, *steps)
        if len(stores) <= at or not stores:
            return None
        return _instead(prepared, stores[at], replace(stores[at], commands=commands(stores)))

    defect(name)(apply)


_store("a store left out of the program", ("FW", "IG"), 0, lambda stores: ())
_store("a store twice in the program", ("WG",), -1, lambda stores: stores[-1].commands * 2)
_store("a store of another tile in the place of one", ("FW", "IG"), 1, lambda stores: stores[0].commands)
_store("the store of an update left out of the program", ("UPD",), -1, lambda stores: ())


@defect("a kernel left out of the program")
def _no_kernel(prepared: Prepared) -> Prepared | None:
    item = op_of_step(prepared, "UPD", "WG")
    own = actions_of(prepared, item.op.name) if item else []
    kernels = [action for action in own if isinstance(action, Compute) and action.effect]
    return _instead(prepared, kernels[-1], replace(kernels[-1], effect=None)) if kernels else None


@defect("an op of the program ends without its results")
def _no_results(prepared: Prepared) -> Prepared | None:
    item = op_of_step(prepared, "UPD")
    ends = [a for a in actions_of(prepared, item.op.name) if isinstance(a, Release)] if item else []
    return _instead(prepared, ends[0], replace(ends[0], results=())) if ends else None


@defect("two ops of the program under one name")
def _one_name(prepared: Prepared) -> Prepared | None:
    items = _updates(prepared)
    if len(items) < 2:
        return None
    first, second = (item.op for item in items[:2])

    def renamed(schedule: Schedule) -> list[Action]:
        return [
            replace(action, work=replace(action.work, op=first.layer, step=first.step))
            if name_of(action) == second.name
            else action
            for action in schedule.program.actions
        ]

    return changed(prepared, renamed)

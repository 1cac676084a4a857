# SPDX-License-Identifier: Apache-2.0
"""The turns an iteration may have: every task, and before it whatever may be done again for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from configs.values import Struct
from scheduler.fit.problem import NEVER, NO_GROUP, Problem

MOST_REPEATS = 1500
"""Turns for tasks done again; of more, those nearest to the first task that reads their results are kept."""


class Slot(Struct, frozen=True):
    """A turn: of `task` itself, or, `again`, of one done again for task `before`."""

    task: int
    before: int
    again: bool


@dataclass(frozen=True)
class Slots:
    """All turns in order."""

    items: tuple[Slot, ...]

    @cached_property
    def of_task(self) -> Mapping[int, int]:
        """Task -> its own turn."""
        return {slot.task: turn for turn, slot in enumerate(self.items) if not slot.again}

    @cached_property
    def repeats(self) -> Mapping[int, Sequence[int]]:
        """Task -> turns in which it may be done again."""
        found: dict[int, list[int]] = {}
        for turn, slot in enumerate(self.items):
            if slot.again:
                found.setdefault(slot.task, []).append(turn)
        return found

    def at(self, task: int, before: int) -> int | None:
        """The turn in which `task` is done again for `before`, if there is one."""
        return next((turn for turn in self.repeats.get(task, ()) if self.items[turn].before == before), None)


def first_readers(problem: Problem) -> dict[int, int]:
    """Task of a group -> the first task that reads a second version of what it makes, directly."""
    found: dict[int, int] = {}
    for number, task in enumerate(problem.tasks):
        for buffer in task.reads if task.redirects else ():
            if buffer in problem.makers:
                found.setdefault(problem.makers[buffer], number)
    return found


def slots_of(problem: Problem, most: int = MOST_REPEATS) -> Slots:
    """The turns; at most about `most` of them for tasks done again."""
    direct = first_readers(problem)
    orders = {
        number: _sources(problem, number) for number, task in enumerate(problem.tasks) if task.redirects
    }
    befores: dict[int, list[int]] = {}
    for number in sorted(orders):
        for task in orders[number]:
            if number <= direct.get(task, len(problem.tasks)):
                befores.setdefault(task, []).append(number)
    depth = max((len(numbers) for numbers in befores.values()), default=0)
    while depth > 1 and sum(min(depth, len(numbers)) for numbers in befores.values()) > most:
        depth -= 1
    chosen = {task: frozenset(numbers[-depth:]) for task, numbers in befores.items()}
    items: list[Slot] = []
    for number in range(len(problem.tasks)):
        for task in orders.get(number, ()):
            if number in chosen.get(task, ()):
                items.append(Slot(task, number, True))
        items.append(Slot(number, NEVER, False))
    return Slots(tuple(items))


def _sources(problem: Problem, number: int) -> list[int]:
    """Tasks that may have to be done again for a task, sources first."""
    found: dict[int, None] = {}
    seen: set[int] = set()

    def visit(task: int) -> None:
        for buffer in problem.tasks[task].reads:
            maker = problem.makers.get(buffer)
            if maker is not None and maker not in seen and problem.tasks[maker].group != NO_GROUP:
                seen.add(maker)
                visit(maker)
                found[maker] = None

    visit(number)
    return list(found)

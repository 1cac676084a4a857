# SPDX-License-Identifier: Apache-2.0
"""Whether a program keeps to its memory plan: every byte it touches belongs to a buffer that lives then."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from arch.memories.races import Span, move_spans, place_span
from arch.spec.program import (
    Action,
    Compute,
    DmaStart,
    Move,
    Place,
    Program,
    Release,
    TeamTransfer,
    UdmaStart,
)
from scheduler.addresses.allocation import Allocation, PlanError
from scheduler.memory.memory_plan import MemoryPlan
from traces.events import Work


def check_program(program: Program, plan: MemoryPlan) -> None:
    """Prove the plan (`MemoryPlan.check`) and that the program keeps to it.

    What a transfer or a kernel touches must lie inside one allocation that lives during the op; an op ends
    with the release of the buffers that end there. Raises `PlanError`.
    """
    plan.check()
    op = 0
    live = _Live(plan, op)
    for action in program.actions:
        for span in _spans(action):
            if not live.holds(span):
                raise _outside(span, action.work, plan, op)
        if isinstance(action, Release) and op < len(plan.ops) - 1:
            op += 1
            live = _Live(plan, op)


class _Live:
    """The allocations that live during one op, by level and address."""

    def __init__(self, plan: MemoryPlan, op: int) -> None:
        self._items: dict[str, list[Allocation]] = {}
        for item in plan.allocations:
            if item.first_op <= op <= item.last_op and item.size_bytes > 0:
                self._items.setdefault(item.level, []).append(item)
        for items in self._items.values():
            items.sort(key=lambda item: item.address)
        self._starts = {level: [item.address for item in items] for level, items in self._items.items()}

    def holds(self, span: Span) -> bool:
        """Whether one allocation holds all bytes of the span."""
        place = bisect_right(self._starts.get(span.level, ()), span.address) - 1
        return place >= 0 and span.end <= self._items[span.level][place].end_address


def _spans(action: Action) -> Iterator[Span]:
    """Everything an action reads or writes."""
    if isinstance(action, DmaStart | UdmaStart):
        yield from _moved(action.commands)
    elif isinstance(action, TeamTransfer):
        for commands in action.commands:
            yield from _moved(commands)
    elif isinstance(action, Compute) and action.effect is not None:
        yield from _placed((*action.effect.reads, *action.effect.writes))
    elif isinstance(action, Release):
        yield from _placed(action.places)


def _moved(commands: Iterable[Move]) -> Iterator[Span]:
    for command in commands:
        yield from move_spans(command)


def _placed(places: Iterable[Place]) -> Iterator[Span]:
    for place in places:
        if place.size_bytes:
            yield place_span(place)


def _outside(span: Span, work: Work, plan: MemoryPlan, op: int) -> PlanError:
    what = f" ({work.what})" if work.what else ""
    return PlanError(
        f"the program touches {span.level} bytes {span.address} to {span.end}{what}, where no buffer of the "
        f"memory plan lives during {plan.ops[op]}",
        where=f"op {work.op} {work.step}",
        cure="build plan and program together (scheduler.schedule.build_schedule)",
    )

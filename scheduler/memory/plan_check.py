# SPDX-License-Identifier: Apache-2.0
"""Whether a program keeps to its memory plan: every byte it touches belongs to a buffer that lives then."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from arch.spec.program import (
    Action,
    Command,
    Compute,
    DmaStart,
    Place,
    Program,
    Release,
    TeamTransfer,
    UdmaStart,
)
from scheduler.addresses.allocation import PlanError
from scheduler.memory.memory_plan import MemoryPlan
from traces.events import Work

_Run = tuple[str, int, int]
"""Level, first byte and the byte behind the last."""


def check_program(program: Program, plan: MemoryPlan) -> None:
    """Prove the plan (`MemoryPlan.check`) and that the program keeps to it.

    What a transfer or a kernel touches must lie inside one allocation that lives during the op; an op ends
    with the release of the buffers that end there. Raises `PlanError`.
    """
    plan.check()
    op = 0
    live = _Live(plan, op)
    for action in program.actions:
        for run in _runs(action):
            if not live.holds(run):
                raise _outside(run, action.work, plan, op)
        if isinstance(action, Release) and op < len(plan.ops) - 1:
            op += 1
            live = _Live(plan, op)


class _Live:
    """The allocations that live during one op, by level and address."""

    def __init__(self, plan: MemoryPlan, op: int) -> None:
        items: dict[str, list[tuple[int, int]]] = {}
        for item in plan.allocations:
            if item.first_op <= op <= item.last_op and item.size_bytes > 0:
                items.setdefault(item.level, []).append((item.address, item.end_address))
        self._starts: dict[str, list[int]] = {}
        self._ends: dict[str, list[int]] = {}
        for level, runs in items.items():
            runs.sort()
            self._starts[level] = [start for start, _ in runs]
            self._ends[level] = [end for _, end in runs]

    def holds(self, run: _Run) -> bool:
        """Whether one allocation holds all bytes of the run."""
        level, first, end = run
        place = bisect_right(self._starts.get(level, ()), first) - 1
        return place >= 0 and end <= self._ends[level][place]


def _runs(action: Action) -> list[_Run]:
    """Everything an action reads or writes."""
    if isinstance(action, DmaStart):
        return _moved(action.commands)
    if isinstance(action, UdmaStart):
        return [
            run
            for move in action.commands
            for run in (
                ("l2", move.l2_address, move.l2_address + move.size_bytes),
                ("l3", move.l3_address, move.l3_address + move.size_bytes),
            )
        ]
    if isinstance(action, TeamTransfer):
        return [run for commands in action.commands for run in _moved(commands)]
    if isinstance(action, Compute) and action.effect is not None:
        return _placed((*action.effect.reads, *action.effect.writes))
    return _placed(action.places) if isinstance(action, Release) else []


def _moved(commands: Iterable[Command]) -> list[_Run]:
    runs: list[_Run] = []
    for command in commands:
        near, far, line_bytes = command.l1_address, command.external_address, command.line_bytes
        stride_bytes = (command.lines - 1) * command.stride_bytes
        runs.append(("l1", near, near + line_bytes * command.lines))
        runs.append((command.external_level, far, far + stride_bytes + line_bytes))
    return runs


def _placed(places: Iterable[Place]) -> list[_Run]:
    sizes = [(place, place.size_bytes) for place in places]
    return [
        (place.level, place.address, place.address + size_bytes) for place, size_bytes in sizes if size_bytes
    ]


def _outside(run: _Run, work: Work, plan: MemoryPlan, op: int) -> PlanError:
    level, first, end = run
    return PlanError(
        f"{f'the access to {work.what!r}' if work.what else 'the program'} uses {level.upper()} bytes "
        f"{first} to {end}, where the memory plan has no buffer during {plan.ops[op]}; the plan is that of "
        "another schedule",
        where=f"{work.op}.{work.step}",
        cure="build both with one call of scheduler.schedule.build_schedule",
    )

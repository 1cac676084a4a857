# SPDX-License-Identifier: Apache-2.0
"""Where a defect is put into a planned run: the actions of its programs, its kernels, its transfers.

Every function makes a new `Prepared`; nothing private is patched. Op names are ``layer.step``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from arch.spec.program import Action, Command, Compute, DmaStart, Effect, Place
from configs.values import replace
from pulptrain.running.machine import Prepared
from scheduler.planned import OpSchedule, Schedule

Arrays = Sequence[np.ndarray]
Function = Callable[[Arrays], Arrays]
Wrap = Callable[[Compute, Function], Function]


def ops_of(prepared: Prepared, wanted: Callable[[OpSchedule], bool]) -> list[OpSchedule]:
    """The ops of all programs for which `wanted` holds, in order."""
    schedules = [prepared.schedule, *([prepared.update] if prepared.update else [])]
    return [item for schedule in schedules for item in schedule.ops if wanted(item)]


def op_of_step(
    prepared: Prepared, *steps: str, primitive: str = "", tiles: int = 1, role: str = ""
) -> OpSchedule | None:
    """The op in the middle of those with such a step, this primitive, so many tiles and this result."""
    found = ops_of(
        prepared,
        lambda item: (
            item.op.step in steps
            and item.op.primitive.startswith(primitive)
            and (not role or role in item.op.writes)
            and len(item.tiling.tiles) >= tiles
        ),
    )
    return found[len(found) // 2] if found else None


def changed(prepared: Prepared, change: Callable[[Schedule], Sequence[Action]]) -> Prepared:
    """The run with the actions of its programs changed."""

    def of(schedule: Schedule | None) -> Schedule | None:
        if schedule is None:
            return None
        return replace(schedule, program=replace(schedule.program, actions=tuple(change(schedule))))

    return replace(prepared, schedule=of(prepared.schedule), update=of(prepared.update))


def name_of(action: Action) -> str:
    """Name of the op an action belongs to."""
    return f"{action.work.op}.{action.work.step}"


def with_actions(prepared: Prepared, op: str, change: Callable[[list[Action]], list[Action]]) -> Prepared:
    """The run with the actions of one op changed; `change` keeps their number and ids."""

    def of(schedule: Schedule) -> list[Action]:
        own = [action for action in schedule.program.actions if name_of(action) == op]
        new = {action.id: action for action in change(own)}
        return [new.get(action.id, action) for action in schedule.program.actions]

    return changed(prepared, of)


def with_kernels(
    prepared: Prepared, op: str, wrap: Wrap, *, only: Callable[[int, int], bool] = lambda i, n: True
):
    """The run with what the kernels of an op compute changed; `only(number, count)` chooses kernels."""

    def change(actions: list[Action]) -> list[Action]:
        kernels = [action for action in actions if isinstance(action, Compute) and action.effect]
        return [
            replace(action, effect=replace(action.effect, function=wrap(action, action.effect.function)))
            for number, action in enumerate(kernels)
            if only(number, len(kernels))
        ]

    return with_actions(prepared, op, change)


def with_results(
    prepared: Prepared,
    item: OpSchedule,
    role: str,
    change: Callable[[np.ndarray, Arrays], np.ndarray],
    *,
    only: Callable[[int, int], bool] = lambda i, n: True,
) -> Prepared | None:
    """The run with one result of an op changed: `change(result, arrays read)` gives the wrong one.

    A result is what a kernel writes to the buffer of `role` or a part of it; only the last kernel of a tile
    that does counts, so that a sum of several is changed once.
    """
    if role not in item.op.writes:
        return None
    names = (item.op[role], role)
    own = [action for action in actions_of(prepared, item.op.name) if isinstance(action, Compute)]
    last: dict[tuple[int, int], int] = {}
    for action in own:
        for place in action.effect.writes if action.effect else ():
            if place.name.partition("[")[0] in names:
                last[action.work.tile, place.address] = action.id
    chosen = sorted(set(last.values()))
    chosen = [number for index, number in enumerate(chosen) if only(index, len(chosen))]

    def wrap(action: Compute, function: Function) -> Function:
        places = action.effect.writes

        def wrong(arrays: Arrays) -> Arrays:
            kept = [array.copy() for array in arrays]
            results = function(arrays)
            return tuple(
                change(np.array(result, np.float32 if result.dtype.kind == "f" else result.dtype), kept)
                if place.name.partition("[")[0] in names
                else result
                for place, result in zip(places, results, strict=True)
            )

        return wrong if action.id in chosen else function

    return with_kernels(prepared, item.op.name, wrap) if chosen else None


def actions_of(prepared: Prepared, op: str) -> list[Action]:
    """The actions of an op in order."""
    schedules = [prepared.schedule, *([prepared.update] if prepared.update else [])]
    return [a for schedule in schedules for a in schedule.program.actions if name_of(a) == op]


def with_commands(
    prepared: Prepared,
    wanted: Callable[[Command], bool],
    change: Callable[[Command], Command | None],
    *,
    steps: tuple[str, ...] = ("FW", "WG", "IG"),
    at: float = 0.5,
) -> Prepared | None:
    """The run with one DMA command changed, or left out where `change` gives None.

    It is the command at the share `at` of all that are `wanted` in the ops of these steps.
    """
    schedule = prepared.schedule
    found = [
        (action.id, number)
        for action in schedule.program.actions
        if isinstance(action, DmaStart) and action.work.step in steps
        for number, command in enumerate(action.commands)
        if wanted(command) and (change(command) is not None or len(action.commands) > 1)
    ]
    if not found:
        return None
    chosen, place = found[int(at * (len(found) - 1))]

    def of(other: Schedule) -> Sequence[Action]:
        if other is not schedule:
            return other.program.actions
        actions = list(other.program.actions)
        commands = list(actions[chosen].commands)
        new = change(commands[place])
        commands[place : place + 1] = [] if new is None else [new]
        actions[chosen] = replace(actions[chosen], commands=tuple(commands))
        return actions

    return changed(prepared, of)


def with_places(
    prepared: Prepared, item: OpSchedule, change: Callable[[Effect], Effect | None]
) -> Prepared | None:
    """The run with the places of the last kernel of an op for which `change` gives another effect."""
    own = [a for a in actions_of(prepared, item.op.name) if isinstance(a, Compute) and a.effect]
    for action in reversed(own):
        new = change(action.effect)
        if new is not None:
            return with_actions(prepared, item.op.name, lambda _: [replace(action, effect=new)])  # noqa: B023
    return None


def moved(place: Place, by_bytes: int) -> Place:
    """A place some bytes further on."""
    return replace(place, address=place.address + by_bytes)

# SPDX-License-Identifier: Apache-2.0
"""What the actions of a program touch."""

from __future__ import annotations

from collections.abc import Iterator

from arch.memories.races import move_spans, place_span
from arch.spec.program import Compute, DmaStart, Move, Place, Release, UdmaStart
from scheduler.planned import Schedule


def spans(schedule: Schedule) -> Iterator[tuple[int, object]]:
    """(op, span) of everything the program touches, counted from its releases."""
    op = 0
    for action in schedule.program.actions:
        moves: tuple[Move, ...] = action.commands if isinstance(action, DmaStart | UdmaStart) else ()
        places: tuple[Place, ...] = ()
        if isinstance(action, Compute) and action.effect is not None:
            places = (*action.effect.reads, *action.effect.writes)
        for move in moves:
            yield from ((op, span) for span in move_spans(move))
        yield from ((op, place_span(place)) for place in places)
        op += isinstance(action, Release)

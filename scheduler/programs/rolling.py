# SPDX-License-Identifier: Apache-2.0
"""Finds the loops in a list of statements that are alike but for some numbers.

Of a statement its form is looked at: what is fixed in it. Runs of equal forms become a `Loop`, loops of equal
form become loops of loops. All turns of a loop execute equally many statements, so the places of a statement
follow from the first one. Nothing is known of tiles here, so what comes out is what went in, however it was
made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from configs.values import Struct
from scheduler.tiles.code_sizes import LEAST_LOOP

Places = NDArray[np.int64]

LONGEST_BODY = 256
"""Statements that are compared with the ones after them, at most: a tile has fewer."""

LEAST_SAVED = LEAST_LOOP - 1
"""Statements that a loop must save to be one."""


class Leaf(Struct, frozen=True, eq=False):
    """A statement: what is fixed in it, and its place in the list, in the first turn of all loops around."""

    form: Hashable
    place: int

    @property
    def size(self) -> int:
        """Statements."""
        return 1

    @property
    def executed(self) -> int:
        """Statements that are executed."""
        return 1


class Loop(Struct, frozen=True, eq=False):
    """`count` times the `body`."""

    count: int
    body: tuple[Node, ...]

    @property
    def form(self) -> Hashable:
        """What two loops must share to be one statement of a loop around them."""
        return self.count, tuple(node.form for node in self.body)

    @property
    def size(self) -> int:
        """Statements of the text."""
        return 1 + sum(node.size for node in self.body)

    @property
    def turn(self) -> int:
        """Statements that are executed in a turn."""
        return sum(node.executed for node in self.body)

    @property
    def executed(self) -> int:
        """Statements that are executed."""
        return self.count * self.turn


Node = Leaf | Loop


def rolled(forms: Sequence[Hashable]) -> tuple[Node, ...]:
    """Statements of these forms with the loops that are in them, inner ones first."""
    shorter: list[Node] = [Leaf(form, place) for place, form in enumerate(forms)]
    while True:
        best = _roll_once(shorter)
        if best is None:
            return tuple(shorter)
        shorter = best


TURNS_IN_ONE = 2
"""Turns of an inner loop that are one in a table: what alternates between two buffers then stays the same."""


def table_nodes(nodes: Sequence[Node]) -> Iterator[Node]:
    """Statements as a table has them: inner loops of two turns in one, short ones written out."""
    for node in nodes:
        if isinstance(node, Leaf):
            yield node
            continue
        body, many = tuple(table_nodes(node.body)), 1
        if all(isinstance(each, Leaf) for each in body):
            many = TURNS_IN_ONE if node.count >= 2 * TURNS_IN_ONE else node.count
        turns, rest = divmod(node.count, many)
        unit = [_later(each, turn * node.turn) for turn in range(many) for each in body]
        if turns > 1:
            yield Loop(turns, tuple(unit))
        else:
            yield from unit
        for turn in range(node.count - rest, node.count):
            yield from (_later(each, turn * node.turn) for each in body)


def _later(node: Node, places: int) -> Node:
    if isinstance(node, Leaf):
        return Leaf(node.form, node.place + places)
    return Loop(node.count, tuple(_later(each, places) for each in node.body))


WAITS_IN_ONE = 4
"""Waits, one after the other, that are one record of a table."""


def in_records(nodes: Sequence[Node], is_wait: Callable[[Hashable], bool]) -> Iterator[list[Node]]:
    """Statements and loops one by one, but waits that are one record."""
    for waits, each in groupby(nodes, lambda node: isinstance(node, Leaf) and is_wait(node.form)):
        alike, most = [*each], WAITS_IN_ONE if waits else 1
        yield from (alike[first : first + most] for first in range(0, len(alike), most))


def first_call(nodes: Sequence[Node], is_call: Callable[[Hashable], bool]) -> int:
    """Which of the nodes is the first with a call in it; that behind the last without any."""

    def calls(node: Node) -> bool:
        return is_call(node.form) if isinstance(node, Leaf) else any(map(calls, node.body))

    return next((number for number, node in enumerate(nodes) if calls(node)), len(nodes))


Run = tuple[int, int]
"""So many turns after each of which so much is added."""


def runs_of(values: NDArray[np.int64]) -> Sequence[Run]:
    """What is added from turn to turn, as often as it is the same; of what repeats the first time."""
    runs = [(len([*turns]), step) for step, turns in groupby(np.diff(values).tolist())]
    if not any(step for _, step in runs):
        return []
    for period in range(1, len(runs)):
        again = [runs[place % period] for place in range(len(runs))]
        turns, step = runs[-1]
        if again[:-1] == runs[:-1] and step == again[-1][1] and turns <= again[-1][0]:
            return runs[:period]
    return runs


def places_of(leaf: Leaf, around: Sequence[Loop]) -> Places:
    """Where a statement is in the list, with an axis per loop `around` it, outermost first."""
    places = np.array(leaf.place)
    for loop in around:
        places = places[..., None] + loop.turn * np.arange(loop.count)
    return places


def _roll_once(nodes: list[Node]) -> list[Node] | None:
    """All loops of the shortest body that repeats, or None if none does."""
    numbered: dict[Hashable, int] = {}
    forms = np.array([numbered.setdefault(node.form, len(numbered)) for node in nodes])
    for length in range(1, min(LONGEST_BODY, len(nodes) // 2) + 1):
        turns = 1 + _equal_from_here(forms[length:] == forms[:-length]) // length
        result: list[Node] = []
        end = 0
        for position in np.flatnonzero(turns > 1).tolist():
            if position < end:
                continue
            count, body = int(turns[position]), tuple(nodes[position : position + length])
            if (count - 1) * sum(node.size for node in body) >= LEAST_SAVED:
                result += nodes[end:position]
                end = position + count * length
                result.append(Loop(count, body))
        if end:
            return result + nodes[end:]
    return None


def _equal_from_here(equal: NDArray[np.bool_]) -> Places:
    """For every position how many are true from there on, without a gap."""
    places = np.arange(len(equal))
    gaps = np.where(equal, len(equal), places)
    return np.asarray(np.minimum.accumulate(gaps[::-1])[::-1] - places, np.int64)

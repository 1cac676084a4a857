# SPDX-License-Identifier: Apache-2.0
"""Finds the loops in a list of statements that are alike but for some numbers.

Of a statement its form is looked at: what is fixed in it. Runs of equal forms become a `Loop`, loops of equal
form become loops of loops. All turns of a loop execute equally many statements, so the places of a statement
follow from the first one. Nothing is known of tiles here, so what comes out is what went in, however it was
made.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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

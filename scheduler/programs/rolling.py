# SPDX-License-Identifier: Apache-2.0
"""Finds the loops in a list of statements that are alike but for some numbers.

A `Leaf` is a statement: what is fixed in it (`form`), and numbers that may differ from one to the next.
Runs of statements of equal forms become a `Loop`, whose numbers are arrays over its index; loops of equal
form become loops of loops. Nothing is known of tiles here, so what comes out is what went in, however it
was made.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from configs.values import Struct
from scheduler.tiles.code_sizes import LEAST_LOOP

Numbers = NDArray[np.int64]

LONGEST_BODY = 256
"""Statements that are compared with the ones after them, at most: a tile has fewer."""

LEAST_SAVED = LEAST_LOOP - 1
"""Statements that a loop must save to be one."""


class Leaf(Struct, frozen=True, eq=False):
    """A statement. `numbers` has a row per number, behind it an axis per loop around it, outermost first."""

    form: Hashable
    numbers: Numbers

    @property
    def size(self) -> int:
        """Statements."""
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


Node = Leaf | Loop


def rolled(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The same statements with the loops that are in them, inner ones first."""
    shorter = list(nodes)
    while True:
        best = _roll_once(shorter)
        if best is None:
            return tuple(shorter)
        shorter = best


def _roll_once(nodes: list[Node]) -> list[Node] | None:
    """All loops of the shortest body that repeats, or None if none does."""
    numbered: dict[Hashable, int] = {}
    forms = np.array([numbered.setdefault(node.form, len(numbered)) for node in nodes])
    for length in range(1, min(LONGEST_BODY, len(nodes) // 2) + 1):
        turns = 1 + _equal_from_here(forms[length:] == forms[:-length]) // length
        result: list[Node] = []
        end = 0
        for position in np.flatnonzero(turns > 1):
            count = int(turns[position])
            body = sum(node.size for node in nodes[position : position + length])
            if position >= end and (count - 1) * body >= LEAST_SAVED:
                result += nodes[end:position]
                end = int(position) + count * length
                result.append(_loop(nodes[position:end], length))
        if end:
            return result + nodes[end:]
    return None


def _equal_from_here(equal: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For every position how many are true from there on, without a gap."""
    places = np.arange(len(equal))
    gaps = np.where(equal, len(equal), places)
    return np.asarray(np.minimum.accumulate(gaps[::-1])[::-1] - places, np.int64)


def _loop(nodes: Sequence[Node], length: int) -> Loop:
    turns = [nodes[start : start + length] for start in range(0, len(nodes), length)]
    return Loop(len(turns), tuple(_stacked(same) for same in zip(*turns, strict=True)))


def _stacked(nodes: Sequence[Node]) -> Node:
    """One statement for all turns: a new axis of its numbers, before those of the loops within."""
    first = nodes[0]
    if isinstance(first, Leaf):
        return Leaf(first.form, np.stack([node.numbers for node in nodes if isinstance(node, Leaf)], axis=1))
    bodies = [node.body for node in nodes if isinstance(node, Loop)]
    return Loop(first.count, tuple(_stacked(same) for same in zip(*bodies, strict=True)))

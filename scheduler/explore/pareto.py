# SPDX-License-Identifier: Apache-2.0
"""Which points are worth having: nothing else is at least as good in everything and better in something."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_front(rows: Sequence[Sequence[float]]) -> list[int]:
    """Positions of the rows no other row dominates, in order; all columns are to be small.

    Equal rows do not dominate each other, so all of them are in the front.
    """
    # In lexicographic order a row can only be dominated by one before it, and then by one of the front.
    order = sorted(range(len(rows)), key=lambda position: (tuple(rows[position]), position))
    front: list[int] = []
    for position in order:
        if not any(_dominates(rows[other], rows[position]) for other in front):
            front.append(position)
    return sorted(front)


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and any(
        a < b for a, b in zip(one, other, strict=True)
    )

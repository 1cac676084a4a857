# SPDX-License-Identifier: Apache-2.0
"""The loop over the lines of a program: which of them are in the caches, with what probability.

A function over flat tables and nothing else, so that one source runs as plain Python (tables are lists) and
compiled by Numba (tables are arrays), with equal results, as `arch.pricing.window_engine`. What it computes
is said in `arch.pricing.line_caches`, which has the tables.
"""

from __future__ import annotations

from typing import Any

THERE = 1e-6
"""A probability to be missing up to this is none."""

SMALLEST_FACTOR = 1e-200
"""A set whose factor becomes smaller starts anew."""

NEVER = -1.0
"""The share of a line that was never fetched."""

SHAPE = 3
"""What is said of a cache: its sets, its ways, whether a way that is empty is taken first."""


def missing_of(cache: Any, sets: int, line: int) -> float:
    """With what probability a line is not there."""
    share = cache[3 * sets + line]
    return max(0.0, 1.0 - share * cache[line % sets]) if share >= 0.0 else 1.0


def fetch(cache: Any, sets: int, ways: int, empty_first: int, line: int, missing: float) -> None:
    """A line that was missing with this probability is there now."""
    number = line % sets
    place = 3 * sets + line
    if cache[place] < 0.0:
        cache[2 * sets + number] += 1.0
    taken = missing
    if empty_first:
        filled = cache[sets + number]
        taken = missing - min(missing, ways - filled)
        cache[sets + number] = filled + missing - taken
    factor = cache[number]
    if taken > 0.0:
        # Of a set that is full when the line is missing the others have all ways, else each its own.
        factor *= 1.0 - taken / (ways - 1 + missing if cache[2 * sets + number] > ways else ways)
    if factor < SMALLEST_FACTOR:
        for other in range(3 * sets + number, len(cache), sets):
            if cache[other] > 0.0:
                cache[other] *= factor
        factor = 1.0
    cache[number] = factor
    cache[place] = 1.0 / factor if factor > 0.0 else 0.0


def visit_lines(pieces: Any, shapes: Any, private: Any, shared: Any, misses: Any) -> None:
    """Execute `pieces`, each a first line and a number of lines.

    `misses` is filled with two numbers a line: with what probability it is missing in the private cache, 0 if
    it is as good as there, and in both. A cache has of every set its factor, what of its ways is filled, and
    how many lines were ever in it; then the share of every line.
    """
    sets, ways, empty_first = shapes[0], shapes[1], shapes[2]
    far_sets, far_ways, far_empty_first = shapes[3], shapes[4], shapes[5]
    visit = 0
    for piece in range(0, len(pieces), 2):
        first = pieces[piece]
        for line in range(first, first + pieces[piece + 1]):
            missing = missing_of(private, sets, line)
            far = 0.0
            if missing > THERE:
                far = missing * missing_of(shared, far_sets, line)
                if far > THERE:
                    fetch(shared, far_sets, far_ways, far_empty_first, line, far)
                fetch(private, sets, ways, empty_first, line, missing)
            else:
                missing = 0.0
            misses[visit] = missing
            misses[visit + 1] = far
            visit += 2


PARTS = (missing_of, fetch)
"""What is called for every line."""

WHOLE = ()
"""What else is called."""

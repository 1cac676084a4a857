# SPDX-License-Identifier: Apache-2.0
"""Geometry of the Gantt chart: slices become bars on a grid of columns, each a stack of shares of time.

A row of the chart is a profile: at every instant the height is shared among categories (a step, busy, stall
words) in proportion to their cycles. Inside a column that several slices meet in, each gets its share of the
column. So the area of a colour is always its number of cycles, and a chart of a million slices has no more
bars than columns: the exact box filter of the picture one would see with unlimited resolution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from configs.values import Struct

Segments = tuple[tuple[str, float], ...]
"""(category, cycles), each category once."""


class Bar(Struct, frozen=True):
    """Cycles [start, end) of one row and how they divide into categories; less than the width means a gap."""

    start_cycles: float
    end_cycles: float
    parts: Segments

    @property
    def width_cycles(self) -> float:
        """Length on the time axis."""
        return self.end_cycles - self.start_cycles

    @property
    def is_pure(self) -> bool:
        """True if one category fills the whole bar (but for rounding of the column edges)."""
        return len(self.parts) == 1 and math.isclose(self.parts[0][1], self.width_cycles)


def overlay(bars: Iterable[Bar]) -> list[Bar]:
    """Lay overlapping bars (transfers in flight together on channels shown as one row) into one sequence.

    Where n bars overlap each gets 1/n of the height.
    """
    ordered = sorted(bars, key=lambda bar: (bar.start_cycles, bar.end_cycles, bar.parts))
    edges = sorted({edge for bar in ordered for edge in (bar.start_cycles, bar.end_cycles)})
    laid = []
    active: list[Bar] = []
    waiting = 0
    for start, end in itertools.pairwise(edges):
        active = [bar for bar in active if bar.end_cycles > start]
        while waiting < len(ordered) and ordered[waiting].start_cycles <= start:
            active.append(ordered[waiting])
            waiting += 1
        if active:
            parts: dict[str, float] = {}
            for bar in active:
                for name, cycles in bar.parts:
                    share = cycles / bar.width_cycles / len(active)
                    parts[name] = parts.get(name, 0.0) + share * (end - start)
            laid.append(Bar(start, end, tuple(parts.items())))
    return laid


def to_columns(bars: Sequence[Bar], start_cycles: float, end_cycles: float, columns: int) -> list[Bar]:
    """Put bars on a grid of `columns` equal columns of the window [start, end); cycles are conserved.

    `bars` must not overlap. Whole columns covered by one bar become one bar; a column that an edge falls into
    becomes a bar of its own with the share of each category. Touching pure bars of one category are joined.
    """
    step = (end_cycles - start_cycles) / columns
    mixed: dict[int, dict[str, float]] = {}
    gridded = []

    def share(bar: Bar, first: float, last: float) -> Segments:
        scale = (last - first) * step / bar.width_cycles
        return tuple((name, cycles * scale) for name, cycles in bar.parts)

    def mix(bar: Bar, column: int, first: float, last: float) -> None:
        sums = mixed.setdefault(column, {})
        for name, cycles in share(bar, first, last):
            sums[name] = sums.get(name, 0.0) + cycles

    for bar in bars:
        first = max((bar.start_cycles - start_cycles) / step, 0.0)
        last = min((bar.end_cycles - start_cycles) / step, float(columns))
        if last <= first:
            continue
        inner_first, inner_last = math.ceil(first), math.floor(last)
        if inner_first > inner_last:  # both edges inside one column
            mix(bar, inner_last, first, last)
            continue
        if first < inner_first:
            mix(bar, inner_first - 1, first, inner_first)
        if inner_first < inner_last:
            parts = share(bar, inner_first, inner_last)
            gridded.append(Bar(start_cycles + inner_first * step, start_cycles + inner_last * step, parts))
        if last > inner_last:
            mix(bar, inner_last, inner_last, last)
    for column, sums in mixed.items():
        left, right = start_cycles + column * step, start_cycles + (column + 1) * step
        gridded.append(Bar(left, right, tuple(sums.items())))
    return _joined(sorted(gridded, key=lambda bar: bar.start_cycles))


def profile(intervals: Sequence[tuple[float, float, float]], edges: Any) -> Any:
    """What of (start, end, amount) falls between each two of the `edges`; intervals may overlap.

    Amounts are spread evenly over their intervals, which are not empty. The slope of the running sum is
    constant between the ends of intervals, so that the sum is exact at every edge.
    """
    starts, ends, amounts = np.array(intervals, dtype=float).reshape(-1, 3).T
    rates = amounts / (ends - starts)
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    slopes = np.cumsum(np.concatenate([rates, -rates])[order])
    times = times[order]
    sums = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(times))])
    return np.maximum(np.diff(np.interp(edges, times, sums)), 0.0)


def seen(bars: Iterable[Bar], least_share: float) -> set[str]:
    """Categories that have such a share of a bar at least."""
    return {name for bar in bars for name, cycles in bar.parts if cycles >= least_share * bar.width_cycles}


def _joined(bars: Iterable[Bar]) -> list[Bar]:
    """Join touching pure bars of the same category."""
    joined: list[Bar] = []
    for bar in bars:
        last = joined[-1] if joined else None
        if (
            last
            and last.is_pure
            and bar.is_pure
            and math.isclose(last.end_cycles, bar.start_cycles)
            and last.parts[0][0] == bar.parts[0][0]
        ):
            cycles = last.parts[0][1] + bar.parts[0][1]
            joined[-1] = Bar(last.start_cycles, bar.end_cycles, ((bar.parts[0][0], cycles),))
        else:
            joined.append(bar)
    return joined

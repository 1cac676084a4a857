# SPDX-License-Identifier: Apache-2.0
"""The frame of every picture over time: title, strip of ops, panels above each other, time axis, legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from configs.errors import InputError
from configs.values import Struct
from traces.pictures.drawing import (
    POINTS_PER_INCH,
    Legend,
    Paper,
    framed,
    title_inches,
)
from traces.pictures.op_strip import Span, draw_op_strip, names_inches, op_bands, strip_inches

GAP_LINES = 0.7
"""Between panels, in lines of text: labels of their axes are centred on their ends."""
MANY_CYCLES = 2_000_000
"""Later ones are told in millions."""
TICK_INCHES = 0.08
"""Marks of an axis, and the gap to their labels."""


class TimeAxis(Struct, frozen=True):
    """Cycles [start, end) drawn over a width of paper; `left_inches` stand before it for labels."""

    start_cycles: int
    end_cycles: int
    clock_hz: int
    paper: Paper
    left_inches: float
    columns: int
    """Pixels of its width: edges of columns fall on pixels."""

    @classmethod
    def beside(
        cls,
        labels: Iterable[str],
        window: tuple[int, int],
        clock_hz: int,
        paper: Paper,
        *,
        named: bool = False,
    ) -> Self:
        """The axis beside labels of panels, which are `named` by what their axes show.

        Raises InputError for an empty window, a stopped clock and a paper that is too narrow for a chart.
        """
        start, end = window
        if not 0 <= start < end:
            raise InputError(
                f"the window from cycle {start} to {end} is not valid",
                where="window",
                cure="use 0 <= start < end, in cycles",
            )
        if clock_hz <= 0:
            what = f"the clock is {clock_hz} Hz, but must be above 0"
            raise InputError(what, where="clock.cluster_hz", cure="use e.g. 50MHz")
        widest = max(map(paper.inches, labels), default=0.0)
        left = widest + TICK_INCHES + (paper.line_inches if named else 0.0) + 0.04
        left = math.ceil(left * paper.dpi) / paper.dpi
        right = paper.inches(f"{end:,}") / 2 + 0.04
        paper.check_room(left + right)
        columns = int((paper.width_inches - left - right) * paper.dpi)
        return cls(start, end, clock_hz, paper, left, columns)

    @property
    def cycles(self) -> int:
        """Length of the window."""
        return self.end_cycles - self.start_cycles

    @property
    def inches(self) -> float:
        """Width of the window on paper."""
        return self.columns / self.paper.dpi

    @property
    def points_per_cycle(self) -> float:
        """How wide a cycle is."""
        return self.inches * POINTS_PER_INCH / self.cycles

    def clip(self, start_cycles: float, end_cycles: float) -> tuple[float, float]:
        """What of an interval is in the window."""
        return max(start_cycles, self.start_cycles), min(end_cycles, self.end_cycles)


class Panel(Struct, frozen=True):
    """A chart of a picture: its height without `head`, the line of text over it, and what draws it."""

    inches: float
    draw: Callable[[Any], None]
    head: str = ""


def draw_timeline(
    time: TimeAxis,
    panels: Sequence[Panel],
    spans: Sequence[Span],
    paths: Sequence[Path | None],
    *,
    title: str,
    legend: Legend,
    by_step: bool = False,
    counted: str = "cluster cycles",
) -> None:
    """Draw panels, the first on top, below a strip of ops (see `op_spans`), to files (see `save_figure`).

    The strip has the colours of the steps with `by_step`, else none. `counted` is the unit of time.
    """
    paper = time.paper
    bands = op_bands(spans, time.start_cycles, time.end_cycles, time.points_per_cycle, paper)
    bottom = legend.inches(paper) + 1.85 * _axis_inches(paper)
    gap = GAP_LINES * paper.line_inches
    heads = [paper.line_inches + 0.02 if panel.head else 0.0 for panel in panels]
    height = bottom + sum(panel.inches + gap for panel in panels) + sum(heads)
    strip_bottom = height
    height += strip_inches(paper) + names_inches(bands, paper) + title_inches(title, paper)
    left, width = time.left_inches / paper.width_inches, time.inches / paper.width_inches
    with framed(paper, height, paths, title, legend) as figure:
        at = bottom
        for number, (panel, head) in enumerate(reversed(list(zip(panels, heads, strict=True)))):
            axes = figure.add_axes((left, at / height, width, panel.inches / height))
            axes.set_xlim(time.start_cycles, time.end_cycles)
            panel.draw(axes)
            axes.yaxis.set_label_coords(1.2 * paper.line_inches / time.inches - left / width, 0.5)
            if head:
                axes.annotate(panel.head, (0, 1), (0, 2), "axes fraction", textcoords="offset points")
            if number:
                axes.tick_params(labelbottom=False, bottom=False)
            else:
                _time_axes(axes, time, panel.inches, counted)
            at += panel.inches + head + gap
        strip = figure.add_axes((left, strip_bottom / height, width, strip_inches(paper) / height))
        strip.set_xlim(time.start_cycles, time.end_cycles)
        draw_op_strip(strip, bands, paper, by_step=by_step)


def _axis_inches(paper: Paper) -> float:
    """An axis with the labels of its ticks and what it shows."""
    return 2 * paper.line_inches + TICK_INCHES + 0.04


def _time_axes(axes: Any, time: TimeAxis, panel_inches: float, counted: str) -> None:
    """Cycles, and below them seconds."""
    from matplotlib.ticker import MaxNLocator  # slow to import

    seconds = time.cycles / time.clock_hz
    per_second, unit = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms") if seconds < 10 else (1.0, "s")
    scale = per_second / time.clock_hz
    unit_cycles, many = (1e6, "million ") if time.end_cycles > MANY_CYCLES else (1, "")
    places = len(f"{unit_cycles / time.cycles:,.0f}") + 1 if time.cycles < unit_cycles else 1
    digits = len(f"{time.end_cycles / unit_cycles:,.0f}") + places
    most = min(max(int(time.inches / (time.paper.inches("0" * max(digits, 3)) * 1.5)), 2), 10)
    axes.set_xlabel(f"time ({many}{counted})", labelpad=0.5)
    clock = axes.secondary_xaxis(
        -_axis_inches(time.paper) / panel_inches,
        functions=(lambda cycles: cycles * scale, lambda shown: shown / scale),
    )
    clock.set_xlabel(f"time ({unit}) at {time.clock_hz / 1e6:g} MHz", labelpad=0.5)
    for axis in (axes.xaxis, clock.xaxis):
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / unit_cycles:,.10g}")
    clock.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")

# SPDX-License-Identifier: Apache-2.0
"""Panels of a run of many tiles: bandwidth of the DMA over time, alone a picture too; what the cores do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from traces.events import TRANSFER, Slice
from traces.metrics import OpMetrics
from traces.pictures.bars import Segments, profile
from traces.pictures.drawing import LEAST_SEEN_POINTS, POINTS_PER_INCH, Legend, Paper
from traces.pictures.op_strip import op_spans
from traces.pictures.palette import (
    HATCH_COLOUR,
    INWARD_STYLE,
    OFF_CHIP_STYLE,
    OUTWARD_STYLE,
    Style,
)
from traces.pictures.timeline import Panel, TimeAxis, draw_timeline
from traces.recorder import sorted_slices, transfer_direction
from traces.tracks import CORE, DMA, OUTWARD, UDMA, track_name

COLUMN_POINTS = 2.25
"""Width of what is averaged over."""
CORES_LINES, MOVING_LINES, BANDWIDTH_LINES = 9.0, 7.0, 10.0
"""Heights of panels, in lines of text; the last in a picture of the bandwidth alone."""

Array = Any


def overview_panels(
    shown: Sequence[Slice],
    time: TimeAxis,
    parts: Callable[[Slice], Segments],
    looks: Mapping[str, Style],
) -> tuple[list[Panel], list[Style], str]:
    """Panels of the bytes moved and of the cores, the looks in them, and how to read them."""
    edges = column_edges(time)
    panels, used = bandwidth_panels(shown, time)
    cores = [event for event in shown if track_name(event.track).family == CORE]
    intervals: dict[str, list[tuple[float, float, float]]] = {}
    for event in cores:
        for name, cycles in parts(event):
            intervals.setdefault(name, []).append((event.start_cycles, event.end_cycles, cycles))
    stacks = {name: profile(intervals[name], edges) / np.diff(edges) for name in looks if name in intervals}
    count = len({event.track for event in cores})

    def draw(axes: Any) -> None:
        draw_stacks(axes, edges, stacks, looks)
        axes.set_ylim(0, count)
        axes.set_yticks(sorted({0, count // 2, count}))
        axes.set_ylabel("cores")

    inches = CORES_LINES * time.paper.line_inches
    panels.append(Panel(inches, draw))
    named = seen_stacks(stacks, count, inches)
    averaged = time.cycles / (len(edges) - 1)
    note = f"averaged over {averaged:,.0f} cycles; a narrower window shows tiles and single cores"
    return panels, [*(looks[name] for name in named), *used], note


def bandwidth_panels(
    shown: Iterable[Slice],
    time: TimeAxis,
    peaks: Mapping[str, float] | None = None,
    lines: float = MOVING_LINES,
) -> tuple[list[Panel], list[Style]]:
    """Bytes per cycle of the uDMA, if it moves some, and of the DMA: into L1 upwards, out of it downwards.

    `peaks` are those of ``dma``, each direction, and ``l3``, drawn as dotted lines.
    """
    edges, peaks = column_edges(time), peaks or {}
    moved: dict[str, list[tuple[float, float, float]]] = {}
    for event in shown:
        name = track_name(event.track).family
        if event.kind == TRANSFER and name in (DMA, UDMA):
            direction = OUTWARD if name == DMA and transfer_direction(event) == OUTWARD else ""
            moved.setdefault(name + direction, []).append((event.start_cycles, event.end_cycles, event.bytes))
    rates = {name: profile(transfers, edges) / np.diff(edges) for name, transfers in moved.items()}
    panels, used = [], []
    for name, label, inward in ((UDMA, "L3", OFF_CHIP_STYLE), (DMA, "DMA", INWARD_STYLE)):
        outward = rates.get(name + OUTWARD)
        both = {"in": rates.get(name), "out": outward}
        if all(rate is None for rate in both.values()):
            if name == UDMA:
                continue
            both["in"] = np.zeros(len(edges) - 1)
        styles = {"in": inward, "out": OUTWARD_STYLE}
        used += [styles[key] for key, rate in both.items() if rate is not None]
        peak = peaks.get("l3" if name == UDMA else "dma", 0.0)
        panels.append(_moving_panel(label, edges, both, styles, peak, lines * time.paper.line_inches))
    return panels, used


def draw_bandwidth(
    slices: Iterable[Slice],
    ops: Sequence[OpMetrics],
    makespan_cycles: int,
    peaks: Mapping[str, float],
    clock_hz: int,
    *paths: Path | None,
    title: str = "",
    window: tuple[int, int] | None = None,
    paper: Paper | None = None,
) -> None:
    """Draw bytes per cluster cycle over time, of the run or of a window, to files of `drawing.ENDINGS`.

    `peaks` are the bytes per cycle of ``dma``, each direction, and of ``l3``. A transfer's bytes are spread
    over its time. Raises InputError for an empty window, and if a file cannot be written.
    """
    paper = paper or Paper()
    time = TimeAxis.beside(("8.888",), window or (0, makespan_cycles), clock_hz, paper, named=True)
    start, end = time.start_cycles, time.end_cycles
    shown = [e for e in sorted_slices(slices) if e.start_cycles < end and e.end_cycles > start]
    panels, looks = bandwidth_panels(shown, time, peaks, BANDWIDTH_LINES)
    limits = "; dotted: peak bandwidth" if peaks else ""
    legend = Legend(looks, f"up: into L1, down: out of L1{limits}")
    draw_timeline(time, panels, op_spans(ops, joined=True), paths, title=title, legend=legend)


def _moving_panel(
    label: str,
    edges: Array,
    rates: Mapping[str, Array | None],
    styles: Mapping[str, Style],
    peak: float,
    inches: float,
) -> Panel:
    def draw(axes: Any) -> None:
        highest = max(peak, *(float(rate.max()) for rate in rates.values() if rate is not None), 1e-9)
        for key, sign in (("in", 1), ("out", -1)):
            rate = rates[key]
            if rate is None:
                continue
            fill(axes, edges, np.zeros_like(rate), sign * rate, styles[key])
            if peak:
                axes.axhline(sign * peak, color="black", linewidth=0.7, linestyle=":")
        lowest = -highest if rates["out"] is not None else 0.0
        axes.set_ylim(1.05 * lowest, 1.05 * highest)
        axes.axhline(0, color="black", linewidth=0.5)
        ticks = sorted({lowest, 0.0, highest})
        axes.set_yticks(ticks, [f"{abs(tick):.3g}" for tick in ticks])
        axes.set_ylabel(f"{label} (B/cycle)")

    return Panel(inches, draw)


def column_edges(time: TimeAxis) -> Array:
    """Edges of the columns that are averaged over, on pixels."""
    pixels = round(COLUMN_POINTS * time.paper.dpi / POINTS_PER_INCH)
    return np.linspace(time.start_cycles, time.end_cycles, max(time.columns // pixels, 1) + 1)


def seen_stacks(stacks: Mapping[str, Array], top: float, inches: float) -> list[str]:
    """Those of some stacks that are high enough somewhere to be seen, on a panel from 0 to `top`."""
    least = LEAST_SEEN_POINTS / (inches * POINTS_PER_INCH) * top
    return [name for name, values in stacks.items() if np.max(values, initial=0.0) >= least]


def draw_stacks(axes: Any, edges: Array, stacks: Mapping[str, Array], looks: Mapping[str, Style]) -> None:
    """Draw values per column on top of each other, the first at the bottom."""
    base = np.zeros(len(edges) - 1)
    for name, values in stacks.items():
        fill(axes, edges, base, base + values, looks[name])
        base = base + values


def fill(axes: Any, edges: Array, low: Array, high: Array, look: Style) -> None:
    """Fill columns between two values each."""
    axes.fill_between(
        edges,
        np.append(low, low[-1:]),
        np.append(high, high[-1:]),
        step="post",
        facecolor=look.colour,
        hatch=look.hatch or None,
        edgecolor=HATCH_COLOUR if look.hatch else "none",
        linewidth=0.0,
    )

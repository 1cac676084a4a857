# SPDX-License-Identifier: Apache-2.0
"""The Gantt chart of a run: DMA and cores as rows, time as the axis, ops named along the top."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from configs.errors import InputError
from traces.events import COMPUTE, STALLS, TRANSFER, Slice
from traces.metrics import OpMetrics, measure, slice_parts
from traces.pictures.bars import Bar, Segments, overlay, to_columns
from traces.pictures.drawing import (
    DPI,
    POINTS_PER_INCH,
    RC,
    draw_legend,
    empty_figure,
    save_figure,
    text_points,
)
from traces.pictures.op_strip import STRIP_INCHES, draw_op_strip, names_inches, op_bands
from traces.pictures.palette import MOVING, STALL_ORDER, STEP_ORDER, family, ink_on, mixed_colour, style
from traces.recorder import sorted_slices, transfer_direction
from traces.tracks import CORE, DMA, UDMA, track_name

ColourBy = Literal["step", "stall"]

WIDTH_INCHES = 11.0
LEFT_INCHES = 0.84
PLOT_PIXELS = 1560
"""Width of the plot area; the edges of columns fall on pixels."""
COARSE_PIXELS = 10
"""Column width of an overview by stalls: each column averages over tiles, and the row is a profile."""
CLOSE_UP_PIXELS = 30
"""Median width of a compute slice from which a chart by stalls is a close-up, with exact edges."""
MAX_VECTOR_BARS = 4000
"""Charts with more bars are embedded as an image in the SVG, to keep the file small."""
MAX_BAR_TEXTS = 400
"""Above, numbers in bars are noise, and the chart is an overview."""
ROW_INCHES = {"step": 0.27, "stall": 0.34}
BAR_HEIGHT = 0.82
BAR_FONT = 6.5
LEGEND_COLUMNS = 8

UDMA_ROW = "uDMA L3"
"""Transfers between L3 and L2, one at a time in either direction."""

_STALLS = frozenset(STALLS)


def draw_gantt(
    slices: Iterable[Slice],
    makespan_cycles: int,
    clock_hz: int,
    path_png: Path | None,
    path_svg: Path | None = None,
    *,
    colour_by: ColourBy = "step",
    title: str = "",
    ops: Sequence[OpMetrics] | None = None,
    window: tuple[int, int] | None = None,
) -> None:
    """Draw the run, or the cycles of `window`, to a PNG and an SVG file (either may be None).

    `colour_by` "step" colours compute and transfers by training step; "stall" divides the height of each bar
    into issuing and stall cycles. `ops` (default: measured from the slices) are named along the top. Equal
    input gives equal bytes. Raises InputError for an empty window, an unknown `colour_by`, a clock that is
    not positive or a file that cannot be written.
    """
    import matplotlib as mpl  # slow to import

    start, end = window or (0, makespan_cycles)
    if colour_by not in ("step", "stall"):
        raise InputError(f"a chart is coloured by step or stall, not by {colour_by!r}")
    if not 0 <= start < end:
        raise InputError(
            f"the window from cycle {start} to {end} is empty", cure="give start < end, in cycles"
        )
    if clock_hz <= 0:
        raise InputError(f"the cluster clock must be positive, not {clock_hz} Hz")
    ordered = sorted_slices(slices)
    if ops is None:
        ops = measure(ordered, makespan_cycles).ops
    core_pixels = 1 if colour_by == "step" else _stall_column_pixels(ordered, (start, end))
    rows = {
        label: to_columns(row, start, end, PLOT_PIXELS // (core_pixels if label.startswith("core") else 1))
        for label, row in chart_rows(ordered, colour_by).items()
    }
    bands = op_bands(ops, (start, end), PLOT_PIXELS / DPI)
    used = _categories(rows, colour_by)

    legend_inches = 0.32 + 0.15 * math.ceil(len(used) / LEGEND_COLUMNS)
    top_inches = names_inches(bands) + (0.34 if title else 0.1)
    rows_inches = ROW_INCHES[colour_by] * max(len(rows), 2)
    bottom_inches = legend_inches + 0.66
    height = bottom_inches + rows_inches + 0.05 + STRIP_INCHES + top_inches
    left, width = LEFT_INCHES / WIDTH_INCHES, PLOT_PIXELS / DPI / WIDTH_INCHES
    with mpl.rc_context(RC):
        figure = empty_figure(WIDTH_INCHES, height)
        chart = figure.add_axes((left, bottom_inches / height, width, rows_inches / height))
        strip_bottom = (bottom_inches + rows_inches + 0.05) / height
        strip = figure.add_axes((left, strip_bottom, width, STRIP_INCHES / height), sharex=chart)
        _draw_rows(chart, rows, used, colour_by)
        if colour_by == "step":
            _label_bars(chart, ordered, list(rows), (start, end))
        draw_op_strip(strip, bands)
        _time_axes(chart, (start, end), clock_hz, rows_inches)
        how = "colour: training step    grey: the core waits or manages    (slices within a pixel are mixed)"
        if colour_by == "stall":
            averaged = f", averaged over {(end - start) * core_pixels / PLOT_PIXELS:,.0f} cycles"
            how = f"height of a colour: its share of the cycles{averaged if core_pixels > 1 else ''}"
        draw_legend(figure, [style(word) for word in used], LEGEND_COLUMNS, 0.06 / height, how)
        if title:
            figure.text(left, 1 - 0.07 / height, title, va="top", ha="left", fontsize=10, fontweight="bold")
        save_figure(figure, path_png, path_svg)


def chart_rows(ordered: Iterable[Slice], colour_by: ColourBy) -> dict[str, list[Bar]]:
    """Bars per row of the chart, top row first: uDMA (L3 and L2), DMA in, DMA out, core 0, core 1, ...

    DMA channels of one direction share a row; without a transfer there is none. Other tracks are left to
    Perfetto.
    """
    rows: dict[str, list[Bar]] = {}
    order: dict[str, tuple[int, int]] = {}
    for event in ordered:
        label = _row_label(event)
        if event.duration_cycles and label:
            bar = Bar(event.start_cycles, event.end_cycles, _parts(event, colour_by))
            rows.setdefault(label, []).append(bar)
            rank = {UDMA_ROW: 0, "DMA in": 1, "DMA out": 2}.get(label, 3)
            name = track_name(event.track)
            order[label] = (4, name.index) if name.family == CORE else (rank, 0)
    return {
        label: overlay(rows[label]) if _moves_bytes(label) else rows[label]
        for label in sorted(rows, key=lambda label: order[label])
    }


def _moves_bytes(label: str) -> bool:
    """Whether a row is that of a DMA."""
    return label == UDMA_ROW or label.startswith("DMA")


def _stall_column_pixels(ordered: Iterable[Slice], window: tuple[int, int]) -> int:
    """Fine columns where compute slices are wide in this window, else coarse ones."""
    start, end = window
    widths = sorted(
        event.duration_cycles
        for event in ordered
        if event.kind == COMPUTE and event.start_cycles < end and event.end_cycles > start
    )
    median_cycles = widths[len(widths) // 2] if widths else 0
    return 1 if median_cycles * PLOT_PIXELS >= CLOSE_UP_PIXELS * (end - start) else COARSE_PIXELS


def _row_label(event: Slice) -> str:
    name = track_name(event.track)
    if name.family == CORE:
        return name.label
    if name.family == DMA and event.kind == TRANSFER:
        return f"DMA {transfer_direction(event)}".rstrip()
    if name.family == UDMA and event.kind == TRANSFER:
        return UDMA_ROW
    return ""


def _parts(event: Slice, colour_by: ColourBy) -> Segments:
    if event.kind in _STALLS:
        return ((event.kind, event.duration_cycles),)
    if colour_by == "step":
        return ((family(event.work.step), event.duration_cycles),)
    if event.kind == COMPUTE:
        return tuple((word, cycles) for word, cycles in slice_parts(event) if cycles)
    return ((MOVING, event.duration_cycles),)


def _categories(rows: Mapping[str, Sequence[Bar]], colour_by: ColourBy) -> list[str]:
    found = {name for bars in rows.values() for bar in bars for name, _ in bar.parts}
    return [name for name in (STEP_ORDER if colour_by == "step" else STALL_ORDER) if name in found]


def _draw_rows(
    chart: Any, rows: Mapping[str, Sequence[Bar]], used: Sequence[str], colour_by: ColourBy
) -> None:
    """Draw all bars: pure ones and stacks as one collection per category, mixed pixels as a mean colour."""
    from matplotlib.collections import PolyCollection

    rank = {name: index for index, name in enumerate(used)}
    boxes: dict[str, list[Any]] = {name: [] for name in used}
    mixed: list[Any] = []
    mixed_colours: list[tuple[float, float, float]] = []
    for row, (label, bars) in enumerate(rows.items()):
        top, bottom = row - BAR_HEIGHT / 2, row + BAR_HEIGHT / 2  # y points down: core 0 is above core 1
        for bar in bars:
            if not bar.is_pure and (colour_by == "step" or _moves_bytes(label)):
                mixed.append(_box(bar, bottom, top))
                mixed_colours.append(mixed_colour(bar.parts, bar.width_cycles))
                continue
            base = bottom
            for name, cycles in sorted(bar.parts, key=lambda part: rank[part[0]]):
                height = BAR_HEIGHT * cycles / bar.width_cycles
                boxes[name].append(_box(bar, base, base - height))
                base -= height
    rasterise = len(mixed) + sum(len(found) for found in boxes.values()) > MAX_VECTOR_BARS
    plain: dict[str, Any] = {"linewidth": 0.0, "antialiased": False, "rasterized": rasterise}
    for name in used:
        look = style(name)
        edge = "#8A8A8A" if look.hatch else "none"
        chart.add_collection(
            PolyCollection(
                boxes[name], facecolor=look.colour, hatch=look.hatch or None, edgecolor=edge, **plain
            )
        )
    if mixed:
        chart.add_collection(PolyCollection(mixed, facecolors=mixed_colours, edgecolor="none", **plain))
    chart.set_ylim(max(len(rows), 2) - 0.5, -0.5)
    chart.set_yticks(range(len(rows)), list(rows))
    chart.tick_params(axis="y", length=0)
    chart.spines["left"].set_visible(False)
    dma_rows = sum(map(_moves_bytes, rows))
    if 0 < dma_rows < len(rows):
        chart.axhline(dma_rows - 0.5, color="black", linewidth=0.5)


def _box(bar: Bar, bottom: float, top: float) -> list[tuple[float, float]]:
    left, right = bar.start_cycles, bar.end_cycles
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def _label_bars(chart: Any, ordered: Iterable[Slice], rows: Sequence[str], window: tuple[int, int]) -> None:
    """In a close-up, write tile numbers and kernel or buffer names into the bars wide enough for them."""
    start, end = window
    points_per_cycle = PLOT_PIXELS / DPI * POINTS_PER_INCH / (end - start)
    texts = []
    for event in ordered:
        left, right = max(event.start_cycles, start), min(event.end_cycles, end)
        if right <= left or event.kind not in (COMPUTE, TRANSFER):
            continue
        number = f"{event.work.tile}" if event.work.tile >= 0 else ""
        tile = f"tile {number}" if number else ""
        choices = (f"{tile} {event.work.what}".strip(), tile, number)
        room_points = (right - left) * points_per_cycle - 3
        text = next((choice for choice in choices if text_points(choice, BAR_FONT) < room_points), "")
        label = _row_label(event)
        if text and label:
            texts.append(((left + right) / 2, rows.index(label), text, event.work.step))
    if len(texts) > MAX_BAR_TEXTS:
        return
    for x, y, text, step in texts:
        chart.text(x, y, text, ha="center", va="center", fontsize=BAR_FONT, color=ink_on(step), clip_on=True)


def _time_axes(chart: Any, window: tuple[int, int], clock_hz: int, rows_inches: float) -> None:
    start, end = window
    chart.set_xlim(start, end)
    chart.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    chart.set_xlabel("time [cluster cycles]", labelpad=0.5)
    per_second, unit = (1e6, "µs") if (end - start) / clock_hz < 1e-3 else (1e3, "ms")
    scale = per_second / clock_hz
    clock = chart.secondary_xaxis(
        -0.38 / rows_inches, functions=(lambda cycles: cycles * scale, lambda shown: shown / scale)
    )
    clock.set_xlabel(f"time [{unit}] at {clock_hz / 1e6:g} MHz", labelpad=0.5)

# SPDX-License-Identifier: Apache-2.0
"""The Gantt chart of a run: DMA and cores as rows, time as the axis, ops named along the top.

Where tiles are too thin to be told apart, rows would be as many equal bands: then the chart is an overview,
bandwidth of the DMA and what the cores do together (`traces.pictures.overview`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from configs.errors import InputError
from traces.events import COMPUTE, STALLS, TRANSFER, Slice
from traces.metrics import OpMetrics, measure
from traces.parts import slice_parts
from traces.pictures.bars import Bar, Segments, overlay, seen, to_columns
from traces.pictures.drawing import (
    LEAST_SEEN_POINTS,
    POINTS_PER_INCH,
    Legend,
    Paper,
    boxes_path,
    name_rows,
    text_points,
)
from traces.pictures.op_strip import op_spans
from traces.pictures.overview import overview_panels
from traces.pictures.palette import (
    HATCH_COLOUR,
    KERNEL_LOOKS,
    MOVING,
    MOVING_STYLE,
    OTHER_KERNELS,
    STALL_ORDER,
    STALL_STYLES,
    STEP_ORDER,
    Style,
    family,
    mixed_colour,
    style,
)
from traces.pictures.timeline import Panel, TimeAxis, draw_timeline
from traces.recorder import sorted_slices, transfer_direction
from traces.totals import summed
from traces.tracks import CORE, DMA, UDMA, track_name

ColourBy = Literal["step", "stall", "kernel"]

COARSE_POINTS = 4.5
"""Column width of rows by stalls: each column averages over tiles, and the row is a profile."""
CLOSE_UP_POINTS = 13.5
"""Median width of a compute slice from which rows by stalls have exact edges."""
OVERVIEW_POINTS = 1.5
"""Median width of a compute slice below which a chart is an overview."""
MAX_VECTOR_BARS = 4000
"""Charts with more bars are embedded as an image in the SVG or PDF, to keep the file small."""
MAX_BAR_TEXTS = 400
"""Above, numbers in bars are noise."""
ROW_LINES = {"step": 1.8, "kernel": 1.8, "stall": 2.3}
"""Height of a row, in lines of text."""
BAR_HEIGHT = 0.82
HALF = 0.5
"""Of a column that several categories mix in; what nowhere has as much is no colour that is seen."""

UDMA_ROW = "uDMA L3"
"""Transfers between L3 and L2, one at a time in either direction."""

_STALLS = frozenset(STALLS)


def draw_gantt(
    slices: Iterable[Slice],
    makespan_cycles: int,
    clock_hz: int,
    *paths: Path | None,
    colour_by: ColourBy | None = None,
    title: str = "",
    ops: Sequence[OpMetrics] | None = None,
    window: tuple[int, int] | None = None,
    paper: Paper | None = None,
) -> None:
    """Draw the run, or the cycles of `window`, to files of `traces.pictures.drawing.ENDINGS`.

    `colour_by` "step" colours compute and transfers by training step, "kernel" compute by kernel; "stall"
    divides the height of each bar into issuing and stall cycles. If not given, a part of the run is coloured
    by kernel unless it is an overview, the whole by step. `ops` (default: measured from the slices) are named
    along the top. Equal input gives equal bytes. Raises InputError for an empty window, an unknown
    `colour_by`, a clock that is not positive, a paper too narrow and a file that cannot be written.
    """
    start, end = window or (0, makespan_cycles)
    if colour_by not in (None, "step", "stall", "kernel"):
        what = f"unknown value {colour_by!r}"
        raise InputError(what, where="colour_by", cure="use step, kernel or stall")
    ordered = sorted_slices(slices)
    if ops is None:
        ops = measure(ordered, makespan_cycles).ops
    shown = [event for event in ordered if event.start_cycles < end and event.end_cycles > start]
    labels = sorted({_row_label(event) for event in shown} - {""}) or ["core 0"]
    paper = paper or Paper()
    time = TimeAxis.beside(labels, (start, end), clock_hz, paper)
    tile_points = _median_cycles(shown) * time.points_per_cycle
    if colour_by is None:
        colour_by = "kernel" if window and tile_points >= OVERVIEW_POINTS else "step"
    looks = _looks(shown, colour_by)
    if shown and tile_points < OVERVIEW_POINTS:
        time = TimeAxis.beside(("8.88",), (start, end), clock_hz, paper, named=True)
        panels, used, note = overview_panels(
            shown, time, partial(_parts, colour_by=colour_by, looks=looks), looks
        )
        legend = Legend(used, note)
    else:
        panel, legend = _rows_panel(shown, time, looks, colour_by, tile_points)
        panels = [panel]
    by_step, spans = colour_by == "step", op_spans(ops, joined=tile_points < OVERVIEW_POINTS)
    draw_timeline(time, panels, spans, paths, title=title, legend=legend, by_step=by_step)


def _rows_panel(
    shown: Sequence[Slice],
    time: TimeAxis,
    looks: Mapping[str, Style],
    colour_by: ColourBy,
    tile_points: float,
) -> tuple[Panel, Legend]:
    """A row per core and direction of the DMA, and what its colours mean."""
    is_coarse = colour_by == "stall" and tile_points < CLOSE_UP_POINTS
    pixels = round(COARSE_POINTS * time.paper.dpi / POINTS_PER_INCH) if is_coarse else 1
    rows = {
        label: to_columns(
            row, time.start_cycles, time.end_cycles, time.columns // (1 if _moves_bytes(label) else pixels)
        )
        for label, row in chart_rows(shown, colour_by, looks).items()
    }
    shown_names = {name for bars in rows.values() for bar in bars for name, _ in bar.parts}
    used = {name: look for name, look in looks.items() if name in shown_names}

    def draw(axes: Any) -> None:
        _draw_rows(axes, rows, used, stacked=colour_by == "stall")
        if colour_by != "stall":
            _label_bars(axes, shown, list(rows), time, used, colour_by)

    if colour_by == "stall":
        averaged = f", averaged over {time.cycles * pixels / time.columns:,.0f} cycles" if is_coarse else ""
        note = f"height of a colour: share of the cycles{averaged}"
    else:
        what = "training step" if colour_by == "step" else "kernel"
        note = f"colour: {what}; grey: waiting or managing; colours of slices within a pixel are mixed"
    row_inches = ROW_LINES[colour_by] * time.paper.line_inches
    least_share = LEAST_SEEN_POINTS / (BAR_HEIGHT * row_inches * POINTS_PER_INCH)
    every_bar = itertools.chain.from_iterable(rows.values())
    names = seen(every_bar, least_share if colour_by == "stall" else HALF)
    legend = Legend([look for name, look in used.items() if name in names], note)
    return Panel(row_inches * max(len(rows), 2), draw), legend


def _looks(shown: Iterable[Slice], colour_by: ColourBy) -> dict[str, Style]:
    """Looks of all categories there may be, in the order of stacks and legend."""
    if colour_by != "kernel":
        return {name: style(name) for name in (STEP_ORDER if colour_by == "step" else STALL_ORDER)}
    cycles = summed((event.work.what, event.duration_cycles) for event in shown if event.kind == COMPUTE)
    largest = sorted(cycles, key=lambda name: (-cycles[name], name))[: len(KERNEL_LOOKS)]
    kernels = {
        f"kernel {name}": Style(colour, name or "other work")
        for name, colour in zip(largest, KERNEL_LOOKS, strict=False)
    }
    return {**kernels, OTHER_KERNELS.name: OTHER_KERNELS, MOVING: MOVING_STYLE, **STALL_STYLES}


def chart_rows(
    ordered: Iterable[Slice], colour_by: ColourBy, looks: Mapping[str, Style] | None = None
) -> dict[str, list[Bar]]:
    """Bars per row of the chart, top row first: uDMA (L3 and L2), DMA in, DMA out, core 0, core 1, ...

    DMA channels of one direction share a row; without a transfer there is none. Other tracks are left to
    Perfetto. A kernel without an entry in `looks` is one of the others.
    """
    rows: dict[str, list[Bar]] = {}
    order: dict[str, tuple[int, int]] = {}
    for event in ordered:
        label = _row_label(event)
        if event.duration_cycles and label:
            bar = Bar(event.start_cycles, event.end_cycles, _parts(event, colour_by, looks or {}))
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


def _median_cycles(shown: Iterable[Slice]) -> int:
    """Of the slices that compute."""
    widths = sorted(event.duration_cycles for event in shown if event.kind == COMPUTE)
    return widths[len(widths) // 2] if widths else 0


def _row_label(event: Slice) -> str:
    name = track_name(event.track)
    if name.family == CORE:
        return name.label
    if name.family == DMA and event.kind == TRANSFER:
        return f"DMA {transfer_direction(event)}".rstrip()
    if name.family == UDMA and event.kind == TRANSFER:
        return UDMA_ROW
    return ""


def _parts(event: Slice, colour_by: ColourBy, looks: Mapping[str, Style]) -> Segments:
    if event.kind in _STALLS:
        return ((event.kind, event.duration_cycles),)
    if colour_by == "stall" and event.kind == COMPUTE:
        return tuple((word, cycles) for word, cycles in slice_parts(event) if cycles)
    return ((_category(event, colour_by, looks), event.duration_cycles),)


def _category(event: Slice, colour_by: ColourBy, looks: Mapping[str, Style]) -> str:
    """What the colour of a slice that computes or moves bytes stands for."""
    if colour_by == "step":
        return family(event.work.step)
    if event.kind != COMPUTE:
        return MOVING
    name = f"kernel {event.work.what}"
    return name if name in looks else OTHER_KERNELS.name


def _draw_rows(
    chart: Any, rows: Mapping[str, Sequence[Bar]], used: Mapping[str, Style], *, stacked: bool
) -> None:
    """Draw all bars: pure ones and stacks as one collection per category, mixed pixels as a mean colour."""
    from matplotlib.collections import PathCollection, PolyCollection

    rank = {name: index for index, name in enumerate(used)}
    boxes: dict[str, list[Any]] = {name: [] for name in used}
    mixed: list[Any] = []
    mixed_colours: list[tuple[float, float, float]] = []
    for row, (label, bars) in enumerate(rows.items()):
        top, bottom = row - BAR_HEIGHT / 2, row + BAR_HEIGHT / 2  # y points down: core 0 is above core 1
        for bar in bars:
            if not bar.is_pure and (not stacked or _moves_bytes(label)):
                mixed.append(_box(bar, bottom, top))
                mixed_colours.append(mixed_colour(bar.parts, bar.width_cycles, used.__getitem__))
                continue
            base = bottom
            for name, cycles in sorted(bar.parts, key=lambda part: rank[part[0]]):
                height = BAR_HEIGHT * cycles / bar.width_cycles
                boxes[name].append(_box(bar, base, base - height))
                base -= height
    rasterise = len(mixed) + sum(len(rectangles) for rectangles in boxes.values()) > MAX_VECTOR_BARS
    plain: dict[str, Any] = {"linewidth": 0.0, "antialiased": False, "rasterized": rasterise}
    for name, look in used.items():
        edge = HATCH_COLOUR if look.hatch else "none"
        # One path, as a hatch takes as long for a bar as for all of them.
        path = boxes_path(boxes[name])
        chart.add_collection(
            PathCollection([path], facecolor=look.colour, hatch=look.hatch or None, edgecolor=edge, **plain)
        )
    if mixed:
        chart.add_collection(PolyCollection(mixed, facecolors=mixed_colours, edgecolor="none", **plain))
    name_rows(chart, list(rows), 2)
    chart.spines["left"].set_visible(False)
    dma_rows = sum(map(_moves_bytes, rows))
    if 0 < dma_rows < len(rows):
        chart.axhline(dma_rows - 0.5, color="black", linewidth=0.5)


def _box(bar: Bar, bottom: float, top: float) -> list[tuple[float, float]]:
    left, right = bar.start_cycles, bar.end_cycles
    return [(left, bottom), (right, bottom), (right, top), (left, top), (left, bottom)]


def _label_bars(
    chart: Any,
    shown: Iterable[Slice],
    rows: Sequence[str],
    time: TimeAxis,
    looks: Mapping[str, Style],
    colour_by: ColourBy,
) -> None:
    """In a close-up, write tile numbers and kernel or buffer names into the bars wide enough for them."""
    font = time.paper.font_points
    texts = []
    for event in shown:
        left, right = time.clip(event.start_cycles, event.end_cycles)
        if event.kind not in (COMPUTE, TRANSFER):
            continue
        number = f"{event.work.tile}" if event.work.tile >= 0 else ""
        tile = f"tile {number}" if number else ""
        choices = (f"{tile} {event.work.what}".strip(), tile, number)
        room_points = (right - left) * time.points_per_cycle - 3
        text = next((choice for choice in choices if text_points(choice, font) < room_points), "")
        label = _row_label(event)
        if text and label:
            ink = looks[_category(event, colour_by, looks)].ink
            texts.append(((left + right) / 2, rows.index(label), text, ink))
    if len(texts) > MAX_BAR_TEXTS:
        return
    for x, y, text, ink in texts:
        chart.text(x, y, text, ha="center", va="center_baseline", fontsize=font, color=ink, clip_on=True)

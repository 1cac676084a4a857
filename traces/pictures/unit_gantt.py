# SPDX-License-Identifier: Apache-2.0
"""The Gantt chart of accelerator units: a row per unit, what it does or waits for, layers along the top."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import InputError
from traces.causes import BUSY
from traces.events import COMPUTE, STALLS, Slice
from traces.pictures.bars import Bar, to_columns
from traces.pictures.drawing import (
    DPI,
    POINTS_PER_INCH,
    RC,
    draw_legend,
    empty_figure,
    save_figure,
    text_points,
)
from traces.pictures.palette import Style, mixed_colour, style
from traces.recorder import sorted_slices

WIDTH_INCHES = 11.0
LEFT_INCHES = 0.84
PLOT_PIXELS = 1560
ROW_INCHES = 0.27
STRIP_INCHES = 0.2
BAR_HEIGHT = 0.82
LAYER_FONT = 6.5
SHADES = ("#EDEDED", "#D3D3D3")
"""Of neighbouring layers on the strip."""

LOOKS = {
    BUSY: Style("#0072B2", "products"),
    "offload": Style("#E69F00", "registers, command, interrupt"),
    "load_use": Style("#CC79A7", "wait for results in the pipeline"),
    "dma_wait": Style("#009E73", "host fills memories"),
    "barrier": Style("#B5B5B5", "wait for other units"),
    "idle": Style("#F3F3F3", "nothing left to do"),
}
"""What a unit does, in the order of the legend: words of `traces.events.STALLS` as units mean them."""


def draw_unit_gantt(
    slices: Iterable[Slice],
    layers: Sequence[tuple[str, int]],
    makespan_cycles: int,
    clock_hz: int,
    path_png: Path | None,
    path_svg: Path | None = None,
    *,
    title: str = "",
) -> None:
    """Draw all units to a PNG and an SVG file (either may be None); `layers` are (name, end in cycles).

    Equal input gives equal bytes. Raises InputError if there is no cycle to draw or a file cannot be written.
    """
    import matplotlib as mpl  # slow to import

    if makespan_cycles < 1:
        raise InputError("a chart needs a cycle at least")
    rows = {
        label: to_columns(bars, 0, makespan_cycles, PLOT_PIXELS) for label, bars in unit_rows(slices).items()
    }
    used = [
        word
        for word in LOOKS
        if any(name == word for row in rows.values() for bar in row for name, _ in bar.parts)
    ]
    rows_inches = ROW_INCHES * max(len(rows), 2)
    top_inches, bottom_inches = 0.34 if title else 0.1, 1.0
    height = bottom_inches + rows_inches + 0.05 + STRIP_INCHES + top_inches
    left, width = LEFT_INCHES / WIDTH_INCHES, PLOT_PIXELS / DPI / WIDTH_INCHES
    with mpl.rc_context(RC):
        figure = empty_figure(WIDTH_INCHES, height)
        chart = figure.add_axes((left, bottom_inches / height, width, rows_inches / height))
        strip_bottom = (bottom_inches + rows_inches + 0.05) / height
        strip = figure.add_axes((left, strip_bottom, width, STRIP_INCHES / height), sharex=chart)
        _draw_rows(chart, rows)
        _draw_layers(strip, layers, makespan_cycles)
        _time_axes(chart, makespan_cycles, clock_hz, rows_inches)
        draw_legend(
            figure,
            [LOOKS[word] for word in used],
            len(used),
            0.06 / height,
            "(what meets within a pixel is mixed)",
        )
        if title:
            figure.text(left, 1 - 0.07 / height, title, va="top", ha="left", fontsize=10, fontweight="bold")
        save_figure(figure, path_png, path_svg)


def unit_rows(slices: Iterable[Slice]) -> dict[str, list[Bar]]:
    """Bars per unit (tracks ending in ``mvu0``, ``mvu1``, ...), in order of the units."""
    rows: dict[str, list[Bar]] = {}
    for event in sorted_slices(slices):
        name = event.track.rpartition(".")[2]
        if not name.startswith("mvu") or event.kind not in (COMPUTE, *STALLS) or not event.duration_cycles:
            continue
        word = BUSY if event.kind == COMPUTE else event.kind
        bar = Bar(event.start_cycles, event.end_cycles, ((word, event.duration_cycles),))
        rows.setdefault(f"MVU {name.removeprefix('mvu')}", []).append(bar)
    return dict(sorted(rows.items()))


def _draw_rows(chart: Any, rows: Mapping[str, Sequence[Bar]]) -> None:
    from matplotlib.collections import PolyCollection

    boxes, colours = [], []
    for row, bars in enumerate(rows.values()):
        top, bottom = row - BAR_HEIGHT / 2, row + BAR_HEIGHT / 2
        for bar in bars:
            first, last = bar.start_cycles, bar.end_cycles
            boxes.append([(first, bottom), (last, bottom), (last, top), (first, top)])
            colours.append(mixed_colour(bar.parts, bar.width_cycles, _look))
    chart.add_collection(
        PolyCollection(boxes, facecolors=colours, edgecolor="none", linewidth=0.0, antialiased=False)
    )
    chart.set_ylim(max(len(rows), 2) - 0.5, -0.5)
    chart.set_yticks(range(len(rows)), list(rows))
    chart.tick_params(axis="y", length=0)
    chart.spines["left"].set_visible(False)


def _look(word: str) -> Style:
    return LOOKS.get(word) or style(word)


def _draw_layers(strip: Any, layers: Sequence[tuple[str, int]], makespan_cycles: int) -> None:
    """A shade per layer, its name where there is room."""
    points = PLOT_PIXELS / DPI * POINTS_PER_INCH / makespan_cycles
    begin = 0
    for number, (name, end) in enumerate(layers):
        strip.axvspan(begin, end, color=SHADES[number % 2], linewidth=0)
        shown = next(
            (
                text
                for text in (name, name.split(".")[0])
                if text_points(text, LAYER_FONT) < (end - begin) * points - 2
            ),
            "",
        )
        strip.text((begin + end) / 2, 0.5, shown, ha="center", va="center", fontsize=LAYER_FONT)
        begin = end
    strip.set_ylim(0, 1)
    strip.axis("off")


def _time_axes(chart: Any, makespan_cycles: int, clock_hz: int, rows_inches: float) -> None:
    chart.set_xlim(0, makespan_cycles)
    chart.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    chart.set_xlabel("time [cycles]", labelpad=0.5)
    per_second, unit = (1e6, "µs") if makespan_cycles / clock_hz < 1e-3 else (1e3, "ms")
    scale = per_second / clock_hz
    clock = chart.secondary_xaxis(
        -0.38 / rows_inches, functions=(lambda cycles: cycles * scale, lambda shown: shown / scale)
    )
    clock.set_xlabel(f"time [{unit}] at {clock_hz / 1e6:g} MHz", labelpad=0.5)

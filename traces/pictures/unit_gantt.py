# SPDX-License-Identifier: Apache-2.0
"""The Gantt chart of accelerator units: a row per unit, what it does or waits for, layers along the top."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import InputError
from traces.events import COMPUTE, STALLS, Slice
from traces.parts import BUSY
from traces.pictures.bars import Bar, seen, to_columns
from traces.pictures.drawing import Legend, Paper, name_rows
from traces.pictures.gantt import HALF
from traces.pictures.palette import BLUE, GREEN, ORANGE, PURPLE, Style, mixed_colour, style
from traces.pictures.timeline import Panel, TimeAxis, draw_timeline
from traces.recorder import sorted_slices

ROW_LINES = 1.8
"""Height of a row, in lines of text."""
BAR_HEIGHT = 0.82

LOOKS = {
    BUSY: Style(BLUE, "products"),
    "offload": Style(ORANGE, "registers, command, interrupt"),
    "load_use": Style(PURPLE, "wait for results in the pipeline"),
    "dma_wait": Style(GREEN, "host fills memories"),
    "barrier": Style("#C6C6C6", "wait for other units"),
    "idle": Style("#F7F7F7", "no work left"),
}
"""What a unit does, in the order of the legend: words of `traces.events.STALLS` as units mean them."""


def draw_unit_gantt(
    slices: Iterable[Slice],
    layers: Sequence[tuple[str, int]],
    makespan_cycles: int,
    clock_hz: int,
    *paths: Path | None,
    title: str = "",
    paper: Paper | None = None,
) -> None:
    """Draw all units to files of `drawing.ENDINGS`; `layers` are (name, end in cycles).

    Equal input gives equal bytes. Raises InputError if there is no cycle to draw or a file cannot be written.
    """
    if makespan_cycles < 1:
        raise InputError("the run took no cycles, so there is nothing to draw", cure="draw another run")
    bars_of = unit_rows(slices)
    time = TimeAxis.beside(bars_of, (0, makespan_cycles), clock_hz, paper or Paper())
    rows = {label: to_columns(bars, 0, makespan_cycles, time.columns) for label, bars in bars_of.items()}
    names = seen((bar for row in rows.values() for bar in row), HALF)
    legend = Legend([LOOKS[word] for word in LOOKS if word in names], "(colours within a pixel are mixed)")
    begins = [0, *(end for _, end in layers)]
    spans = []
    for begin, (name, end) in zip(begins, layers, strict=False):
        fits = time.paper.inches(name) < (end - begin) / time.cycles * time.inches
        spans.append((begin, end, name if fits else name.split(".")[0], ""))
    inches = ROW_LINES * time.paper.line_inches * max(len(rows), 2)
    panel = Panel(inches, lambda axes: _draw_rows(axes, rows))
    draw_timeline(time, [panel], spans, paths, title=title, legend=legend, counted="cycles")


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
            colours.append(
                mixed_colour(bar.parts, bar.width_cycles, lambda word: LOOKS.get(word) or style(word))
            )
    chart.add_collection(
        PolyCollection(boxes, facecolors=colours, edgecolor="none", linewidth=0.0, antialiased=False)
    )
    name_rows(chart, list(rows), 2)
    chart.spines["left"].set_visible(False)

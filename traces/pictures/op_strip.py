# SPDX-License-Identifier: Apache-2.0
"""The strip along the top of a chart over time: a band per op, named where there is room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from configs.values import Struct
from traces.metrics import OpMetrics
from traces.pictures.drawing import LINE, Paper, short, text_points
from traces.pictures.palette import family, ink_on, style
from traces.totals import layer_of
from traces.tracks import op_label

PLAIN = ("#FFFFFF", "#EDEDED")
"""Of neighbouring bands where colours mean something else than steps."""


class Band(Struct, frozen=True):
    """An op on the strip along the top; `placed` says how its name is written: inside, above or not."""

    start_cycles: float
    end_cycles: float
    name: str
    step: str
    placed: Literal["inside", "above", "hidden"]


def strip_inches(paper: Paper) -> float:
    """Height of the strip."""
    return 1.15 * paper.line_inches


Span = tuple[float, float, str, str]
"""Start, end, name and step of a band."""


def op_spans(ops: Iterable[OpMetrics], *, joined: bool = False) -> list[Span]:
    """Spans of the ops, none over another: a prefetch for the next op starts inside this one.

    With `joined` neighbours of one layer and step are one: steps in parts, and steps taken again and again.
    """
    previous_end = 0.0
    spans: list[Span] = []
    for op in sorted(ops, key=lambda op: (op.end_cycles, op.start_cycles)):
        left, right = max(float(op.start_cycles), previous_end), op.end_cycles
        previous_end = max(previous_end, right)
        if right <= left:
            continue
        name = op_label(op.name, op.step)
        if joined:
            name = op_label(layer_of({"name": name, "step": op.step}), op.step.partition("_")[0])
        if joined and spans and spans[-1][2] == name:
            left = spans.pop()[0]
        spans.append((left, right, name, op.step))
    return spans


def op_bands(
    spans: Iterable[Span], start_cycles: int, end_cycles: int, points_per_cycle: float, paper: Paper
) -> list[Band]:
    """Bands of a window drawn so wide, and where their names go so that none collide.

    A name goes into its band if it fits, else upright above it, widest bands first, else it is left out.
    """
    font = paper.font_points
    spans = [
        (max(left, start_cycles), min(right, end_cycles), short(name), step)
        for left, right, name, step in spans
        if min(right, end_cycles) > max(left, start_cycles)
    ]
    placed: dict[int, Literal["inside", "above", "hidden"]] = {}
    taken: list[float] = []
    for index in sorted(range(len(spans)), key=lambda i: (spans[i][0] - spans[i][1], i)):
        left, right, name, _ = spans[index]
        centre = (left + right) / 2
        cut = left == start_cycles > 0 or right == end_cycles  # the window shows only the edge of this op
        if text_points(name, font) + 3 < (right - left) * points_per_cycle:
            placed[index] = "inside"
        elif cut and (right - left) * points_per_cycle < font:
            placed[index] = "hidden"
        elif all(abs(centre - other) * points_per_cycle > LINE * font for other in taken):
            placed[index] = "above"
            taken.append(centre)
        else:
            placed[index] = "hidden"
    return [Band(*span, placed[index]) for index, span in enumerate(spans)]


def names_inches(bands: Iterable[Band], paper: Paper) -> float:
    """Room that the names above the strip need."""
    return max((paper.inches(band.name) for band in bands if band.placed == "above"), default=0.0)


def draw_op_strip(strip: Any, bands: Sequence[Band], paper: Paper, *, by_step: bool) -> None:
    """Draw the bands on axes of their own, which share the time axis of the chart below."""
    from matplotlib.collections import PolyCollection

    corners = [(band.start_cycles, band.end_cycles) for band in bands]
    colours = [
        style(family(band.step)).colour if by_step else PLAIN[number % 2] for number, band in enumerate(bands)
    ]
    strip.add_collection(
        PolyCollection(
            [[(left, 0), (right, 0), (right, 1), (left, 1)] for left, right in corners],
            facecolors=colours,
            edgecolor="white" if by_step else "#8A8A8A",
            linewidth=0.5,
        )
    )
    for band in bands:
        if band.placed == "hidden":
            continue
        inside = band.placed == "inside"
        strip.text(
            (band.start_cycles + band.end_cycles) / 2,
            0.47 if inside else 1.15,
            band.name,
            ha="center",
            va="center" if inside else "bottom",
            fontsize=paper.font_points,
            rotation=0 if inside else 90,
            color=ink_on(band.step) if inside and by_step else "black",
        )
    strip.set_ylim(0, 1)
    strip.axis("off")

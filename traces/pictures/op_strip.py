# SPDX-License-Identifier: Apache-2.0
"""The strip along the top of a chart over time: a band per op, named where there is room."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from traces.metrics import OpMetrics
from traces.pictures.drawing import POINTS_PER_INCH, text_points
from traces.pictures.palette import family, ink_on, style
from traces.tracks import op_label

STRIP_INCHES = 0.17
OP_FONT = 7.0


@dataclass(frozen=True, slots=True)
class Band:
    """An op on the strip along the top; `placed` says how its name is written: inside, above or not."""

    start_cycles: float
    end_cycles: float
    name: str
    step: str
    placed: Literal["inside", "above", "hidden"]


def op_bands(ops: Iterable[OpMetrics], window: tuple[int, int], width_inches: float) -> list[Band]:
    """Bands of the ops in a window drawn this wide, and where their names go so that none collide.

    A name goes into its band if it fits, else upright above it, widest bands first, else it is left out. A
    prefetch for the next op starts inside this one, so a band begins where the band before it ends.
    """
    start, end = window
    points_per_cycle = width_inches * POINTS_PER_INCH / (end - start)
    previous_end = 0
    spans = []
    for op in sorted(ops, key=lambda op: (op.end_cycles, op.start_cycles)):
        left, right = max(op.start_cycles, previous_end), op.end_cycles
        previous_end = max(previous_end, right)
        if min(right, end) > max(left, start):
            spans.append((max(left, start), min(right, end), op_label(op.name, op.step), op.step))
    placed: dict[int, Literal["inside", "above", "hidden"]] = {}
    taken: list[float] = []
    for index in sorted(range(len(spans)), key=lambda i: (spans[i][0] - spans[i][1], i)):
        left, right, name, _ = spans[index]
        centre = (left + right) / 2
        cut = left == start > 0 or right == end  # the window shows only the edge of this op
        if text_points(name, OP_FONT) + 3 < (right - left) * points_per_cycle:
            placed[index] = "inside"
        elif cut and (right - left) * points_per_cycle < OP_FONT:
            placed[index] = "hidden"
        elif all(abs(centre - other) * points_per_cycle > OP_FONT + 1.5 for other in taken):
            placed[index] = "above"
            taken.append(centre)
        else:
            placed[index] = "hidden"
    return [Band(*span, placed[index]) for index, span in enumerate(spans)]


def names_inches(bands: Iterable[Band]) -> float:
    """Room that the names above the strip need."""
    return (
        max((text_points(b.name, OP_FONT) for b in bands if b.placed == "above"), default=0) / POINTS_PER_INCH
    )


def draw_op_strip(strip: Any, bands: Iterable[Band]) -> None:
    """Draw the bands on axes of their own, which share the time axis of the chart below."""
    for band in bands:
        look = style(family(band.step))
        width, centre = band.end_cycles - band.start_cycles, (band.start_cycles + band.end_cycles) / 2
        strip.barh(
            0,
            width,
            1.0,
            band.start_cycles,
            align="edge",
            color=look.colour,
            edgecolor="white",
            linewidth=0.6,
        )
        if band.placed == "inside":
            ink = ink_on(band.step)
            strip.text(centre, 0.47, band.name, ha="center", va="center", fontsize=OP_FONT, color=ink)
        elif band.placed == "above":
            strip.text(centre, 1.2, band.name, ha="center", va="bottom", fontsize=OP_FONT - 0.5, rotation=90)
    strip.set_ylim(0, 1)
    strip.axis("off")

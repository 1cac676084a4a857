# SPDX-License-Identifier: Apache-2.0
"""The picture of a comparison: ops one after another, a strip each for what is compared, on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from configs.values import Struct, replace
from traces.pictures.drawing import (
    OWN_PAPER,
    POINTS_PER_INCH,
    Legend,
    Paper,
    framed,
    name_rows,
    short,
    text_points,
    title_inches,
)
from traces.pictures.palette import STEP_STYLES, family, ink_on, style

WIDTH_INCHES, FONT = 7.2, 6.5
STRIP_LINES, BAR_LINES = 7.4, 0.85
"""Heights of a strip and of a bar of a cause, in lines of text."""
OF_STRIP = 0.78
"""Height of a bar in its strip."""
LEAST_EDGED_POINTS = 1.5
"""Narrower ops would be all edge."""
LEAST_SHARE = 0.01
"""Of the longest run that a cause must take to have bars."""

_GREYS = ("#9A9A9A", "#3A3A3A", "#C9C9C9", "#6A6A6A")
"""Of runs, in the bars of causes: colours are those of steps."""


class Strip(Struct, frozen=True):
    """Ops in order, with step and cycles; `causes` are cycles per core by what they were spent on."""

    label: str
    ops: Sequence[tuple[str, str, int]]
    causes: dict[str, float]

    @property
    def cycles(self) -> int:
        """From end to end."""
        return sum(cycles for *_, cycles in self.ops)


def draw_strips(strips: Sequence[Strip], title: str, path: Path, paper: Paper | None = None) -> None:
    """Draw strips below each other, and bars of their causes if they have any. Equal input, equal bytes.

    Raises InputError if the file cannot be written, and for a paper that is too narrow.
    """
    paper = (paper or OWN_PAPER).sized(WIDTH_INCHES, FONT)
    strips = [replace(strip, label=short(strip.label)) for strip in strips]
    line_inches = paper.line_inches
    longest = max(strip.cycles for strip in strips)
    causes = list(dict.fromkeys(name for strip in strips for name in strip.causes))
    shown = [
        name for name in causes if max(strip.causes.get(name, 0) for strip in strips) >= LEAST_SHARE * longest
    ]
    used = [
        name for name in STEP_STYLES if any(family(s) == name for strip in strips for _, s, _ in strip.ops)
    ]
    legend = Legend([style(name) for name in used])
    strips_inches = STRIP_LINES * line_inches * len(strips)
    bars_inches = (BAR_LINES * len(strips) + 0.5) * line_inches * len(shown) + 0.12 if shown else 0.0
    bottom_inches = legend.inches(paper) + 2.4 * line_inches + 0.1
    height = bottom_inches + bars_inches + strips_inches + title_inches(title, paper)
    left_inches = max(map(paper.inches, [*shown, *(strip.label for strip in strips)])) + 0.1
    right_inches = max(paper.inches(f" {strip.cycles:,}") for strip in strips)
    paper.check_room(left_inches + right_inches)
    chart_inches = paper.width_inches - left_inches - right_inches
    left, width = left_inches / paper.width_inches, chart_inches / paper.width_inches
    with framed(paper, height, [path], title, legend) as figure:
        strip_bottom = (bottom_inches + bars_inches) / height
        chart = figure.add_axes((left, strip_bottom, width, strips_inches / height))
        _draw_ops(chart, strips, chart_inches * POINTS_PER_INCH / longest, paper)
        axes = chart
        if shown:
            axes = figure.add_axes(
                (left, bottom_inches / height, width, (bars_inches - 0.08) / height), sharex=chart
            )
            _draw_causes(axes, strips, shown, paper)
            chart.tick_params(axis="x", labelbottom=False)
        chart.set_xlim(0, longest)
        axes.locator_params(axis="x", nbins=max(int(chart_inches / paper.inches(f"{longest:,}") / 1.6), 2))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("cluster cycles", labelpad=1)


def _draw_ops(chart: Any, strips: Sequence[Strip], points_per_cycle: float, paper: Paper) -> None:
    """Ops that follow each other and are parts of one step of a layer have one name."""
    font = paper.font_points
    high_points = STRIP_LINES * paper.line_inches * OF_STRIP * POINTS_PER_INCH
    for row, strip in enumerate(strips):
        end = 0
        spans: dict[tuple[str, float], list[tuple[int, int]]] = {}
        for whole, group in groupby(strip.ops, _whole_step):
            parts, start = list(group), end
            for _, step, cycles in parts:
                edge = 0.3 if len(parts) == 1 else 0.1
                wide = cycles * points_per_cycle > LEAST_EDGED_POINTS
                spans.setdefault((family(step), edge if wide else 0.0), []).append((end, cycles))
                end += cycles
            name, points = parts[0][0] if len(parts) == 1 else whole, (end - start) * points_per_cycle
            across = text_points(name, font) + 2 < points
            if across or (text_points(name, font) < high_points and points > font + 2):
                look = {"fontsize": font, "rotation": 0 if across else 90, "color": ink_on(parts[0][1])}
                chart.text((start + end) / 2, row, name, ha="center", va="center", **look)
        for (step, edge), rectangles in spans.items():
            look = {
                "facecolor": style(step).colour,
                "edgecolor": "white" if edge else "none",
                "linewidth": edge,
            }
            chart.broken_barh(rectangles, (row - OF_STRIP / 2, OF_STRIP), **look)
        chart.text(end, row, f" {end:,}", va="center", fontsize=font)
    name_rows(chart, [strip.label for strip in strips])


def _whole_step(op: tuple[str, str, int]) -> str:
    """``layer.FW`` of ``layer.FW_STEP7``."""
    name, step, _ = op
    return name.removesuffix(step) + step.partition("_")[0]


def _draw_causes(axes: Any, strips: Sequence[Strip], causes: Sequence[str], paper: Paper) -> None:
    room = 0.9 / len(strips)
    for number, strip in enumerate(strips):
        places = [at + (number - (len(strips) - 1) / 2) * room for at in range(len(causes))]
        lengths = [strip.causes.get(name, 0) for name in causes]
        axes.barh(places, lengths, room * 0.9, color=_GREYS[number % len(_GREYS)], label=strip.label)
    name_rows(axes, causes)
    font = paper.font_points
    axes.legend(frameon=False, fontsize=font, loc="lower right", title="cycles per core", title_fontsize=font)

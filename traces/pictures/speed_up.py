# SPDX-License-Identifier: Apache-2.0
"""The picture of a speed-up over cores: a line per step, the whole run, and the ideal."""

from __future__ import annotations

from pathlib import Path

from traces.pictures.drawing import OWN_PAPER, Legend, Paper, framed, grid_below, title_inches
from traces.pictures.palette import BLACK, STEP_STYLES, Style, family
from traces.pictures.roofline import MARKERS
from traces.speed_up import SpeedUp, speed_up

WIDTH_INCHES = 5.0
ASPECT = 0.7
_WHOLE = Style(BLACK, "whole run")


def draw_speed_up(speed: SpeedUp, *paths: Path | None, title: str = "", paper: Paper | None = None) -> None:
    """Draw it to files of `drawing.ENDINGS`. Raises InputError if one cannot be written."""
    paper = (paper or OWN_PAPER).sized(WIDTH_INCHES)
    steps: dict[str, tuple[int, ...]] = {}
    for name, cycles in speed.steps.items():
        before = steps.get(family(name), (0,) * len(cycles))
        steps[family(name)] = tuple(map(sum, zip(before, cycles, strict=True)))
    used = [step for step in STEP_STYLES if step in steps]
    markers = ["o", *(MARKERS[step] for step in used)]
    legend = Legend([_WHOLE, *(STEP_STYLES[step] for step in used)], "dotted: ideal", markers)
    cores = "one core" if speed.cores[0] == 1 else f"{speed.cores[0]} cores"
    title = title or f"{speed.model} on {speed.soc}: speed-up over {cores}"
    bottom_inches = legend.inches(paper) + 2.6 * paper.line_inches + 0.14
    chart_inches = ASPECT * paper.width_inches
    height = bottom_inches + chart_inches + title_inches(title, paper)
    left = (paper.inches("888") + paper.line_inches + 0.14) / paper.width_inches
    ideal = [count / speed.cores[0] for count in speed.cores]
    paper.check_room(left * paper.width_inches)
    with framed(paper, height, paths, title, legend) as figure:
        axes = figure.add_axes((left, bottom_inches / height, 0.96 - left, chart_inches / height))
        axes.plot(speed.cores, ideal, color="black", linewidth=0.8, linestyle=":")
        lines = [(STEP_STYLES[step], MARKERS[step], 1.0, steps[step]) for step in used]
        for look, marker, width, cycles in (*lines, (_WHOLE, "o", 1.8, speed.cycles)):
            gains = [float("nan") if gain is None else gain for gain in speed_up(cycles)]
            axes.plot(
                speed.cores,
                gains,
                color=look.colour,
                linewidth=width,
                marker=marker,
                markersize=0.5 * paper.font_points,
                markeredgecolor="black",
                markeredgewidth=0.4,
            )
        axes.set_xticks(speed.cores)
        axes.set_xlim(0, 1.04 * speed.cores[-1])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("cores", labelpad=1)
        axes.set_ylabel("speed-up", labelpad=1)
        grid_below(axes)

# SPDX-License-Identifier: Apache-2.0
"""The picture of an exploration: all points over two objectives, and the front."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from traces.pictures.drawing import OWN_PAPER, Legend, Paper, arranged, grid_below, number_text, settle
from traces.pictures.labels import FAR, NEAR, draw_labels
from traces.pictures.palette import Style

_POINT, _FRONT = Style("#9A9A9A", "dominated"), Style("#0072B2", "Pareto front")
ASPECT = 0.6


def draw_front(
    rows: Sequence[tuple[float, float]],
    front: Sequence[int],
    labels: Sequence[str],
    axes: tuple[str, str],
    title: str,
    *paths: Path,
    paper: Paper = OWN_PAPER,
) -> None:
    """Points (x, y), those at the positions `front` joined by a line and labelled; both axes from 0.

    A label that has no place beside its point, within the axes and off other labels and points, is left out.

    With more than two objectives a point of the front may lie behind others of it: then no line joins them.
    Raises `InputError` if a file cannot be written.
    """
    paper = paper.sized(6.4)
    chosen = set(front)
    looks = [look for look in (_POINT, _FRONT) if look is _FRONT or len(chosen) < len(rows)]
    height = ASPECT * paper.width_inches
    with arranged(paper, height, paths, title, Legend(looks, markers="oo")) as figure:
        plot = figure.add_subplot()
        rest = [row for position, row in enumerate(rows) if position not in chosen]
        plot.scatter([x for x, _ in rest], [y for _, y in rest], s=16, color=_POINT.colour)
        steps = sorted((*rows[position], labels[position]) for position in front)
        falling = all(after[1] <= before[1] for before, after in pairwise(steps))
        plot.plot(
            [x for x, _, _ in steps],
            [y for _, y, _ in steps],
            marker="o",
            markersize=4,
            linewidth=1.0 if falling else 0.0,
            drawstyle="steps-post",
            color=_FRONT.colour,
        )
        plot.set_xlabel(axes[0])
        plot.set_ylabel(axes[1])
        plot.set_xlim(left=0)
        plot.set_ylim(bottom=0)
        for axis in (plot.xaxis, plot.yaxis):
            axis.set_major_formatter(lambda value, _: number_text(value))
        grid_below(plot)
        settle(figure, paper)
        draw_labels(figure, plot, rows, steps, paper.font_points, (*NEAR, *FAR))

# SPDX-License-Identifier: Apache-2.0
"""The picture of an exploration: all points over two objectives, and the front."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from traces.pictures.drawing import LONGEST_TITLE, OWN_PAPER, Paper, drawn, grid_below, number_text, short
from traces.pictures.labels import draw_labels

_POINT, _FRONT = "#9A9A9A", "#0072B2"


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
    with drawn(6.4, 4.0, paths, dpi=paper.dpi) as figure:
        plot = figure.add_axes((0.12, 0.13, 0.84, 0.77))
        chosen = set(front)
        rest = [row for position, row in enumerate(rows) if position not in chosen]
        plot.scatter([x for x, _ in rest], [y for _, y in rest], s=16, color=_POINT, label="dominated")
        steps = sorted((*rows[position], labels[position]) for position in front)
        falling = all(after[1] <= before[1] for before, after in pairwise(steps))
        plot.plot(
            [x for x, _, _ in steps],
            [y for _, y, _ in steps],
            marker="o",
            markersize=4,
            linewidth=1.0 if falling else 0.0,
            drawstyle="steps-post",
            color=_FRONT,
            label="Pareto front",
        )
        plot.set_xlabel(axes[0])
        plot.set_ylabel(axes[1])
        plot.set_xlim(left=0)
        plot.set_ylim(bottom=0)
        for axis in (plot.xaxis, plot.yaxis):
            axis.set_major_formatter(lambda value, _: number_text(value))
        draw_labels(figure, plot, rows, steps)
        grid_below(plot)
        plot.set_title(short(paper.titled(title), LONGEST_TITLE), fontsize=8, loc="left")
        figure.legend(loc="lower right", ncols=2, frameon=False, fontsize=7)

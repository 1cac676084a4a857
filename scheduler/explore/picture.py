# SPDX-License-Identifier: Apache-2.0
"""The picture of an exploration: all points over two objectives, and the front."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from traces.drawing import RC, empty_figure, save_figure

_POINT, _FRONT = "#9A9A9A", "#0072B2"


def draw_front(
    rows: Sequence[tuple[float, float]],
    front: Sequence[int],
    labels: Sequence[str],
    axes: tuple[str, str],
    title: str,
    png: Path,
    svg: Path,
) -> None:
    """Points (x, y), those at the positions `front` joined by a line and labelled; both axes from 0.

    With more than two objectives a point of the front may lie behind others of it: then no line joins them.
    Raises `InputError` if a file cannot be written.
    """
    import matplotlib

    with matplotlib.rc_context(RC):
        figure = empty_figure(6.4, 4.0)
        plot = figure.add_axes((0.11, 0.13, 0.85, 0.77))
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
        for x, y, label in steps[:12]:
            plot.annotate(label, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=6)
        plot.set_xlabel(axes[0])
        plot.set_ylabel(axes[1])
        plot.set_xlim(left=0)
        plot.set_ylim(bottom=0)
        plot.grid(linewidth=0.3, color="#DDDDDD")
        plot.set_axisbelow(True)
        plot.set_title(title, fontsize=8, loc="left")
        plot.legend(frameon=False, fontsize=7)
        save_figure(figure, png, svg)

# SPDX-License-Identifier: Apache-2.0
"""The picture of an exploration: all points over two objectives, and the front."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from traces.pictures.drawing import (
    POINTS_PER_INCH,
    RC,
    empty_figure,
    number_text,
    save_figure,
    text_points,
)

_POINT, _FRONT = "#9A9A9A", "#0072B2"
_LABEL_POINTS = 6.0
_GAP_POINTS = 4.0
"""From the centre of a point to its label."""

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""

Corner = tuple[int, int]
"""Right (1) or left (-1) of a point, above (1) or below (-1) it."""

_CORNERS: tuple[Corner, ...] = ((1, 1), (-1, 1), (1, -1), (-1, -1))


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

    A label that has no place beside its point, within the axes and off other labels and points, is left out.

    With more than two objectives a point of the front may lie behind others of it: then no line joins them.
    Raises `InputError` if a file cannot be written.
    """
    import matplotlib

    with matplotlib.rc_context(RC):
        figure = empty_figure(6.4, 4.0)
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
        _label(figure, plot, rows, steps)
        plot.grid(linewidth=0.3, color="#DDDDDD")
        plot.set_axisbelow(True)
        plot.set_title(title, fontsize=8, loc="left")
        figure.legend(loc="lower right", ncols=2, frameon=False, fontsize=7)
        save_figure(figure, png, svg)


def _label(
    figure: Any, plot: Any, rows: Sequence[tuple[float, float]], steps: Sequence[tuple[float, float, str]]
) -> None:
    """Write the labels of `steps` (x, y, label) where there is a place."""
    scale = POINTS_PER_INCH / figure.dpi
    area = (plot.bbox.x0 * scale, plot.bbox.y0 * scale, plot.bbox.x1 * scale, plot.bbox.y1 * scale)
    points = [tuple(plot.transData.transform(row) * scale) for row in rows]
    labelled = [(*(plot.transData.transform((x, y)) * scale), label) for x, y, label in steps]
    for (x, y, label), corner in zip(steps, free_corners(points, labelled, area), strict=True):
        if corner is not None:
            side, up = corner
            plot.annotate(
                label,
                (x, y),
                xytext=(side * _GAP_POINTS, up * _GAP_POINTS),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                va="bottom" if up > 0 else "top",
                fontsize=_LABEL_POINTS,
            )


def free_corners(
    points: Sequence[tuple[float, ...]], labelled: Sequence[tuple[float, float, str]], area: Box
) -> list[Corner | None]:
    """For each of `labelled` (x, y, label) a corner of its point where it is in `area` and off all others.

    None if there is no such corner. `points` (x, y) are kept free as well; all in points from the lower left.
    """
    half = _GAP_POINTS / 2
    taken: list[Box] = [(x - half, y - half, x + half, y + half) for x, y in points]
    corners: list[Corner | None] = []
    for x, y, label in labelled:
        boxes = {corner: label_box(x, y, label, corner) for corner in _CORNERS}
        free = [
            corner
            for corner, box in boxes.items()
            if area[0] <= box[0] and area[1] <= box[1] and box[2] <= area[2] and box[3] <= area[3]
            if not any(meet(box, other) for other in taken)
        ]
        corners.append(free[0] if free else None)
        taken += [boxes[corner] for corner in free[:1]]
    return corners


def label_box(x: float, y: float, label: str, corner: Corner) -> Box:
    """Where the label of a point at (x, y) is."""
    side, up = corner
    near, low = x + side * _GAP_POINTS, y + up * _GAP_POINTS
    far, high = near + side * text_points(label, _LABEL_POINTS), low + up * _LABEL_POINTS
    return min(near, far), min(low, high), max(near, far), max(low, high)


def meet(one: Box, other: Box) -> bool:
    """Whether two boxes have an area in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]

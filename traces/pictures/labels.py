# SPDX-License-Identifier: Apache-2.0
"""Labels of points: each beside its point where it covers no other label and no point."""

from __future__ import annotations

from collections.abc import Sequence
from math import copysign
from typing import Any

from traces.pictures.drawing import POINTS_PER_INCH, text_points

_GAP_POINTS = 4.0
"""From the centre of a point to its label."""

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""

Corner = tuple[int, int]
"""Gaps right (1) or left (-1) of a point, and above (1) or below (-1) it."""

NEAR: tuple[Corner, ...] = ((1, 1), (-1, 1), (1, -1), (-1, -1))
FAR: tuple[Corner, ...] = tuple(
    (side * across, up * along) for along in (3, 6, 9, 12) for across in (1, 4) for side, up in NEAR
)
"""Corners further away, from which a line leads to the point."""


def draw_labels(
    figure: Any,
    plot: Any,
    rows: Sequence[tuple[float, float]],
    steps: Sequence[tuple[float, float, str]],
    font_points: float,
    corners: Sequence[Corner] = NEAR,
) -> None:
    """Write the labels of `steps` (x, y, label) where there is a place, off the points at `rows`."""
    scale = POINTS_PER_INCH / figure.dpi
    area = (plot.bbox.x0 * scale, plot.bbox.y0 * scale, plot.bbox.x1 * scale, plot.bbox.y1 * scale)
    points = [tuple(plot.transData.transform(row) * scale) for row in rows]
    labelled = [(*(plot.transData.transform((x, y)) * scale), label) for x, y, label in steps]
    for (x, y, label), corner in zip(
        steps, free_corners(points, labelled, area, font_points, corners), strict=True
    ):
        if corner is not None:
            side, up = corner
            line = {"arrowstyle": "-", "linewidth": 0.4, "color": "#6E6E6E", "shrinkA": 0, "shrinkB": 2}
            plot.annotate(
                label,
                (x, y),
                xytext=(side * _GAP_POINTS, up * _GAP_POINTS),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                va="bottom" if up > 0 else "top",
                fontsize=font_points,
                arrowprops=line if corner not in NEAR else None,
            )


def free_corners(
    points: Sequence[tuple[float, ...]],
    labelled: Sequence[tuple[float, float, str]],
    area: Box,
    font_points: float,
    corners: Sequence[Corner] = NEAR,
) -> list[Corner | None]:
    """For each of `labelled` (x, y, label) a corner of its point where it is in `area` and off all others.

    None if there is no such corner. `points` (x, y) are kept free as well; all in points from the lower left.
    """
    half = _GAP_POINTS / 2
    taken: list[Box] = [(x - half, y - half, x + half, y + half) for x, y in points]
    chosen: list[Corner | None] = []
    for x, y, label in labelled:
        boxes = {corner: label_box(x, y, label, corner, font_points) for corner in corners}
        free = [
            corner
            for corner, box in boxes.items()
            if area[0] <= box[0] and area[1] <= box[1] and box[2] <= area[2] and box[3] <= area[3]
            if not any(meet(box, other) for other in taken)
        ]
        chosen.append(free[0] if free else None)
        taken += [boxes[corner] for corner in free[:1]]
    return chosen


def label_box(x: float, y: float, label: str, corner: Corner, font_points: float) -> Box:
    """Where the label of a point at (x, y) is."""
    side, up = corner
    near, low = x + side * _GAP_POINTS, y + up * _GAP_POINTS
    far, high = near + copysign(text_points(label, font_points), side), low + copysign(font_points, up)
    return min(near, far), min(low, high), max(near, far), max(low, high)


def meet(one: Box, other: Box) -> bool:
    """Whether two boxes have an area in common."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]

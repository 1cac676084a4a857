# SPDX-License-Identifier: Apache-2.0
"""Loss and accuracy over iterations and simulated time: rows, their file, their picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from configs.errors import InputError
from traces.csv_file import AGAIN, rows_of, write_rows

if TYPE_CHECKING:
    from traces.pictures.drawing import Paper

CSV_NAME = "training.csv"
PICTURE = "training"
"""Name of the picture, without its ending."""


class CurvePoint(NamedTuple):
    """One iteration: its number from 1, simulated time at its end, mean loss, accuracy on test samples."""

    iteration: int
    seconds: float
    loss: float
    accuracy: float | None = None
    """Share of the test samples classified rightly after it; None where it was not asked."""


def write_curve(curve: Sequence[CurvePoint], path: Path) -> Path:
    """Write one row per iteration and return the path; an accuracy that was not asked is an empty cell."""
    return write_rows(path, CurvePoint._fields, curve)


def read_curve(path: Path) -> list[CurvePoint]:
    """Read what `write_curve` has written; none for a file that is not there."""
    if not path.is_file():
        return []
    points = []
    for where, row in rows_of(path, CurvePoint._fields, "the training curve"):
        try:
            accuracy = float(row["accuracy"]) if row["accuracy"] else None
            points.append(
                CurvePoint(int(row["iteration"]), float(row["seconds"]), float(row["loss"]), accuracy)
            )
        except ValueError:
            raise InputError(
                "a value of the training curve is not a number", where=where, cure=AGAIN
            ) from None
    return points


def draw_curve(curve: Sequence[CurvePoint], title: str, *paths: Path, paper: Paper | None = None) -> None:
    """Draw loss and accuracy over iterations, and over simulated time along the top."""
    from traces.pictures.drawing import OWN_PAPER, Legend, arranged
    from traces.pictures.palette import Style

    paper = (paper or OWN_PAPER).sized(6.4)
    numbers = [point.iteration for point in curve]
    losses = [point.loss for point in curve]
    window = max(1, len(curve) // 50)
    mean = f"mean of {window} iterations" if window > 1 else "loss"
    looks = [Style("#C9C9C9", "loss"), Style("#0072B2", mean)]
    with arranged(paper, 0.5 * paper.width_inches, paths, title, Legend(looks[window == 1 :])) as figure:
        plot = figure.add_subplot()
        plot.plot(numbers, losses, color=looks[0].colour, linewidth=0.6)
        means = [
            sum(losses[max(0, at + 1 - window) : at + 1]) / (at + 1 - max(0, at + 1 - window))
            for at in range(len(losses))
        ]
        plot.plot(numbers, means, color=looks[1].colour, linewidth=1.2)
        plot.set_xlabel("iteration")
        plot.set_ylabel("loss")
        plot.set_xlim(numbers[0] - 0.5, numbers[-1] + 0.5)
        plot.grid(linewidth=0.3, color="#DDDDDD")
        per_iteration = curve[-1].seconds / curve[-1].iteration
        top = plot.secondary_xaxis(
            "top", functions=(lambda n: n * per_iteration, lambda s: s / per_iteration)
        )
        top.set_xlabel("simulated time (s)")
        asked = [point for point in curve if point.accuracy is not None]
        if asked:
            right = plot.twinx()
            right.plot(
                [point.iteration for point in asked],
                [100 * (point.accuracy or 0.0) for point in asked],
                color="#D55E00",
                marker="o",
                markersize=3,
                linewidth=1.0,
            )
            right.set_ylabel("accuracy on test samples (%)", color="#D55E00")
            right.set_ylim(0, 100)
            right.spines["right"].set_visible(True)

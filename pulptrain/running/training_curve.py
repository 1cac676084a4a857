# SPDX-License-Identifier: Apache-2.0
"""Loss and accuracy over iterations and simulated time: rows, their file, their picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from configs.errors import InputError
from traces.csv_file import rows_of, write_rows

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
            raise InputError("not a number", where=where, cure="run the simulation again") from None
    return points


def draw_curve(curve: Sequence[CurvePoint], title: str, *paths: Path, paper: Paper | None = None) -> None:
    """Draw loss and accuracy over iterations, and over simulated time along the top."""
    from traces.pictures.drawing import LONGEST_TITLE, OWN_PAPER, drawn, short

    paper = paper or OWN_PAPER
    with drawn(6.4, 3.6, paths, dpi=paper.dpi) as figure:
        plot = figure.add_axes((0.1, 0.14, 0.78, 0.68))
        numbers = [point.iteration for point in curve]
        losses = [point.loss for point in curve]
        window = max(1, len(curve) // 50)
        plot.plot(numbers, losses, color="#C9C9C9", linewidth=0.6, label="loss")
        means = [
            sum(losses[max(0, at + 1 - window) : at + 1]) / (at + 1 - max(0, at + 1 - window))
            for at in range(len(losses))
        ]
        plot.plot(numbers, means, color="#0072B2", linewidth=1.2, label=f"mean of {window}")
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
        plot.legend(frameon=False, fontsize=7)
        figure.text(
            0.1, 0.985, short(paper.titled(title), LONGEST_TITLE), va="top", fontsize=9, fontweight="bold"
        )

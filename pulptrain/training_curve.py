# SPDX-License-Identifier: Apache-2.0
"""Loss and accuracy over iterations and simulated time: rows, their file, their picture."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from configs.errors import InputError
from configs.files import replacing
from traces.csv_file import rows_of

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
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(CurvePoint._fields)
        for point in curve:
            accuracy = "" if point.accuracy is None else point.accuracy
            writer.writerow([point.iteration, point.seconds, point.loss, accuracy])
    return path


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

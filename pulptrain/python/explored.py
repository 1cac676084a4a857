# SPDX-License-Identifier: Apache-2.0
"""What an exploration came to, in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from pulptrain.exploring.exploration import as_numbers
from pulptrain.exploring.exploration_report import exploration_lines
from pulptrain.python.op_result import Summarised, data_frame, text_width
from traces.text_table import Table


class Explored(Summarised, Sequence[Mapping[str, Any]]):
    """The points of an exploration in order, as in ``points.json``; `summary` is what ``--json`` prints."""

    @property
    def points(self) -> Sequence[Mapping[str, Any]]:
        """Every point: its `values`, its figures, or the `reason` that there are none."""
        points: Sequence[Mapping[str, Any]] = self.summary["points"]
        return points

    @property
    def front(self) -> list[Mapping[str, Any]]:
        """The points of the Pareto front."""
        return [point for point in self.points if point["on_front"]]

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The point with the smallest value of the first objective; None if none fits."""
        fitting = [point for point in self.points if point["reason"] is None]
        first = self.summary["objectives"][0]
        return min(fitting, key=lambda point: point[first]) if fitting else None

    def __len__(self) -> int:
        return len(self.points)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.points)

    def __getitem__(self, key: Any) -> Any:
        return self.points[key]

    def to_pandas(self) -> Any:
        """A pandas data frame: a column for every axis and figure, sizes in bytes.

        Raises `InputError` without pandas.
        """
        return data_frame(
            [
                {**as_numbers(point["values"]), **{key: point[key] for key in point if key != "values"}}
                for point in self
            ]
        )

    def save(self, folder: str | PathLike[str]) -> list[Path]:
        """Write points.json, points.csv and the pictures. Raises `InputError` for files that are not ours."""
        from pulptrain.exploring.exploration import write_exploration
        from traces.files.result_folder import EXPLORATION_FILES, prepare_folder

        return write_exploration(self.summary, prepare_folder(fspath(folder), EXPLORATION_FILES, "save"))

    def __str__(self) -> str:
        return "\n".join(exploration_lines(self.summary, text_width()))

    def __repr__(self) -> str:
        return f"Explored({self.summary['name']}: {len(self)} points, {len(self.front)} on the front)"

    def _repr_html_(self) -> str:
        heads = [*self.summary["axes"], *self.summary["objectives"]]
        rows = [
            [_cell({**point, **point["values"]}.get(head)) for head in heads]
            + ["Pareto front" if point["on_front"] else point["reason"] or ""]
            for point in self
        ]
        return Table((*heads, ""), rows).html()


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int | float) else str(value)

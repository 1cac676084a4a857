# SPDX-License-Identifier: Apache-2.0
"""What tuning, fitting, exploring and validating came to, in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.files import together, write_text
from configs.model_text import model_text
from pulptrain.exploring.exploration import as_numbers
from pulptrain.exploring.exploration_report import exploration_lines
from pulptrain.python.op_result import Summarised, data_frame, text_width
from traces.text_table import Table

if TYPE_CHECKING:
    from configs.model_file import ModelSpec
    from scheduler.tuner.tuned_schedule import TunedSchedule
    from trainlib.ir.steps import Array


class Tuned(Summarised):
    """A tuned schedule. `schedule` is what a schedule file holds, `summary` what ``tune --json`` prints."""

    def __init__(self, schedule: TunedSchedule, summary: Mapping[str, Any]) -> None:
        super().__init__(summary)
        self.schedule = schedule

    @property
    def model(self) -> str:
        """Name of the model it is for."""
        return self.schedule.model.name

    @property
    def cycles(self) -> int | None:
        """Of a whole iteration with these choices; None if the search was interrupted."""
        cycles: int | None = self.schedule.cycles
        return cycles

    @property
    def untuned_cycles(self) -> int | None:
        """Of a whole iteration without them; None if the search was interrupted."""
        value = self.summary["untuned_cycles"]
        return None if value is None else int(value)

    @property
    def speedup(self) -> float | None:
        """How many times as fast an iteration is."""
        if self.cycles is None or self.untuned_cycles is None:
            return None
        return self.untuned_cycles / self.cycles

    @property
    def choices(self) -> Sequence[Mapping[str, Any]]:
        """What was chosen for every op: kernel, variant, tile, loop order, buffering, and its cycles."""
        choices: Sequence[Mapping[str, Any]] = self.summary["choices"]
        return choices

    def to_pandas(self) -> Any:
        """A pandas data frame with a row per op. Raises `InputError` without pandas."""
        flat = ("runner_up", "tile", "loop_order")
        rows = []
        for choice in self.choices:
            row = {key: value for key, value in choice.items() if key not in flat}
            rows.append({**row, "tile": " ".join(f"{name}:{size}" for name, size in choice["tile"].items())})
        return data_frame(rows)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the schedule file, which `run(..., schedule=path)` and ``run --schedule`` read.

        Raises `InputError` for a file that is there and is no schedule.
        """
        from configs.files import check_file
        from scheduler.tuner.schedule_file import is_schedule, write_schedule

        target = check_file(fspath(path), "save", is_schedule)
        write_schedule(self.schedule, target)
        return target

    def __str__(self) -> str:
        from pulptrain.tuning.tuning_report import tuning_lines

        return "\n".join(tuning_lines(self.summary, text_width()))

    def __repr__(self) -> str:
        gain = f", {self.speedup:.2f} times as fast" if self.speedup else ""
        return f"Tuned({self.model} on {self.schedule.soc}: {self.cycles} cycles{gain})"


class Fitted(Summarised):
    """An answer of `fit`, or a ladder. `summary` is what ``fit --json`` prints."""

    def __init__(
        self,
        summary: Mapping[str, Any],
        spec: ModelSpec | None = None,
        values: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(summary)
        self._spec, self._values = spec, values

    @property
    def cycles(self) -> int | None:
        """Of an iteration as decided, simulated; None of a ladder."""
        value: int | None = self.summary["cycles"]
        return value

    @property
    def decisions(self) -> Sequence[Mapping[str, Any]]:
        """What was decided, with what each decision saves and costs."""
        rows: Sequence[Mapping[str, Any]] = self.summary["decisions"]
        return rows

    @property
    def ladder(self) -> Sequence[Mapping[str, Any]]:
        """The ladder, if it was asked for."""
        rows: Sequence[Mapping[str, Any]] = self.summary["ladder"]
        return rows

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the model with what was decided, which `run` and `tune` read.

        Weights that it brings, as one of PyTorch does, lie beside it: ``small.npz`` of ``small.yaml``, for
        ``values=`` of `run`. Raises `InputError`.
        """
        from configs.errors import InputError
        from pulptrain.inputs.npz_file import check_weights, write_weights

        if self._spec is None:
            raise InputError(
                "fit with ladder=True has no model to save", where="save", cure="call fit without ladder=True"
            )
        place = Path(fspath(path))
        with together():
            write_text(place, model_text(self._spec))
            if self._values:
                write_weights(check_weights(place, "save"), self._values)
        return place

    def __str__(self) -> str:
        from pulptrain.fitting.fit_summary import fit_lines, front_lines

        width = text_width()
        return "\n".join([*fit_lines(self.summary, width), *front_lines(self.summary, width)])


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


class Validated(Summarised):
    """Predictions of measured rows; `summary` is what ``pulptrain validate --json`` prints."""

    @property
    def mape_percent(self) -> float | None:
        """Mean absolute error in percent of the measured cycles; None without a measured row."""
        value = self.summary["mape_percent"]
        return None if value is None else float(value)

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Every row: `id`, `measured` and `predicted` cycles, `error_percent`."""
        rows: Sequence[Mapping[str, Any]] = self.summary["rows"]
        return rows

    def to_pandas(self) -> Any:
        """A pandas data frame with a row each. Raises `InputError` without pandas."""
        return data_frame(self.rows)

    def __str__(self) -> str:
        numbers = [
            f"{key.removesuffix('_percent')} {value:.2f} %"
            for key, value in self.summary.items()
            if key.endswith("_percent") and isinstance(value, float)
        ]
        return f"{self.summary['kind']}, {self.summary['cases']} cases: {', '.join(numbers)}"

    def __repr__(self) -> str:
        return f"Validated({self})"

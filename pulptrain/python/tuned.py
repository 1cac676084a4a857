# SPDX-License-Identifier: Apache-2.0
"""What tuning came to, in Python: a schedule for `run(..., schedule=...)`, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pulptrain.python.op_result import Summarised, data_frame, text_width

if TYPE_CHECKING:
    from scheduler.tuner.tuned_schedule import TunedSchedule


class Tuned(Summarised):
    """A tuned schedule. `schedule` is what a schedule file holds, `summary` what ``tune --json`` prints."""

    def __init__(self, schedule: TunedSchedule, summary: Mapping[str, Any]) -> None:
        super().__init__(summary)
        self.schedule = schedule

    @property
    def model(self) -> str:
        """Name of the model it is for."""
        return self.schedule.model

    @property
    def cycles(self) -> int | None:
        """Of a whole iteration with these choices; None if the search was interrupted."""
        return self.schedule.cycles

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

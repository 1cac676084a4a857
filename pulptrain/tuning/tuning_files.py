# SPDX-License-Identifier: Apache-2.0
"""The files of tuning: the schedule, and in a result folder what it came to and what it gained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.files import check_file, together
from configs.values import Struct
from pulptrain.process.progress import Teller
from pulptrain.running.outputs import RUN_FILES, write_outputs
from pulptrain.tuning.model_tuning import TuneOutcome
from scheduler.tuner.schedule_file import is_schedule, write_schedule
from traces.csv_file import write_rows
from traces.files.result_folder import prepare_folder, write_summary
from traces.pictures.drawing import OWN_PAPER, Paper
from traces.pictures.searches import draw_gains

SCHEDULE_NAME, JSON_NAME, CSV_NAME, PICTURE_NAME = "schedule.yaml", "tune.json", "tune.csv", "tune"

TUNING_FILES = (JSON_NAME, CSV_NAME, f"{PICTURE_NAME}.png", f"{PICTURE_NAME}.svg")
"""Files of a tuning beside its schedule and those of a run."""

_COLUMNS = {
    **{
        key: key for key in ("op", "step", "kernel", "variant", "buffering", "untuned_cycles", "tuned_cycles")
    },
    "cycles": "isolated_cycles",
}
"""Of tune.csv by key of a choice."""


class TuningFiles(Struct, frozen=True):
    """Where the schedule goes, the result folder, if there is one, and what its pictures are drawn on."""

    schedule: Path
    folder: Path | None
    paper: Paper


def prepare_tuning(schedule: str | None, out: str | None, paper: Paper | None = None) -> TuningFiles:
    """Both places, refused before any work if they cannot or may not be written.

    Without a name the schedule goes to the folder, or takes the first name in the current one that is free:
    nothing is overwritten unasked. Raises `InputError`.
    """
    folder = prepare_folder(out, (*RUN_FILES, *TUNING_FILES)) if out is not None else None
    if schedule is None and folder is not None:
        schedule = str(folder / SCHEDULE_NAME)
    if schedule is None:
        schedule = SCHEDULE_NAME
        number = 2
        while Path(schedule).exists():
            schedule = f"schedule-{number}.yaml"
            number += 1
    return TuningFiles(check_file(schedule, "--save-schedule", is_schedule), folder, paper or OWN_PAPER)


def write_tuning(
    outcome: TuneOutcome, files: TuningFiles, command: str, after_run: Mapping[str, str], teller: Teller
) -> list[Path]:
    """Write the schedule at once, then, if there is a folder, all files of it; returns their paths.

    `command` runs the schedule, `after_run` are those that go on from that run.
    """
    write_schedule(outcome.schedule, files.schedule)
    if files.folder is None:
        return [files.schedule]
    teller.stage(f"writing files and pictures to {files.folder}")
    if outcome.tuned is not None:
        outcome.tuned.summary["commands"] = dict(after_run)
    more = {"schedule": str(files.schedule), "command": command}
    return [files.schedule, *_write_folder(outcome, more, files.folder, files.paper)]


@together()
def _write_folder(outcome: TuneOutcome, more: Mapping[str, str], folder: Path, paper: Paper) -> list[Path]:
    written = write_outputs(outcome.tuned, folder, paper) if outcome.tuned is not None else []
    written.append(write_summary(folder / JSON_NAME, outcome.summary, **more))
    rows = map(_csv_row, outcome.summary["choices"])
    written.append(write_rows(folder / CSV_NAME, [*_COLUMNS.values(), "tile", "loop_order"], rows))
    if outcome.tuned is not None:
        png, svg = (folder / f"{PICTURE_NAME}.{ending}" for ending in ("png", "svg"))
        gains = [
            (choice["op"], choice["untuned_cycles"], choice["tuned_cycles"])
            for choice in outcome.summary["choices"]
        ]
        title = f"{outcome.summary['model']} on {outcome.summary['soc']}"
        draw_gains(gains, title, png, svg, paper=paper)
        written += [png, svg]
    return written


def _csv_row(choice: Mapping[str, Any]) -> list[Any]:
    tile = " ".join(f"{name}:{size}" for name, size in choice["tile"].items())
    return [*(choice.get(key, "") for key in _COLUMNS), tile, " ".join(choice["loop_order"])]

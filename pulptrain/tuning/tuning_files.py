# SPDX-License-Identifier: Apache-2.0
"""The files of tuning: the schedule, and in a result folder what it came to and what it gained."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.files import check_file, replacing
from pulptrain.process.progress import Teller
from pulptrain.running.outputs import RUN_FILES, write_outputs
from pulptrain.tuning.model_tuning import TuneOutcome
from scheduler.tuner.schedule_file import is_schedule, write_schedule
from traces.files.result_folder import prepare_folder, write_json
from traces.pictures.gains import draw_gains

SCHEDULE_NAME, JSON_NAME, CSV_NAME, PICTURE_NAME = "schedule.yaml", "tune.json", "tune.csv", "tune"

TUNING_FILES = (JSON_NAME, CSV_NAME, f"{PICTURE_NAME}.png", f"{PICTURE_NAME}.svg")
"""Files of a tuning beside its schedule and those of a run."""

_FLAT = ("op", "step", "kernel", "variant", "buffering", "cycles", "untuned_run_cycles", "run_cycles")


@dataclass(frozen=True, slots=True)
class TuningFiles:
    """Where the schedule goes, and the result folder, if there is one."""

    schedule: Path
    folder: Path | None


def prepare_tuning(schedule: str | None, out: str | None) -> TuningFiles:
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
    return TuningFiles(check_file(schedule, "--schedule", is_schedule), folder)


def write_tuning(outcome: TuneOutcome, files: TuningFiles, teller: Teller) -> list[Path]:
    """Write the schedule and, if there is a folder, all files of it; returns their paths."""
    write_schedule(outcome.schedule, files.schedule)
    written = [files.schedule]
    if files.folder is None:
        return written
    teller.stage(f"writing files and pictures to {files.folder}")
    if outcome.tuned is not None:
        written += write_outputs(outcome.tuned, files.folder)
    plain = {key: value for key, value in outcome.summary.items() if key != "simulator"}
    written.append(write_json(files.folder / JSON_NAME, {**plain, "schedule": str(files.schedule)}))
    written.append(_write_csv(outcome.summary, files.folder / CSV_NAME))
    if outcome.tuned is not None:
        png, svg = (files.folder / f"{PICTURE_NAME}.{ending}" for ending in ("png", "svg"))
        rows = [
            (choice["op"], choice["untuned_run_cycles"], choice["run_cycles"])
            for choice in outcome.summary["choices"]
        ]
        title = f"{outcome.summary['model']} on {outcome.summary['soc']}"
        draw_gains(rows, png, svg, title)
        written += [png, svg]
    return written


def _write_csv(summary: dict[str, Any], path: Path) -> Path:
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*_FLAT, "tile", "loop_order"])
        for choice in summary["choices"]:
            tile = " ".join(f"{name}:{size}" for name, size in choice["tile"].items())
            flat = [choice.get(key, "") for key in _FLAT]
            writer.writerow([*flat, tile, " ".join(choice["loop_order"])])
    return path

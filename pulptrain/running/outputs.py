# SPDX-License-Identifier: Apache-2.0
"""The files of a run: summary, run information, trace table, Perfetto trace and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from configs.files import together
from pulptrain.running.energy import ACTIVITY_NAME, write_activity
from pulptrain.running.pictures import PICTURES, RUN_PICTURES, RunPictures, file_names
from pulptrain.running.session import RunOutcome
from pulptrain.running.training_curve import CSV_NAME as CURVE_NAME
from pulptrain.running.training_curve import PICTURE as CURVE_PICTURE
from pulptrain.running.training_curve import draw_curve, write_curve
from scheduler.memory.memory_blocks import memory_blocks
from traces.files.perfetto_trace import write_perfetto
from traces.files.result_folder import (
    INFORMATION_NAME,
    PERFETTO_NAME,
    SUMMARY_NAME,
    write_information,
    write_summary,
)
from traces.files.tables import CSV_NAME, PARQUET_NAME, write_table
from traces.memory_table import CSV_NAME as MEMORY_NAME
from traces.memory_table import MemoryBlock, write_blocks
from traces.metrics import OpMetrics
from traces.pictures.drawing import Paper, is_our_picture

RUN_FILES = (
    *(SUMMARY_NAME, INFORMATION_NAME, PARQUET_NAME, CSV_NAME, PERFETTO_NAME, MEMORY_NAME, ACTIVITY_NAME),
    CURVE_NAME,
    *(file for name in (*RUN_PICTURES, CURVE_PICTURE) for file in file_names(name)),
)
"""Files of a run; the summary is the first to be written."""


def write_outputs(outcome: RunOutcome, folder: Path, paper: Paper | None = None) -> list[Path]:
    """Write all files of a run and return their paths; for equal runs all but run-info.json are equal.

    `paper` is what pictures are drawn on, if not on their own. Raises `InputError`; nothing is written then.
    """
    with together():
        paths = _write_all(outcome, folder, paper)
    _remove_stale(folder, paths)
    return paths


def _write_all(outcome: RunOutcome, folder: Path, paper: Paper | None) -> list[Path]:
    paths = [write_summary(folder / SUMMARY_NAME, outcome.summary)]
    paths.append(write_information(folder, outcome.summary["simulator"]))
    paths.append(write_table(outcome.slices, folder))
    pictures = RunPictures(outcome.slices, outcome.summary, partial(blocks_of, outcome), paper=paper)
    perfetto, clock_hz = folder / PERFETTO_NAME, outcome.timing.clock.cluster_hz
    write_perfetto(outcome.slices, outcome.counters, clock_hz, perfetto, pictures.memory_map)
    paths.append(perfetto)
    paths.append(write_blocks(pictures.memory_map, folder))
    paths.append(write_activity(outcome.summary["activity"], folder / ACTIVITY_NAME))
    paths += pictures.draw_files(RUN_PICTURES, folder)
    if outcome.curve:
        paths.append(write_curve(outcome.curve, folder / CURVE_NAME))
    if len(outcome.curve) > 1:
        png, svg = (folder / file for file in file_names(CURVE_PICTURE))
        title = f"{outcome.summary['model']} on {outcome.summary['soc']}: {len(outcome.curve):,} iterations"
        draw_curve(outcome.curve, title, png, svg, paper=paper)
        paths += [png, svg]
    return paths


def _remove_stale(folder: Path, written: Sequence[Path]) -> None:
    """Remove what a former run has left here and this one has not: other pictures, close-ups, the curve."""
    drawn = (*PICTURES, CURVE_PICTURE)
    for path in set(folder.iterdir()).difference(written):
        if path.is_symlink() or not path.is_file():
            continue  # a link is the user's, and stays
        picture = path.suffix in (".png", ".svg") and path.stem.split("-")[0] in drawn
        if path.name == CURVE_NAME or (picture and is_our_picture(path)):
            path.unlink()


def blocks_of(outcome: RunOutcome, ops: Sequence[OpMetrics]) -> list[MemoryBlock]:
    """The memory map of the traced programs, one after the other; `ops` as measured in the whole trace."""
    cycles = int(outcome.summary.get("trace_cycles", outcome.summary["cycles"]))
    blocks: list[MemoryBlock] = []
    start_cycles = 0
    for number, schedule in enumerate(outcome.schedules):
        names = {op.op.name for op in schedule.ops}
        last = number == len(outcome.schedules) - 1
        end_cycles = cycles if last else max((op.end_cycles for op in ops if op.name in names), default=0)
        blocks += memory_blocks(
            schedule.graph,
            schedule.plan,
            ops,
            outcome.timing,
            start_cycles=start_cycles,
            end_cycles=end_cycles,
        )
        start_cycles = end_cycles
    return blocks

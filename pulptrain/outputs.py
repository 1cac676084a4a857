"""The files of a run: summary, run information, trace table, Perfetto trace and pictures."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from configs.errors import InputError
from pulptrain.session import RunOutcome
from scheduler.memory.memory_blocks import memory_blocks
from traces.breakdown import draw_breakdown
from traces.events import Slice
from traces.gantt import ColourBy, draw_gantt
from traces.memory_map import draw_memory_map
from traces.memory_table import MemoryBlock, read_blocks, write_blocks
from traces.metrics import measure
from traces.perfetto_trace import write_perfetto
from traces.tables import write_table

PICTURES = ("gantt", "gantt-stalls", "breakdown", "memory")
"""Pictures of a run, by the names of their files."""


def prepare_folder(name: str) -> Path:
    """Make the output folder before any work is done. Raises `InputError` if it cannot be written to."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".pulptrain-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"cannot write to {name!r}: {error.strerror}",
            where="--out",
            cure="another folder, or its permissions",
        ) from error
    return folder


def write_outputs(outcome: RunOutcome, folder: Path) -> list[Path]:
    """Write all files of a run and return their paths; for equal runs all but run-info.json are equal."""
    summary = {key: value for key, value in outcome.summary.items() if key != "simulator"}
    paths = [_write_json(folder / "summary.json", summary)]
    information = {
        "simulator": outcome.summary["simulator"],
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": sys.argv,
    }
    paths.append(_write_json(folder / "run-info.json", information))
    paths.append(write_table(outcome.slices, folder))
    perfetto = folder / "trace.pftrace"
    write_perfetto(outcome.slices, outcome.counters, outcome.timing.clock.cluster_hz, perfetto)
    paths.append(perfetto)
    paths.append(write_blocks(blocks_of(outcome), folder))
    paths.extend(draw_pictures(outcome.slices, outcome.summary, folder))
    return paths


def blocks_of(outcome: RunOutcome) -> list[MemoryBlock]:
    """The memory map of the traced programs, one after the other."""
    cycles = int(outcome.summary.get("trace_cycles", outcome.summary["cycles"]))
    ops = measure(outcome.slices, cycles).ops
    schedules = [outcome.schedule, *([outcome.update_schedule] if outcome.update_schedule else [])]
    blocks: list[MemoryBlock] = []
    start_cycles = 0
    for number, schedule in enumerate(schedules):
        own = {op.op.name for op in schedule.ops}
        last = number == len(schedules) - 1
        end_cycles = cycles if last else max((op.end_cycles for op in ops if op.name in own), default=0)
        blocks += memory_blocks(
            schedule.plan, ops, outcome.timing, start_cycles=start_cycles, end_cycles=end_cycles
        )
        start_cycles = end_cycles
    return blocks


def draw_pictures(
    slices: Sequence[Slice],
    summary: Mapping[str, Any],
    folder: Path,
    *,
    source: Path | None = None,
    window: tuple[int, int] | None = None,
    what: str = "all",
) -> list[Path]:
    """Draw the pictures of a run, each as PNG and SVG: one of `PICTURES`, or all of them.

    `summary` needs `model`, `soc`, `cycles` and `cluster_hz`. `window` zooms the Gantt charts and the memory
    map, which is drawn from ``memory.csv`` in `folder` (or `source`).
    """
    cycles, clock_hz = int(summary.get("trace_cycles", summary["cycles"])), int(summary["cluster_hz"])
    ops = measure(slices, cycles).ops
    title = f"{summary['model']} on {summary['soc']}: {cycles:,} cycles"
    paths: list[Path] = []
    for name in PICTURES if what == "all" else (what,):
        png, svg = folder / f"{name}.png", folder / f"{name}.svg"
        if name == "breakdown":
            draw_breakdown(ops, png, svg, title=title)
        elif name == "memory":
            blocks, capacity_bytes = read_blocks(source or folder), summary.get("capacity_bytes", {})
            draw_memory_map(blocks, ops, cycles, capacity_bytes, png, svg, title=title, window=window)
        else:
            colour_by: ColourBy = "stall" if name == "gantt-stalls" else "step"
            draw_gantt(
                slices, cycles, clock_hz, png, svg, colour_by=colour_by, title=title, ops=ops, window=window
            )
        paths += [png, svg]
    return paths


def _write_json(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path

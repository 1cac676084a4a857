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
from traces.breakdown import draw_breakdown
from traces.events import Slice
from traces.gantt import ColourBy, draw_gantt
from traces.metrics import measure
from traces.perfetto_trace import write_perfetto
from traces.tables import write_table


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
    paths.extend(draw_pictures(outcome.slices, outcome.summary, folder))
    return paths


def draw_pictures(
    slices: Sequence[Slice],
    summary: Mapping[str, Any],
    folder: Path,
    *,
    window: tuple[int, int] | None = None,
) -> list[Path]:
    """Draw the Gantt charts (by step and by stall) and the breakdown of cycles, each as PNG and SVG.

    `summary` needs `model`, `soc`, `cycles` and `cluster_hz`. `window` zooms the Gantt charts.
    """
    cycles, clock_hz = int(summary["cycles"]), int(summary["cluster_hz"])
    ops = measure(slices, cycles).ops
    title = f"{summary['model']} on {summary['soc']}: {cycles:,} cycles"
    paths: list[Path] = []
    colourings: tuple[tuple[str, ColourBy], ...] = (("gantt", "step"), ("gantt-stalls", "stall"))
    for name, colour_by in colourings:
        png, svg = folder / f"{name}.png", folder / f"{name}.svg"
        draw_gantt(
            slices, cycles, clock_hz, png, svg, colour_by=colour_by, title=title, ops=ops, window=window
        )
        paths += [png, svg]
    png, svg = folder / "breakdown.png", folder / "breakdown.svg"
    draw_breakdown(ops, png, svg, title=title)
    return [*paths, png, svg]


def _write_json(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path

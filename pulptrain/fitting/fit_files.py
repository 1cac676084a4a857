# SPDX-License-Identifier: Apache-2.0
"""The files of `fit`: the model with what was decided, and in a result folder its figures and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.files import check_file, start_of, write_text
from configs.model_text import model_text
from pulptrain.fitting.fit_model import FitOutcome
from pulptrain.given.settings import Settings
from pulptrain.running.outputs import blocks_of
from scheduler.explore.picture import draw_front
from traces.files.result_folder import prepare_folder, write_json
from traces.metrics import measure
from traces.pictures.fitting import draw_before_after, draw_ladder
from traces.text_table import amount

JSON_NAME = "fit.json"
PICTURES = ("memory-before-after", "front", "ladder")
FIT_FILES = (JSON_NAME, *(f"{name}.{ending}" for name in PICTURES for ending in ("png", "svg")))
"""Files of a fit beside the model."""

_MARK = "Written by `pulptrain fit`"


@dataclass(frozen=True, slots=True)
class FitFiles:
    """Where the model goes (None: nowhere), and the result folder, if there is one."""

    model: Path | None
    folder: Path | None


def prepare_fit(model: str, file: str | None, out: str | None, *, ladder: bool) -> FitFiles:
    """Both places, refused before any work if they cannot or may not be written. Raises `InputError`."""
    folder = prepare_folder(out, FIT_FILES) if out is not None else None
    if ladder:
        return FitFiles(None, folder)
    if file is None:
        name = f"{Path(model).stem}-fit.yaml"
        file = str(folder / name) if folder is not None else name
    return FitFiles(check_file(file, "--file", lambda path: _MARK.encode() in start_of(path)), folder)


def write_fit(outcome: FitOutcome, files: FitFiles, settings: Settings) -> list[Path]:
    """Write the model and, if there is a folder, all files of it; returns their paths.

    The summary gets the path and the command that runs it.
    """
    summary = outcome.summary
    command = f"pulptrain run {files.model}{options_text(settings)}"
    summary["file"], summary["command"] = str(files.model), command
    written: list[Path] = []
    if files.model is not None:
        peak_bytes = summary["peak_bytes"]["l2"]
        comment = f"{_MARK}: {summary['cycles']:,} cycles, peak of L2 {peak_bytes:,} B.\n    {command}"
        write_text(files.model, model_text(outcome.spec, comment))
        written.append(files.model)
    if files.folder is None:
        return written
    written.append(_write_json(summary, files.folder))
    title = f"{summary['model']} on {summary['soc']}"
    panels = []
    for name, run in (("with everything in L2", outcome.before), ("fitted", outcome.after)):
        cycles = int(run.summary["cycles"])
        panels.append((f"{name}: {cycles:,} cycles", blocks_of(run, measure(run.slices, cycles).ops)))
    png, svg = (files.folder / f"{PICTURES[0]}.{ending}" for ending in ("png", "svg"))
    draw_before_after(panels, summary["budget_bytes"]["l2"], title, png, svg)
    written += [png, svg]
    points = summary["pareto"]
    if len(points) > 1:
        png, svg = (files.folder / f"{PICTURES[1]}.{ending}" for ending in ("png", "svg"))
        draw_front(
            [(point["l2_bytes"], point["cycles"]) for point in points],
            [number for number, point in enumerate(points) if point["on_front"]],
            [_label(point) for point in points],
            ("L2 used (B)", "cycles of an iteration"),
            title,
            png,
            svg,
        )
        written += [png, svg]
    return written


def _label(point: Mapping[str, Any]) -> str:
    joules = f", {amount(point['joules'], 'J')}" if point["joules"] is not None else ""
    return f"{point['recomputed']} again, {point['paged']} in L3{joules}"


def write_ladder(summary: Mapping[str, Any], files: FitFiles) -> list[Path]:
    """Write the ladder and its picture to the folder, if there is one."""
    if files.folder is None:
        return []
    png, svg = (files.folder / f"{PICTURES[2]}.{ending}" for ending in ("png", "svg"))
    draw_ladder(summary["ladder"], f"{summary['model']} on {summary['soc']}", png, svg)
    return [_write_json(summary, files.folder), png, svg]


def _write_json(summary: Mapping[str, Any], folder: Path) -> Path:
    plain = {key: value for key, value in summary.items() if key != "simulator"}
    return write_json(folder / JSON_NAME, plain)


def options_text(settings: Settings) -> str:
    """The options of the machine and the schedule that the model file does not say."""
    said = (
        ("--soc", settings.soc, "pulp-open"),
        *((f"--{key}", getattr(settings, key), None) for key in ("l1", "l2", "l3", "cores", "fpus")),
        *((f"--{key}", getattr(settings, key), None) for key in ("energy", "vdd")),
        ("--buffering", settings.buffering, "double"),
        ("--placement", settings.placement, "first-fit"),
    )
    words = [f"{flag} {value}" for flag, value, default in said if value != default]
    words += [f"--set {text}" for text in settings.overrides]
    return "".join(f" {word}" for word in words)

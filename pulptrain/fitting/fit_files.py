# SPDX-License-Identifier: Apache-2.0
"""The files of `fit`: the model with what was decided, and in a result folder its figures and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from configs.errors import PulptrainError
from configs.files import check_file, start_of, together, write_text
from configs.model_text import model_text
from pulptrain.fitting.fit_model import FitOutcome
from pulptrain.inputs.npz_file import check_weights, write_weights
from pulptrain.process.progress import Teller
from pulptrain.running.outputs import blocks_of
from scheduler.explore.picture import draw_front
from traces.files.result_folder import prepare_folder, write_json
from traces.metrics import measure
from traces.pictures.drawing import OWN_PAPER, Paper
from traces.pictures.searches import draw_before_after, draw_ladder
from traces.text_table import amount
from trainlib.ir.steps import Array

JSON_NAME = "fit.json"
PICTURES = ("memory-before-after", "front", "ladder")
FIT_FILES = (JSON_NAME, *(f"{name}.{ending}" for name in PICTURES for ending in ("png", "svg")))
"""Files of a fit beside the model."""

_MARK = "Written by `pulptrain fit`"


@dataclass(frozen=True, slots=True)
class FitFiles:
    """Where the model goes (None: nowhere), the result folder, if there is one, and what was `written`.

    Pictures are drawn on `paper`.
    """

    model: Path | None
    folder: Path | None
    values: Path | None = None
    """Where the weights go of a model that brings some; None of one whose weights are drawn."""
    paper: Paper = OWN_PAPER
    written: list[Path] = field(default_factory=list)

    def write_answer(
        self, outcome: FitOutcome, command: str, values: Mapping[str, Array] | None = None
    ) -> None:
        """Write the model, the `values` it begins with and, if there is a folder, the figures.

        The summary gets the path and the `command` that runs the model.
        """
        summary = outcome.summary
        summary["file"], summary["command"] = str(self.model), command
        if self.model is not None:
            peak_bytes = summary["peak_bytes"]["l2"]
            comment = f"{_MARK}: {summary['cycles']:,} cycles, peak of L2 {peak_bytes:,} B.\n    {command}"
            with together():
                write_text(self.model, model_text(outcome.spec, comment))
                if self.values is not None:
                    write_weights(self.values, values or {})
            self.written.extend(path for path in (self.model, self.values) if path is not None)
        self._write_json(summary)

    def draw_answer(self, outcome: FitOutcome, teller: Teller) -> None:
        """Draw the bytes in L2 before and after, if there is a folder; why it cannot be is a note."""
        if self.folder is None:
            return
        summary = outcome.summary
        teller.stage("drawing memory before and after")
        try:
            before, after = outcome.traced()
        except PulptrainError as error:
            summary["notes"].append(f"cannot draw the memory: {error.message}")
            return
        panels = []
        for name, run in (("with everything in L2", before), ("fitted", after)):
            cycles = int(run.summary["cycles"])
            panels.append((f"{name}: {cycles:,} cycles", blocks_of(run, measure(run.slices, cycles).ops)))
        png, svg = self._pictures(0)
        draw_before_after(panels, summary["budget_bytes"]["l2"], _title(summary), png, svg, paper=self.paper)

    def write_points(self, outcome: FitOutcome) -> None:
        """Write the figures again, and draw the front if there is more than the answer on it."""
        summary = outcome.summary
        self._write_json(summary)
        points = summary["points"]
        if self.folder is None or len(points) < 2:
            return
        png, svg = self._pictures(1)
        draw_front(
            [(point["peak_l2_bytes"], point["cycles"]) for point in points],
            [number for number, point in enumerate(points) if point["on_front"]],
            [_label(point) for point in points],
            ("L2 used (B)", "cycles of an iteration"),
            _title(summary),
            png,
            svg,
            paper=self.paper,
        )

    def _pictures(self, number: int) -> tuple[Path, Path]:
        """The files of one of `PICTURES`."""
        assert self.folder is not None
        png, svg = (self.folder / f"{PICTURES[number]}.{ending}" for ending in ("png", "svg"))
        self.written.extend((png, svg))
        return png, svg

    def _write_json(self, summary: Mapping[str, Any]) -> None:
        if self.folder is None:
            return
        plain = {key: value for key, value in summary.items() if key != "simulator"}
        path = write_json(self.folder / JSON_NAME, plain)
        if path not in self.written:
            self.written.append(path)

    def write_ladder(self, summary: Mapping[str, Any]) -> None:
        """Write the ladder and its picture to the folder, if there is one."""
        self._write_json(summary)
        if self.folder is not None:
            draw_ladder(summary["ladder"], _title(summary), *self._pictures(2), paper=self.paper)


def _title(summary: Mapping[str, Any]) -> str:
    return f"{summary['model']} on {summary['soc']}"


def _label(point: Mapping[str, Any]) -> str:
    joules = f", {amount(point['joules'], 'J')}" if point["joules"] is not None else ""
    return f"{point['recomputed']} recomputed, {point['paged']} paged{joules}"


def prepare_fit(
    model: str,
    file: str | None,
    out: str | None,
    *,
    ladder: bool,
    with_values: bool = False,
    paper: Paper | None = None,
) -> FitFiles:
    """All places, refused before any work if they cannot or may not be written. Raises `InputError`."""
    folder = prepare_folder(out, FIT_FILES) if out is not None else None
    if ladder:
        return FitFiles(None, folder, paper=paper or OWN_PAPER)
    if file is None:
        name = f"{Path(model).stem}-fit.yaml"
        file = str(folder / name) if folder is not None else name
    model_file = check_file(file, "--save-model", lambda path: _MARK.encode() in start_of(path))
    values = check_weights(model_file, "--save-model") if with_values else None
    return FitFiles(model_file, folder, values, paper or OWN_PAPER)

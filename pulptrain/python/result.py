# SPDX-License-Identifier: Apache-2.0
"""What a run came to, in Python: figures, tables and pictures; of a run just made, or of its folder."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from configs.files import replacing, together
from configs.suggest import check_known
from pulptrain.python.op_result import (
    OpResult,
    Peak,
    Summarised,
    Totals,
    data_frame,
    op_of,
    text_width,
    unknown,
)
from traces.report import Detail, headline, report_lines, report_tables

if TYPE_CHECKING:
    from pulptrain.running.session import RunOutcome
    from pulptrain.running.training_curve import CurvePoint
    from traces.critical.path import CriticalPath
    from traces.events import Slice
    from traces.memory_table import MemoryBlock
    from traces.metrics import OpMetrics
    from trainlib.ir.steps import Array

HTML_WIDTH = 120
"""Characters of a line of text in a notebook."""

_DIMENSIONS = re.compile(r"\dd(?=\d+\b)")
"""In a name given automatically: ``2d`` of ``conv2d1``."""


class Result(Summarised):
    """One run. Figures are those of one training iteration (one update); units end the names.

    ``result["conv1.FW"]`` is an op; a layer named automatically is found with and without its dimensions
    (``conv2d1``, ``conv1``) where that is unambiguous. ``print(result)`` shows what ``pulptrain run`` prints.
    """

    def __init__(
        self, summary: Mapping[str, Any], *, outcome: RunOutcome | None = None, folder: Path | None = None
    ) -> None:
        super().__init__(summary)
        self._outcome = outcome
        self._folder = folder

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.summary["model"])

    @property
    def cycles(self) -> int:
        """Cycles of the cluster."""
        return int(self.summary["cycles"])

    @property
    def seconds(self) -> float:
        """Time at the clock of the cluster."""
        return float(self.summary["seconds"])

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return int(self.summary["macs"])

    @property
    def mac_per_cycle(self) -> float:
        """Multiply-accumulates per cycle."""
        return float(self.summary["mac_per_cycle"])

    @property
    def loss(self) -> float | None:
        """Loss of the first iteration; None if no numbers were computed, or there is no loss."""
        value = self.summary.get("loss")
        return None if value is None else float(value)

    @property
    def losses(self) -> list[float]:
        """Mean loss of every iteration computed; of a loaded run, as ``training.csv`` has them."""
        return [point.loss for point in self.training]

    @cached_property
    def training(self) -> Sequence[CurvePoint]:
        """A point per iteration: its number, `seconds` of simulated time, `loss`, test `accuracy` or None."""
        if self._outcome is not None:
            return self._outcome.curve
        from pulptrain.running.training_curve import CSV_NAME, read_curve

        assert self._folder is not None
        return read_curve(self._folder / CSV_NAME)

    @property
    def test_accuracy(self) -> float | None:
        """Share of the test samples classified rightly in the end (0..1); None without test samples."""
        training = self.summary.get("training") or {}
        value = training.get("test_accuracy")
        return None if value is None else float(value)

    @property
    def peak(self) -> Peak:
        """Peak memory in bytes: ``result.peak.l1``."""
        return Peak(**{level: int(size) for level, size in self.summary["peak_bytes"].items()})

    @property
    def numbers_right(self) -> bool | None:
        """Whether every checked tensor is what it should be; None if not checked, or not decidable."""
        functional = self.summary.get("functional") or {}
        passed = functional.get("passed")
        return None if passed is None else bool(passed)

    @property
    def error(self) -> Mapping[str, Any]:
        """How far the cycles may be off: `typical_percent`, `within_percent`; None where nothing compares."""
        return dict(self.summary.get("error") or {})

    @property
    def energy(self) -> Mapping[str, Any] | None:
        """`nominal_joules` with its range, `by_block`, `by_op` ...; None for a chip without coefficients."""
        return self.summary.get("energy")

    @property
    def activity(self) -> Mapping[str, Any]:
        """What every block did: `counters`, `by_op`, `by_core`."""
        return dict(self.summary.get("activity") or {})

    @property
    def notes(self) -> list[str]:
        """What the scheduler has to say."""
        return list(self.summary["notes"])

    @cached_property
    def ops(self) -> tuple[OpResult, ...]:
        """Every op in the order of the program."""
        return tuple(op_of(entry) for entry in self.summary["ops"])

    @property
    def values(self) -> Mapping[str, Array]:
        """Arrays by name after the last iteration: weights, states, ``results/...`` gradients and losses.

        Empty for a loaded run.
        """
        return self._outcome.values if self._outcome is not None else {}

    def __getitem__(self, name: str) -> OpResult:
        by_name = {op.name: op for op in self.ops}
        if name in by_name:
            return by_name[name]
        short = [op for op in self.ops if _DIMENSIONS.sub("", op.name) == name]
        if len(short) != 1:
            raise unknown(name, by_name, self.model)
        return short[0]

    def __iter__(self) -> Iterator[OpResult]:
        return iter(self.ops)

    def __len__(self) -> int:
        return len(self.ops)

    def by(self, what: Literal["layer", "step", "kernel"]) -> Totals:
        """The ops added up by layer, step or kernel."""
        Detail(by=what)  # refuses another word
        return Totals(self.summary, what)

    def to_pandas(self) -> Any:
        """A pandas data frame with a row per op. Raises `InputError` without pandas."""
        return data_frame([op.row() for op in self.ops])

    def report(
        self,
        *,
        width: int | None = None,
        top: int = 10,
        by: Literal["layer", "step", "kernel"] | None = None,
        full: bool = False,
        evidence: bool = False,
    ) -> str:
        """What ``pulptrain run`` prints with ``--top --group-by --full --evidence``."""
        detail = Detail(top, by, full, evidence=evidence)
        return "\n".join(report_lines(self.summary, width or text_width(), detail))

    def __str__(self) -> str:
        return self.report()

    def __repr__(self) -> str:
        return f"Result({self.model} on {self.summary['soc']}: {self.cycles:,} cycles)"

    def _repr_html_(self) -> str:
        head = "<br>".join(html.escape(line) for line in headline(self.summary, HTML_WIDTH))
        tables = "".join(table.html() for table in report_tables(self.summary, Detail()))
        return f"<p>{head}</p>{tables}"

    def critical_path(self) -> CriticalPath:
        """What the makespan consists of, by resource and op, and the slack of the rest; printed it is tables.

        Raises `InputError` for a loaded run whose trace is missing or has been changed.
        """
        from pulptrain.running.critical import path_of

        return path_of(self.slices, self.summary, str(self._folder or "trace"))

    def gantt(
        self,
        path: str | PathLike[str],
        *,
        colour_by: Literal["step", "kernel", "stall"] | None = None,
        window: tuple[int, int] | str | None = None,
        width_inches: float | None = None,
        font_points: float | None = None,
        dpi: int | None = None,
        title: str | None = None,
    ) -> Path:
        """Draw the Gantt chart as `plot` does, coloured by step, or in a close-up by kernel if not said."""
        return self._drawn(
            "gantt-stalls" if colour_by == "stall" else "gantt",
            path,
            window,
            {"width_inches": width_inches, "font_points": font_points, "dpi": dpi, "title": title},
            colour_by,
        )

    def plot(
        self,
        what: str,
        path: str | PathLike[str],
        *,
        window: tuple[int, int] | str | None = None,
        width_inches: float | None = None,
        font_points: float | None = None,
        dpi: int | None = None,
        title: str | None = None,
    ) -> Path:
        """Draw a picture of ``pulptrain plot --what`` to a .png, .svg or .pdf file and return its path.

        `window` is (first, last) cycle, or the name of an op; a `title` of "" is none. Raises `InputError`
        for an unknown picture, for another ending, and for a file that is there and was not drawn by
        pulptrain.
        """
        size = {"width_inches": width_inches, "font_points": font_points, "dpi": dpi, "title": title}
        return self._drawn(what, path, window, size)

    def _drawn(
        self,
        what: str,
        path: str | PathLike[str],
        window: tuple[int, int] | str | None,
        size: Mapping[str, Any],
        colour_by: Literal["step", "kernel", "stall"] | None = None,
    ) -> Path:
        from pulptrain.running.pictures import PICTURES, RunPictures, Window
        from traces.pictures.drawing import OWN_PAPER, picture_file

        check_known(what, PICTURES, f"unknown picture {what!r}", "plot")
        target = picture_file(fspath(path), "plot")
        run = RunPictures(self.slices, self.summary, self._blocks, paper=OWN_PAPER.but(**size))
        if isinstance(window, str):
            name = self[window].name
            op = next(op for op in run.ops if op.name == name)
            run = run.within(Window(op.start_cycles, op.end_cycles, name))
        elif window is not None:
            run = run.within(Window(*window))
        run.draw(what, target, colour_by=colour_by)
        return target

    def _blocks(self, ops: Sequence[OpMetrics]) -> Sequence[MemoryBlock]:
        """The memory map."""
        if self._outcome is not None:
            from pulptrain.running.outputs import blocks_of

            return blocks_of(self._outcome, ops)
        from traces.memory_table import read_blocks

        assert self._folder is not None
        return read_blocks(self._folder)

    @cached_property
    def slices(self) -> Sequence[Slice]:
        """The trace: what every core and DMA channel did when."""
        if self._outcome is not None:
            return self._outcome.slices
        from traces.files.tables import read_table

        assert self._folder is not None
        return read_table(self._folder)

    def save(self, folder: str | PathLike[str]) -> list[Path]:
        """Write summary, trace, Perfetto file, memory map and pictures; `pulptrain.load` reads them.

        Raises `InputError` for a folder with files of these names that are not pulptrain's.
        """
        from pulptrain.running.outputs import RUN_FILES, write_outputs
        from traces.files.result_folder import prepare_folder

        target = prepare_folder(fspath(folder), RUN_FILES, "save")
        if self._outcome is not None:
            return write_outputs(self._outcome, target)
        assert self._folder is not None
        there = [name for name in RUN_FILES if (self._folder / name).is_file()]
        with together():
            for name in there if target.resolve() != self._folder.resolve() else ():
                with replacing(target / name) as temporary:
                    shutil.copyfile(self._folder / name, temporary)
        return [target / name for name in there]

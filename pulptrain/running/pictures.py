# SPDX-License-Identifier: Apache-2.0
"""Every picture of a run by its name: what it needs, and the part of the run it is to show."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from configs.errors import InputError
from configs.suggest import closest
from configs.values import Struct, replace
from pulptrain.running.energy import stored_energy
from traces.csv_file import AGAIN
from traces.events import Slice
from traces.memory_table import MemoryBlock
from traces.metrics import OpMetrics, measure
from traces.parts import windowed
from traces.pictures.drawing import ENDINGS, Paper
from traces.pictures.gantt import ColourBy, draw_gantt
from traces.pictures.memory_map import draw_bytes, draw_memory_map
from traces.pictures.overview import draw_bandwidth
from traces.pictures.roofline import draw_roofline
from traces.pictures.stacked_bars import breakdown_chart, causes_chart, draw_bars, energy_chart
from traces.roofline import op_points, peaks_of
from traces.text_table import counted

MOST_LISTED = 30
"""Ops that an error lists."""


class Window(Struct, frozen=True):
    """Cycles [start, end) of a run, and what they are: the name of an op, or "" for a span of time."""

    start_cycles: int
    end_cycles: int
    op: str = ""

    @property
    def file_part(self) -> str:
        """What a file of it is called by."""
        name = self.op or f"{self.start_cycles}-{self.end_cycles}"
        return "-" + re.sub(r"[^\w.-]", "_", name)[:100]


@dataclass(frozen=True)
class RunPictures:
    """A run to be drawn: its trace, its summary, what maps its ops in memory; a part of it, on a paper.

    `summary` needs `model`, `soc`, `cycles` and `cluster_hz`. Without `paper` every picture has its own size.
    """

    slices: Sequence[Slice]
    summary: Mapping[str, Any]
    blocks: Callable[[Sequence[OpMetrics]], Sequence[MemoryBlock]]
    window: Window | None = None
    paper: Paper | None = None

    @property
    def cycles(self) -> int:
        """Of the trace."""
        return int(self.summary.get("trace_cycles", self.summary["cycles"]))

    @cached_property
    def ops(self) -> Sequence[OpMetrics]:
        """Measured ops of the whole run."""
        return measure(self.slices, self.cycles).ops

    @cached_property
    def memory_map(self) -> Sequence[MemoryBlock]:
        """What lies where in memory, and when."""
        return self.blocks(self.ops)

    @property
    def title(self) -> str:
        """What the picture is of."""
        of = f"{self.summary['model']} on {self.summary['soc']}"
        if self.window is None:
            return f"{of}: {self.cycles:,} cycles"
        name = f"{self.window.op}, " if self.window.op else ""
        window = f"cycles {self.window.start_cycles:,} to {self.window.end_cycles:,}"
        return f"{of}: {name}{window} of {self.cycles:,}"

    def within(self, window: Window) -> RunPictures:
        """A part of the run; what was measured of the whole is not measured again."""
        part = replace(self, window=window)
        vars(part).update({**vars(self), **vars(part)})
        return part

    def draw(self, what: str, *paths: Path, colour_by: ColourBy | None = None) -> None:
        """Draw one of `PICTURES` to files. Raises InputError if the run does not have what it needs."""
        window = (self.window.start_cycles, self.window.end_cycles) if self.window else None
        shown: dict[str, Any] = {"title": self.title, "paper": self.paper}
        clock_hz, sizes = int(self.summary["cluster_hz"]), self.summary.get("capacity_bytes", {})
        if what in ("breakdown", "causes"):
            ops = self.ops if window is None else measure(windowed(self.slices, *window), window[1]).ops
            draw_bars((breakdown_chart if what == "breakdown" else causes_chart)(ops), *paths, **shown)
        elif what == "energy":
            energy = self._energy()
            try:
                draw_bars(energy_chart(energy), *paths, **shown)
            except (KeyError, TypeError, ValueError) as error:
                message = f"'energy' was changed after pulptrain wrote it: {error!r}"
                raise InputError(message, where="summary.json", cure=AGAIN) from None
        elif what == "roofline":
            draw_roofline(self.summary, self.slices, *paths, op=self._op_shown(), **shown)
        elif what == "bandwidth":
            peaks = peaks_of(self.summary) if "roofs" in self.summary else {}
            draw_bandwidth(
                self.slices, self.ops, self.cycles, peaks, clock_hz, *paths, window=window, **shown
            )
        elif what in ("memory", "bytes"):
            draw = draw_memory_map if what == "memory" else draw_bytes
            draw(self.memory_map, self.ops, self.cycles, sizes, clock_hz, *paths, window=window, **shown)
        else:
            by = "stall" if what == "gantt-stalls" else colour_by
            draw_gantt(
                self.slices, self.cycles, clock_hz, *paths, colour_by=by, ops=self.ops, window=window, **shown
            )

    def _energy(self) -> Mapping[str, Any]:
        """Of the whole run. Raises `InputError` for a chip without coefficients, and for a part of a run."""
        if self.window is not None:
            raise InputError("energy is known for whole runs only", where="--window", cure="remove --window")
        return stored_energy(self.summary, "--what energy")

    def _op_shown(self) -> str:
        """The op a roofline is of, "" for all; raises InputError for a span of time, which has none."""
        if self.window is not None and not self.window.op:
            raise InputError(
                "a roofline cannot show a range of cycles", where="--window", cure="use an op, e.g. conv1.FW"
            )
        return self.window.op if self.window else ""

    def drawable(self) -> tuple[str, ...]:
        """Pictures this run, or this part of it, has: no roofline where nothing multiplies."""
        is_span = self.window is not None and not self.window.op
        has_roofs = "roofs" in self.summary and not is_span
        multiplies = has_roofs and any(
            point.name == self._op_shown() or not self._op_shown() for point in op_points(self.summary)
        )
        has_energy = bool(self.summary.get("energy")) and self.window is None
        has = {"roofline": multiplies, "energy": has_energy}
        return tuple(name for name in PICTURES if has.get(name, True))

    def draw_files(self, what: Sequence[str], folder: Path) -> list[Path]:
        """Draw pictures into a folder, each as PNG and SVG, and return the paths."""
        drawn = []
        for name in what:
            paths = [folder / file for file in file_names(name, self.window)]
            self.draw(name, *paths)
            drawn += paths
        return drawn


RUN_PICTURES = ("gantt", "gantt-stalls", "breakdown", "memory")
"""Pictures that every run with ``--out`` has, by the names of their files."""

PICTURES = (*RUN_PICTURES, "causes", "roofline", "bandwidth", "bytes", "energy")
"""All pictures of one run."""


def file_names(what: str, window: Window | None = None, endings: Sequence[str] = ENDINGS[:2]) -> list[str]:
    """Names of the files of a picture; those of a window have its name, and leave the whole run's alone."""
    return [f"{what}{window.file_part if window else ''}.{ending}" for ending in endings]


def window_of(text: str, ops: Sequence[OpMetrics], makespan_cycles: int) -> Window:
    """The window that an op's name or ``START:END`` in cycles stands for; either of these may be left out.

    Raises `InputError`, which lists what there is, for anything else.
    """
    for op in ops:
        if op.name == text:
            return Window(op.start_cycles, op.end_cycles, op.name)
    first, separator, last = text.partition(":")
    try:
        start, end = int(first[:20] or 0), int(last[:20] or makespan_cycles)
    except ValueError:
        separator = ""
        start = end = 0
    if separator and 0 <= start < min(end, makespan_cycles):
        return Window(start, min(end, makespan_cycles))
    names = [op.name for op in ops]
    near = closest(text, names) if not separator else None
    listed = ", ".join(names[:MOST_LISTED])
    more = f" and {counted(len(names) - MOST_LISTED, 'other')}" if len(names) > MOST_LISTED else ""
    raise InputError(
        f"{text!r} is neither an op nor a range of cycles",
        where="--window",
        cure=f"use an op, e.g. {near or names[0]!r} (known: {listed}{more}), or cycles START:END with 0 <= "
        f"START < END <= {makespan_cycles}",
    )

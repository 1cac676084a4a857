# SPDX-License-Identifier: Apache-2.0
"""Bandwidth over time: bytes per cycle that the DMA and the uDMA move, beside what the SoC can move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from traces.events import Slice
from traces.metrics import OpMetrics
from traces.pictures.drawing import Legend, Paper
from traces.pictures.op_strip import op_spans
from traces.pictures.overview import bandwidth_panels
from traces.pictures.timeline import TimeAxis, draw_timeline
from traces.recorder import sorted_slices

LINES = 10.0
"""Height of a panel, in lines of text."""


def draw_bandwidth(
    slices: Iterable[Slice],
    ops: Sequence[OpMetrics],
    makespan_cycles: int,
    peaks: Mapping[str, float],
    clock_hz: int,
    *paths: Path | None,
    title: str = "",
    window: tuple[int, int] | None = None,
    paper: Paper | None = None,
) -> None:
    """Draw bytes per cluster cycle over time, of the run or of a window, to files of `drawing.ENDINGS`.

    `peaks` are the bytes per cycle of ``dma``, each direction, and of ``l3``. A transfer's bytes are spread
    over its time. Raises InputError for an empty window, and if a file cannot be written.
    """
    paper = paper or Paper()
    time = TimeAxis.beside(("8.888",), window or (0, makespan_cycles), clock_hz, paper, named=True)
    start, end = time.start_cycles, time.end_cycles
    shown = [e for e in sorted_slices(slices) if e.start_cycles < end and e.end_cycles > start]
    panels, looks = bandwidth_panels(shown, time, peaks, LINES)
    limits = "; dotted: peak bandwidth" if peaks else ""
    legend = Legend(looks, f"up: into L1, down: out of L1{limits}")
    draw_timeline(time, panels, op_spans(ops, joined=True), paths, title=title, legend=legend)

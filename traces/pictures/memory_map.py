# SPDX-License-Identifier: Apache-2.0
"""Memory over time: address against time with a rectangle per buffer and its life, and bytes in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import InputError
from traces.csv_file import AGAIN
from traces.memory_table import MemoryBlock
from traces.metrics import OpMetrics
from traces.pictures.drawing import (
    LEAST_SEEN_POINTS,
    POINTS_PER_INCH,
    Legend,
    Paper,
    number_text,
    text_points,
)
from traces.pictures.op_strip import op_spans
from traces.pictures.overview import draw_stacks, seen_stacks
from traces.pictures.palette import (
    BLUE,
    GREEN,
    HATCH_COLOUR,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    YELLOW,
    Style,
)
from traces.pictures.timeline import Panel, TimeAxis, draw_timeline

KIND_STYLES: Mapping[str, Style] = {
    "weight": Style(BLUE, "weight"),
    "optimizer_state": Style(PURPLE, "optimizer state", "...."),
    "gradient": Style(ORANGE, "gradient"),
    "kept": Style(GREEN, "activation stored for backward"),
    "activation": Style(SKY, "other activation"),
    "input": Style(YELLOW, "input, label"),
    "loss": Style(VERMILLION, "loss"),
    "scratch": Style("#969696", "scratch (im2col, transpose, sums)"),
    "stack": Style("#2E2E2E", "stacks"),
    "code": Style("#5A5A5A", "code", "...."),
    "table": Style("#5A5A5A", "tables of ops", "----"),
}
"""Look of each kind of bytes, in the order of the legend."""

STAGED = Style("#FFFFFF", "copy in L2 of a tensor in L3", "////")
LEVEL_NAMES = {"l1": "L1", "l2": "L2", "l3": "L3"}

MAP_LINES = {"l1": 14.0, "l2": 19.0, "l3": 14.0}
BYTES_LINES = 8.0
"""Heights of panels, in lines of text."""
MAX_VECTOR_BLOCKS = 2000
"""Maps with more blocks are embedded as an image in the SVG or PDF, to keep the file small."""
LEAST_EDGED_POINTS = 2.5
"""Blocks that are thinner have no white edge, which would eat them."""


def draw_memory_map(
    blocks: Iterable[MemoryBlock],
    ops: Sequence[OpMetrics],
    makespan_cycles: int,
    capacity_bytes: Mapping[str, int],
    clock_hz: int,
    *paths: Path | None,
    title: str = "",
    window: tuple[int, int] | None = None,
    paper: Paper | None = None,
) -> None:
    """Draw the memory map of the run, or of the cycles of `window`, to files of `drawing.ENDINGS`.

    `ops` are named along the top. `capacity_bytes` per level is drawn where the blocks come near it and
    written above each panel. Levels without a block are left out. Raises InputError without any block, for
    an empty window, and if a file cannot be written.
    """
    peaks = _peaks(blocks := list(blocks))
    tops = {level: _top_bytes(blocks, level, peaks[level], capacity_bytes.get(level, 0)) for level in peaks}
    time = _time(peaks, tops, window or (0, makespan_cycles), clock_hz, paper)
    shown = _shown(blocks, time)
    panels = [
        Panel(
            MAP_LINES[level] * time.paper.line_inches,
            _map_drawer([block for block in shown if block.level == level], level, peaks, tops[level], time),
            _head(level, peaks[level], capacity_bytes, time),
        )
        for level in peaks
    ]
    named = [block for block in shown if _is_seen(block, tops[block.level], time)]
    looks = [look for kind, look in KIND_STYLES.items() if any(_kind(block) == kind for block in named)]
    if any(block.staged for block in named):
        looks.append(STAGED)
    legend = Legend(looks, "block: address range and lifetime of a buffer; dashed: peak")
    draw_timeline(time, panels, op_spans(ops, joined=True), paths, title=title, legend=legend)


def draw_bytes(
    blocks: Iterable[MemoryBlock],
    ops: Sequence[OpMetrics],
    makespan_cycles: int,
    capacity_bytes: Mapping[str, int],
    clock_hz: int,
    *paths: Path | None,
    title: str = "",
    window: tuple[int, int] | None = None,
    paper: Paper | None = None,
) -> None:
    """Draw the bytes of live buffers in every level over time, by kind; arguments as of `draw_memory_map`.

    What the addresses leave unused between buffers does not count, so the peak can be below that of the map.
    """
    blocks = [block for block in blocks if block.kind != "stack"]
    peaks = _peaks(blocks)
    live = {level: live_bytes(block for block in blocks if block.level == level) for level in peaks}
    tops = {level: int(sum(kinds.values()).max()) or 1 for level, (_, kinds) in live.items()}
    time = _time(peaks, tops, window or (0, makespan_cycles), clock_hz, paper)

    def drawer(level: str) -> Any:
        edges, kinds = live[level]

        def draw(axes: Any) -> None:
            draw_stacks(axes, edges, {kind: count / 1024 for kind, count in kinds.items()}, KIND_STYLES)
            axes.set_ylim(0, tops[level] * 1.04 / 1024)
            axes.locator_params(axis="y", nbins=4)
            axes.set_ylabel(f"{LEVEL_NAMES[level]} (KiB)")

        return draw

    panels = []
    for level in peaks:
        head = _head(level, tops[level], capacity_bytes, time, "live bytes, peak")
        panels.append(Panel(BYTES_LINES * time.paper.line_inches, drawer(level), head))
    present = set()
    for level, (edges, kinds) in live.items():
        inside = (edges[1:] > time.start_cycles) & (edges[:-1] < time.end_cycles)
        in_window = {kind: count[inside] for kind, count in kinds.items()}
        present.update(seen_stacks(in_window, tops[level], BYTES_LINES * time.paper.line_inches))
    legend = Legend([look for kind, look in KIND_STYLES.items() if kind in present])
    draw_timeline(time, panels, op_spans(ops, joined=True), paths, title=title, legend=legend)


def live_bytes(blocks: Iterable[MemoryBlock]) -> tuple[Any, dict[str, Any]]:
    """Cycles at which something begins or ends, and by kind the bytes that live between each two of them."""
    blocks = list(blocks)
    edges = np.unique([cycle for block in blocks for cycle in (block.start_cycle, block.end_cycle)])
    kinds = {}
    for kind in KIND_STYLES:
        changes = np.zeros(len(edges))
        of_kind = [block for block in blocks if _kind(block) == kind]
        for at, sign in (("start_cycle", 1), ("end_cycle", -1)):
            places = np.searchsorted(edges, [getattr(block, at) for block in of_kind])
            np.add.at(changes, places, [sign * block.size_bytes for block in of_kind])
        if of_kind:
            kinds[kind] = np.cumsum(changes)[:-1]
    return edges, kinds


def _kind(block: MemoryBlock) -> str:
    return block.kind if block.kind in KIND_STYLES else "scratch"


def _peaks(blocks: Sequence[MemoryBlock]) -> dict[str, int]:
    """By level with a block, in their order, the first byte above all that is no stack."""
    peaks = {
        level: max((b.end_address for b in blocks if b.level == level and b.kind != "stack"), default=0)
        for level in LEVEL_NAMES
        if any(block.level == level for block in blocks)
    }
    if not peaks:
        raise InputError("the run has no memory map", where="memory.csv", cure=AGAIN)
    return peaks


def _time(
    peaks: Mapping[str, int],
    tops: Mapping[str, float],
    window: tuple[int, int],
    clock_hz: int,
    paper: Paper | None,
) -> TimeAxis:
    labels = [number_text(int(tops[level]) // 1024) + "0" for level in peaks]
    return TimeAxis.beside(labels, window, clock_hz, paper or Paper(), named=True)


def _shown(blocks: Iterable[MemoryBlock], time: TimeAxis) -> list[MemoryBlock]:
    return [
        block
        for block in blocks
        if block.start_cycle < time.end_cycles and block.end_cycle > time.start_cycles
    ]


def _is_seen(block: MemoryBlock, top_bytes: float, time: TimeAxis) -> bool:
    """Whether a block is high and wide enough."""
    left, right = time.clip(block.start_cycle, block.end_cycle)
    panel_points = MAP_LINES[block.level] * time.paper.line_inches * POINTS_PER_INCH
    high, wide = block.size_bytes / top_bytes * panel_points, (right - left) * time.points_per_cycle
    return min(high, wide) >= LEAST_SEEN_POINTS


def _top_bytes(blocks: Iterable[MemoryBlock], level: str, peak_bytes: int, capacity_bytes: int) -> float:
    """Where a map ends: above all blocks, and above the capacity where they come near it."""
    highest = max(block.end_address for block in blocks if block.level == level)
    near = capacity_bytes if peak_bytes < capacity_bytes <= 1.6 * peak_bytes else 0
    return max(highest, peak_bytes, near, 4) * 1.02


def _head(
    level: str, peak_bytes: int, capacity_bytes: Mapping[str, int], time: TimeAxis, what: str = "peak"
) -> str:
    of = f" of {capacity_bytes[level]:,}" if capacity_bytes.get(level) else ""
    return f"{LEVEL_NAMES[level]}: {what} {peak_bytes:,}{of} B"


def _map_drawer(
    blocks: Sequence[MemoryBlock], level: str, peaks: Mapping[str, int], top_bytes: float, time: TimeAxis
) -> Any:
    panel_points = MAP_LINES[level] * time.paper.line_inches * POINTS_PER_INCH

    def draw(panel: Any) -> None:
        panel.set_ylim(0, top_bytes / 1024)
        panel.set_ylabel(f"{LEVEL_NAMES[level]} address (KiB)")
        panel.set_facecolor("#FCFCFC")
        _draw_blocks(panel, blocks, time, panel_points / top_bytes)
        for block in blocks:
            _label(panel, block, time, block.size_bytes / top_bytes * panel_points)
        if peaks[level]:
            panel.axhline(peaks[level] / 1024, color="#333333", linewidth=0.6, linestyle=(0, (4, 3)))

    return draw


def _draw_blocks(panel: Any, blocks: Sequence[MemoryBlock], time: TimeAxis, points_per_byte: float) -> None:
    """A collection per look; a thin block has an edge of its own colour, so that it is seen at all."""
    from matplotlib.collections import PolyCollection

    groups: dict[tuple[str, bool, bool], list[Any]] = {}
    for block in sorted(blocks, key=lambda block: (block.start_cycle, block.address)):
        left, right = block.start_cycle, block.end_cycle
        low, high = block.address / 1024, block.end_address / 1024
        is_thick = (
            min(block.size_bytes * points_per_byte, (right - left) * time.points_per_cycle)
            > LEAST_EDGED_POINTS
        )
        box = [(left, low), (right, low), (right, high), (left, high)]
        groups.setdefault((_kind(block), block.staged, is_thick), []).append(box)
    for (kind, staged, is_thick), boxes in groups.items():
        look = KIND_STYLES[kind]
        hatch = STAGED.hatch if staged else look.hatch
        panel.add_collection(
            PolyCollection(
                boxes,
                facecolor=look.colour,
                edgecolor="white" if is_thick else look.colour,
                linewidth=0.35,
                hatch=hatch or None,
                hatchcolor="white" if staged else HATCH_COLOUR,
                rasterized=len(blocks) > MAX_VECTOR_BLOCKS,
            )
        )


def _label(panel: Any, block: MemoryBlock, time: TimeAxis, height_points: float) -> None:
    """The name in the middle of the visible part of a block, if it fits, else its tail, else nothing."""
    font = time.paper.font_points
    left, right = time.clip(block.start_cycle, block.end_cycle)
    if height_points < 1.1 * font:
        return
    name = block.name.partition("@")[0]
    look = KIND_STYLES[_kind(block)]
    for text in dict.fromkeys((name, name.rpartition(":")[2])):
        if text_points(text, font) < (right - left) * time.points_per_cycle - 3:
            panel.text(
                (left + right) / 2,
                (block.address + block.size_bytes / 2) / 1024,
                text,
                ha="center",
                va="center_baseline",
                fontsize=font,
                color=look.ink,
                clip_on=True,
                # Hatching would cross the letters.
                bbox={"facecolor": look.colour, "edgecolor": "none", "pad": 0.6} if block.staged else None,
            )
            return

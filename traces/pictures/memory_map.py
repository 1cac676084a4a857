# SPDX-License-Identifier: Apache-2.0
"""The memory map of a run: address against time per level, one rectangle per buffer and its life."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import InputError
from traces.memory_table import MemoryBlock
from traces.metrics import OpMetrics
from traces.pictures.drawing import POINTS_PER_INCH, RC, draw_legend, empty_figure, save_figure, text_points
from traces.pictures.op_strip import STRIP_INCHES, Band, draw_op_strip, names_inches, op_bands
from traces.pictures.palette import Style

KIND_STYLES: Mapping[str, Style] = {
    "weight": Style("#0072B2", "weight"),
    "optimizer_state": Style("#CC79A7", "optimizer state"),
    "gradient": Style("#E69F00", "gradient"),
    "kept": Style("#009E73", "activation kept for backward"),
    "activation": Style("#56B4E9", "other activation"),
    "input": Style("#F0E442", "input, label"),
    "loss": Style("#D55E00", "loss"),
    "scratch": Style("#9A9A9A", "scratch (im2col, transpose, sums)"),
    "stack": Style("#5A5A5A", "stacks"),
}
"""Look of each kind of bytes, in the order of the legend."""

STAGED = Style("#FFFFFF", "copy in L2 of a tensor in L3", "////")
LEVEL_NAMES = {"l1": "L1", "l2": "L2", "l3": "L3"}

WIDTH_INCHES = 11.0
LEFT_INCHES = 0.84
PLOT_INCHES = 9.75
PANEL_INCHES = {"l1": 2.1, "l2": 2.9, "l3": 2.1}
GAP_INCHES = 0.34
LEGEND_COLUMNS = 5
FONT = 6.0
MAX_VECTOR_BLOCKS = 2000
"""Maps with more blocks are embedded as an image in the SVG, to keep the file small."""
MAX_BOUNDARIES = 150
"""Ops whose ends are marked by lines; of more, lines would hide the blocks."""
DARK = ("weight", "kept", "loss", "stack")
"""Kinds whose blocks carry white text."""


def draw_memory_map(
    blocks: Iterable[MemoryBlock],
    ops: Sequence[OpMetrics],
    makespan_cycles: int,
    capacity_bytes: Mapping[str, int],
    path_png: Path | None,
    path_svg: Path | None = None,
    *,
    title: str = "",
    window: tuple[int, int] | None = None,
) -> None:
    """Draw the memory map of the run, or of the cycles of `window`, to PNG and SVG (either may be None).

    `ops` are named along the top. `capacity_bytes` per level is drawn where the blocks come near it and
    written above each panel. Levels without a block are left out. Raises InputError without any block, for
    an empty window, and if a file cannot be written.
    """
    import matplotlib as mpl  # slow to import

    start, end = window or (0, makespan_cycles)
    if not 0 <= start < end:
        raise InputError(
            f"the window from cycle {start} to {end} is empty", cure="give start < end, in cycles"
        )
    everything = list(blocks)
    shown = [block for block in everything if block.start_cycle < end and block.end_cycle > start]
    levels = [level for level in PANEL_INCHES if any(block.level == level for block in everything)]
    if not levels:
        raise InputError("there is no memory map to draw", cure="run the simulation again")
    bands = op_bands(ops, (start, end), PLOT_INCHES)
    top_inches = names_inches(bands) + (0.34 if title else 0.1)
    legend_inches = 0.62
    panels_inches = sum(PANEL_INCHES[level] + GAP_INCHES for level in levels)
    height = legend_inches + 0.36 + panels_inches + STRIP_INCHES + top_inches
    left, width = LEFT_INCHES / WIDTH_INCHES, PLOT_INCHES / WIDTH_INCHES
    with mpl.rc_context(RC):
        figure = empty_figure(WIDTH_INCHES, height)
        bottom = legend_inches + 0.36
        for number, level in enumerate(reversed(levels)):
            panel = figure.add_axes((left, bottom / height, width, PANEL_INCHES[level] / height))
            in_level = [block for block in shown if block.level == level]
            peak_bytes = max(
                (block.end_address for block in everything if block.level == level and block.kind != "stack"),
                default=0,
            )
            _draw_panel(panel, in_level, level, peak_bytes, capacity_bytes.get(level, 0), (start, end))
            _mark_ops(panel, bands, start)
            if number == 0:
                panel.set_xlabel("time [cluster cycles]", labelpad=1)
                panel.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            else:
                panel.tick_params(labelbottom=False)
            bottom += PANEL_INCHES[level] + GAP_INCHES
        strip = figure.add_axes((left, bottom / height, width, STRIP_INCHES / height))
        strip.set_xlim(start, end)
        draw_op_strip(strip, bands)
        _draw_legend(figure, shown, 0.06 / height)
        if title:
            figure.text(left, 1 - 0.07 / height, title, va="top", ha="left", fontsize=10, fontweight="bold")
        save_figure(figure, path_png, path_svg)


def _draw_panel(
    panel: Any,
    blocks: Sequence[MemoryBlock],
    level: str,
    peak_bytes: int,
    capacity_bytes: int,
    window: tuple[int, int],
) -> None:
    from matplotlib.patches import Rectangle

    start, end = window
    highest = max([block.end_address for block in blocks], default=peak_bytes)
    top_bytes = max(highest, peak_bytes, 4) * 1.02
    if peak_bytes < capacity_bytes <= 1.6 * peak_bytes:
        top_bytes = max(top_bytes, capacity_bytes * 1.02)
    panel.set_xlim(start, end)
    panel.set_ylim(0, top_bytes / 1024)
    panel.set_ylabel(f"{LEVEL_NAMES[level]} address [KiB]")
    panel.set_facecolor("#F7F7F7")
    for block in sorted(blocks, key=lambda block: (block.start_cycle, block.address)):
        look = KIND_STYLES.get(block.kind, KIND_STYLES["scratch"])
        panel.add_patch(
            Rectangle(
                (block.start_cycle, block.address / 1024),
                block.end_cycle - block.start_cycle,
                block.size_bytes / 1024,
                facecolor=look.colour,
                edgecolor="white",
                linewidth=0.35,
                hatch=STAGED.hatch if block.staged else None,
                rasterized=len(blocks) > MAX_VECTOR_BLOCKS,
            )
        )
        _label(panel, block, window, top_bytes, PANEL_INCHES[level])
    if peak_bytes:
        panel.axhline(peak_bytes / 1024, color="#333333", linewidth=0.6, linestyle=(0, (4, 3)))
    text = f"{LEVEL_NAMES[level]}: peak {peak_bytes:,} B of {capacity_bytes:,} B"
    panel.text(0.0, 1.012, text, transform=panel.transAxes, va="bottom", ha="left", fontsize=7.5)


def _label(
    panel: Any, block: MemoryBlock, window: tuple[int, int], top_bytes: float, panel_inches: float
) -> None:
    """The name in the middle of the visible part of a block, if it fits, else its tail, else nothing."""
    start, end = window
    left, right = max(block.start_cycle, start), min(block.end_cycle, end)
    width_points = (right - left) / (end - start) * PLOT_INCHES * POINTS_PER_INCH - 3
    height_points = block.size_bytes / top_bytes * panel_inches * POINTS_PER_INCH
    name = block.name.partition("@")[0]
    short = name.rpartition(":")[2]
    ink = "white" if block.kind in DARK else "black"
    colour = KIND_STYLES.get(block.kind, KIND_STYLES["scratch"]).colour
    for text in dict.fromkeys((name, short)):
        if height_points > FONT + 0.5 and text_points(text, FONT) < width_points:
            panel.text(
                (left + right) / 2,
                (block.address + block.size_bytes / 2) / 1024,
                text,
                ha="center",
                va="center_baseline",
                fontsize=FONT,
                color=ink,
                clip_on=True,
                # Hatching would cross the letters.
                bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6} if block.staged else None,
            )
            return


def _mark_ops(panel: Any, bands: Sequence[Band], start: int) -> None:
    if len(bands) <= MAX_BOUNDARIES:
        for band in bands:
            if band.start_cycles > start:
                panel.axvline(band.start_cycles, color="#000000", alpha=0.18, linewidth=0.4)


def _draw_legend(figure: Any, blocks: Sequence[MemoryBlock], bottom: float) -> None:
    kinds = {block.kind for block in blocks}
    looks = [look for kind, look in KIND_STYLES.items() if kind in kinds]
    if any(block.staged for block in blocks):
        looks.append(STAGED)
    title = "a block: bytes that hold one buffer while it lives    dashed: peak"
    draw_legend(figure, looks, LEGEND_COLUMNS, bottom, title)

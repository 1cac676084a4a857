# SPDX-License-Identifier: Apache-2.0
"""A stacked bar per layer and step: its cycles, divided into issuing and stall cycles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from traces.causes import BUSY
from traces.metrics import OpMetrics
from traces.pictures.drawing import POINTS_PER_INCH, RC, draw_legend, empty_figure, save_figure, text_points
from traces.pictures.palette import STALL_ORDER, style
from traces.tracks import op_label

WIDTH_INCHES = 7.5
ROW_INCHES = 0.23
LEGEND_COLUMNS = 5


def draw_breakdown(
    ops: Sequence[OpMetrics], path_png: Path | None, path_svg: Path | None = None, *, title: str = ""
) -> None:
    """Draw one bar per op, first on top; length is the op's wall cycles, colours are mean shares of a core.

    Equal input gives equal bytes. Raises InputError if a file cannot be written.
    """
    import matplotlib as mpl  # slow to import

    names = [op_label(op.name, op.step) for op in ops]
    used = [word for word in STALL_ORDER if any(_core_cycles(op, word) for op in ops)]
    rows_inches = ROW_INCHES * max(len(ops), 3)
    bottom_inches = 0.6 + 0.16 * math.ceil(len(used) / LEGEND_COLUMNS)
    height = bottom_inches + rows_inches + (0.36 if title else 0.1)
    names_inches = max((text_points(name, 8) for name in names), default=0) / POINTS_PER_INCH
    left = min((0.12 + names_inches) / WIDTH_INCHES, 0.4)
    with mpl.rc_context(RC):
        figure = empty_figure(WIDTH_INCHES, height)
        axes = figure.add_axes((left, bottom_inches / height, 0.97 - left, rows_inches / height))
        _draw_bars(axes, ops, used)
        axes.set_yticks(range(len(ops)), names)
        axes.set_ylim(max(len(ops), 3) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel("cluster cycles (colours: mean share of a core)", labelpad=1)
        axes.grid(axis="x", linewidth=0.4, color="#DDDDDD")
        axes.set_axisbelow(True)
        draw_legend(figure, [style(word) for word in used], LEGEND_COLUMNS, 0.06 / height, "")
        if title:
            figure.text(0.02, 1 - 0.07 / height, title, va="top", ha="left", fontsize=10, fontweight="bold")
        save_figure(figure, path_png, path_svg)


def _core_cycles(op: OpMetrics, word: str) -> int:
    return op.busy_cycles if word == BUSY else dict(op.stalls).get(word, 0)


def _draw_bars(axes: Any, ops: Sequence[OpMetrics], used: Sequence[str]) -> None:
    lefts = [0.0] * len(ops)
    for word in used:
        look = style(word)
        widths = [
            op.cycles * _core_cycles(op, word) / op.core_cycles if op.core_cycles else 0.0 for op in ops
        ]
        axes.barh(
            range(len(ops)),
            widths,
            0.74,
            lefts,
            color=look.colour,
            hatch=look.hatch or None,
            edgecolor="#8A8A8A" if look.hatch else "none",
            linewidth=0.0,
        )
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    longest_cycles = max((op.cycles for op in ops), default=1)
    for row, op in enumerate(ops):
        busy = f"   busy {op.busy_cycles / op.core_cycles:.0%}" if op.core_cycles else ""
        x = op.cycles + longest_cycles * 0.01
        axes.text(x, row, f"{op.cycles:,}{busy}", va="center", ha="left", fontsize=7)
    axes.set_xlim(0, longest_cycles * 1.25 or 1)

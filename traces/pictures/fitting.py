# SPDX-License-Identifier: Apache-2.0
"""Pictures of `fit`: bytes of L2 over time before and after, and the ladder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from traces.memory_table import MemoryBlock
from traces.pictures.drawing import LONGEST_TITLE, OWN_PAPER, Paper, drawn, grid_below, number_text, short
from traces.pictures.memory_map import KIND_STYLES, live_bytes
from traces.pictures.overview import draw_stacks, seen_stacks

_COLOURS = ("#9A9A9A", "#0072B2", "#E69F00")
ROW_INCHES = 0.26


def draw_before_after(
    panels: Sequence[tuple[str, Iterable[MemoryBlock]]],
    budget_bytes: int,
    title: str,
    *paths: Path,
    paper: Paper = OWN_PAPER,
) -> None:
    """Live bytes of L2 over time, by kind, a panel below the other on the same axes; dashed: the budget."""
    live = [(name, live_bytes(block for block in blocks if block.level == "l2")) for name, blocks in panels]
    top = max(float(sum(kinds.values()).max()) for _, (_, kinds) in live) / 1024
    end = max(int(edges[-1]) for _, (edges, _) in live)
    with drawn(7.2, 4.8, paths, dpi=paper.dpi) as figure:
        highest, panel_inches = 1.05 * max(top, budget_bytes / 1024), 0.33 * 4.8
        present = {
            kind for _, (_, kinds) in live for kind in seen_stacks(kinds, 1024 * highest, panel_inches)
        }
        for number, (name, (edges, kinds)) in enumerate(live):
            axes = figure.add_axes((0.09, 0.56 - 0.42 * number, 0.89, 0.33))
            draw_stacks(axes, edges, {kind: count / 1024 for kind, count in kinds.items()}, KIND_STYLES)
            axes.axhline(budget_bytes / 1024, color="black", linewidth=0.8, linestyle="--")
            axes.set_xlim(0, end)
            axes.set_ylim(0, highest)
            axes.set_ylabel("L2 [KiB]")
            axes.set_title(name, fontsize=8, loc="left")
            axes.xaxis.set_major_formatter(lambda value, _: number_text(value))
        axes.set_xlabel("cycles")
        from matplotlib.patches import Patch

        handles = [
            Patch(facecolor=look.colour, hatch=look.hatch or None, label=look.name)
            for kind, look in KIND_STYLES.items()
            if kind in present
        ]
        figure.legend(handles=handles, loc="upper right", ncols=4, frameon=False, fontsize=6)
        figure.text(0.01, 0.985, short(paper.titled(title), LONGEST_TITLE), fontsize=9, va="top")


def draw_ladder(
    rows: Sequence[Mapping[str, Any]], title: str, *paths: Path, paper: Paper = OWN_PAPER
) -> None:
    """Smallest L2 of every form and levers as bars, with the cycles behind them."""
    height = 1.0 + ROW_INCHES * len(rows)
    names = [short(f"{row['form']}: {', '.join(row['levers']) or 'unchanged'}") for row in rows]
    with drawn(7.2, height, paths, dpi=paper.dpi) as figure:
        left = 0.04 + 0.0095 * max(map(len, names))
        plot = figure.add_axes((left, 0.5 / height, 0.86 - left, 1 - 1.0 / height))
        kinds = [2 if "paging" in row["levers"] else 1 if "recompute" in row["levers"] else 0 for row in rows]
        sizes = [row["bytes"]["l2"] / 1024 for row in rows]
        plot.barh(range(len(rows)), sizes, 0.7, color=[_COLOURS[kind] for kind in kinds])
        for place, row in enumerate(rows):
            text = f" {row['cycles'] / 1e6:.2f} M" if row["cycles"] else ""
            plot.text(sizes[place], place, text, va="center", fontsize=7)
        plot.set_yticks(range(len(rows)), names)
        plot.invert_yaxis()
        plot.set_xlabel("smallest L2 [KiB]; labels: cycles of an iteration")
        plot.set_title(short(paper.titled(title), LONGEST_TITLE), fontsize=9, loc="left")
        grid_below(plot, "x")

# SPDX-License-Identifier: Apache-2.0
"""Pictures of what a search has found: gains of `tune`; L2 before and after `fit`, and its ladder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from traces.memory_table import MemoryBlock
from traces.pictures.drawing import (
    OWN_PAPER,
    Legend,
    Paper,
    arranged,
    grid_below,
    name_rows,
    number_text,
    short,
)
from traces.pictures.memory_map import KIND_STYLES, live_bytes
from traces.pictures.overview import draw_stacks, seen_stacks
from traces.pictures.palette import Style
from traces.text_table import counted

_LOOKS = (Style("#9A9A9A", "neither"), Style("#0072B2", "recompute"), Style("#E69F00", "paging"))
ROW_LINES = 1.8
MOST_ROWS = 20
"""Ops that get bars; the others are added up in the last row."""

GAIN_LINES = 2.0
_BEFORE, _AFTER = Style("#9A9A9A", "untuned"), Style("#0072B2", "tuned")


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
    paper = paper.sized(7.2)
    highest, panel_inches = 1.05 * max(top, budget_bytes / 1024), 0.22 * paper.width_inches
    present = {kind for _, (_, kinds) in live for kind in seen_stacks(kinds, 1024 * highest, panel_inches)}
    legend = Legend([look for kind, look in KIND_STYLES.items() if kind in present], "dashed: L2 available")
    height = len(panels) * (panel_inches + 2.5 * paper.line_inches) + 2 * paper.line_inches
    with arranged(paper, height, paths, title, legend) as figure:
        for axes, (name, (edges, kinds)) in zip(
            figure.subplots(len(panels), sharex=True, squeeze=False)[:, 0], live, strict=True
        ):
            draw_stacks(axes, edges, {kind: count / 1024 for kind, count in kinds.items()}, KIND_STYLES)
            axes.axhline(budget_bytes / 1024, color="black", linewidth=0.8, linestyle="--")
            axes.set_xlim(0, end)
            axes.set_ylim(0, highest)
            axes.set_ylabel("L2 (KiB)")
            axes.set_title(name, loc="left")
            axes.xaxis.set_major_formatter(lambda value, _: number_text(value))
            axes.locator_params(axis="x", nbins=max(int(paper.width_inches), 3))
        axes.set_xlabel("cycles")


def draw_ladder(
    rows: Sequence[Mapping[str, Any]], title: str, *paths: Path, paper: Paper = OWN_PAPER
) -> None:
    """Smallest L2 of every form and levers as bars, with the cycles behind them."""
    paper = paper.sized(7.2)
    height = (4.5 + ROW_LINES * len(rows)) * paper.line_inches
    names = [short(f"{row['form']}: {', '.join(row['techniques']) or 'unchanged'}") for row in rows]
    kinds = [
        2 if "paging" in row["techniques"] else 1 if "recompute" in row["techniques"] else 0 for row in rows
    ]
    legend = Legend([_LOOKS[kind] for kind in sorted({*kinds})], "labels: cycles of an iteration")
    with arranged(paper, height, paths, title, legend) as figure:
        plot = figure.add_subplot()
        sizes = [row["bytes"]["l2"] / 1024 for row in rows]
        plot.barh(range(len(rows)), sizes, 0.7, color=[_LOOKS[kind].colour for kind in kinds])
        for place, row in enumerate(rows):
            text = f" {row['cycles'] / 1e6:.2f} M" if row["cycles"] else ""
            plot.text(sizes[place], place, text, va="center")
        name_rows(plot, names)
        plot.margins(x=0.15)
        plot.set_xlabel("smallest L2 (KiB)")
        grid_below(plot, "x")


def draw_gains(
    rows: Sequence[tuple[str, int, int]], title: str, *paths: Path, paper: Paper = OWN_PAPER
) -> None:
    """Draw (op, cycles before, cycles after) as pairs of bars, those with most cycles before first."""
    ordered = sorted(rows, key=lambda row: -max(row[1], row[2]))
    shown, rest = list(ordered[:MOST_ROWS]), ordered[MOST_ROWS:]
    if rest:
        others = (counted(len(rest), "other"), sum(row[1] for row in rest), sum(row[2] for row in rest))
        shown.append(others)
    shown = [(short(name), before, after) for name, before, after in shown]
    before, after = sum(row[1] for row in rows), sum(row[2] for row in rows)
    paper = paper.sized(7.2)
    height = (3.5 + GAIN_LINES * len(shown)) * paper.line_inches
    own = f"{short(title)}: {before:,} cycles become {after:,}"
    with arranged(paper, height, paths, own, Legend((_BEFORE, _AFTER))) as figure:
        plot = figure.add_subplot()
        for look, side in ((_BEFORE, 1), (_AFTER, 2)):
            places = [place + 0.4 * side - 0.6 for place in range(len(shown))]
            plot.barh(places, [row[side] for row in shown], 0.38, color=look.colour)
        for place, (_, untuned, tuned) in enumerate(shown):
            gain = f"{untuned / tuned:.2f}x" if tuned else ""
            plot.text(max(untuned, tuned), place, f" {gain}", va="center")
        name_rows(plot, [row[0] for row in shown])
        plot.set_xlabel("cycles in an iteration")
        plot.xaxis.set_major_formatter(lambda value, _: number_text(value))
        plot.locator_params(axis="x", nbins=max(int(paper.width_inches), 3))
        plot.margins(x=0.1)
        grid_below(plot, "x")

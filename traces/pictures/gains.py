# SPDX-License-Identifier: Apache-2.0
"""The picture of what tuning gained: cycles of the largest ops before and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
from traces.pictures.palette import Style
from traces.text_table import counted

MOST_ROWS = 20
"""Ops that get bars; the others are added up in the last row."""

ROW_LINES = 2.0
_BEFORE, _AFTER = Style("#9A9A9A", "untuned"), Style("#0072B2", "tuned")


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
    height = (3.5 + ROW_LINES * len(shown)) * paper.line_inches
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

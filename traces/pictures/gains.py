# SPDX-License-Identifier: Apache-2.0
"""The picture of what tuning gained: cycles of the largest ops before and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traces.pictures.drawing import LONGEST_TITLE, OWN_PAPER, Paper, drawn, grid_below, short
from traces.text_table import counted

MOST_ROWS = 20
"""Ops that get bars; the others are added up in the last row."""

ROW_INCHES = 0.3
_BEFORE, _AFTER = "#9A9A9A", "#0072B2"


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
    height = 1.0 + ROW_INCHES * len(shown)
    with drawn(7.2, height, paths, dpi=paper.dpi) as figure:
        left = 0.06 + 0.0105 * max(len(row[0]) for row in shown)
        plot = figure.add_axes((left, 0.5 / height, 0.93 - left, 1 - 1.0 / height))
        places = range(len(shown))
        plot.barh(
            [place - 0.2 for place in places], [row[1] for row in shown], 0.38, color=_BEFORE, label="untuned"
        )
        plot.barh(
            [place + 0.2 for place in places], [row[2] for row in shown], 0.38, color=_AFTER, label="tuned"
        )
        for place, (_, untuned, tuned) in enumerate(shown):
            gain = f"{untuned / tuned:.2f}x" if tuned else ""
            plot.text(max(untuned, tuned), place, f" {gain}", va="center", fontsize=7)
        plot.set_yticks(list(places), [row[0] for row in shown])
        plot.invert_yaxis()
        plot.set_xlabel("cycles in an iteration")
        own = f"{short(title)}: {before:,} cycles reduced to {after:,}"
        plot.set_title(short(paper.titled(own), LONGEST_TITLE), fontsize=9, loc="left")
        plot.margins(x=0.1)
        grid_below(plot, "x")
        plot.legend(frameon=False, fontsize=7, loc="lower right")

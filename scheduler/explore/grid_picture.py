# SPDX-License-Identifier: Apache-2.0
"""The picture of a sweep: lines over one parameter, or a heat map over two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traces.pictures.drawing import OWN_PAPER, Paper, drawn, grid_below, number_text

MOST_LINES = 10
"""Combinations of the other parameters that get a line each."""

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#F0E442")


def draw_grid(
    points: Sequence[tuple[Mapping[str, Any], float | None]],
    axes: Sequence[str],
    what: str,
    title: str,
    *paths: Path,
    paper: Paper = OWN_PAPER,
) -> bool:
    """Draw the figure `what` of all points; False, and no file, if nothing takes two values or more.

    `points` are (values by parameter, figure or None). Two parameters make a heat map with its numbers, one a
    line, more lines by the others (at most `MOST_LINES`).
    """
    taken = {axis: _distinct(values.get(axis) for values, _ in points) for axis in axes}
    varied = [axis for axis in axes if len(taken[axis]) > 1]
    if not varied or all(number is None for _, number in points):
        return False
    with drawn(6.4, 4.0, paths, dpi=paper.dpi) as figure:
        if len(varied) == 2:
            _heat_map(figure, points, varied, taken, what)
        else:
            _lines(figure, points, varied, taken, what)
        figure.text(0.02, 0.985, paper.titled(title), va="top", fontsize=9, fontweight="bold")
    return True


def _distinct(values: Any) -> list[Any]:
    """Values once each; numbers in order, others as they come."""
    distinct = list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct)
    return sorted(distinct) if numbers else distinct


def _heat_map(
    figure: Any,
    points: Sequence[tuple[Mapping[str, Any], float | None]],
    varied: Sequence[str],
    taken: Mapping[str, Sequence[Any]],
    what: str,
) -> None:
    import numpy as np

    across, down = varied
    table = np.full((len(taken[down]), len(taken[across])), np.nan)
    for values, number in points:
        if number is not None:
            table[taken[down].index(values.get(down)), taken[across].index(values.get(across))] = number
    plot = figure.add_axes((0.16, 0.14, 0.66, 0.74))
    image = plot.imshow(table, cmap="viridis_r", aspect="auto", origin="lower")
    low, high = np.nanmin(table), np.nanmax(table)
    for row, column in np.ndindex(*table.shape):
        number = float(table[row, column])
        dark = not np.isnan(number) and (number - low) > 0.5 * (high - low)
        text = "does not fit" if np.isnan(number) else number_text(number)
        plot.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")
    plot.set_xticks(range(len(taken[across])), [_value(value) for value in taken[across]])
    plot.set_yticks(range(len(taken[down])), [_value(value) for value in taken[down]])
    plot.set_xlabel(across)
    plot.set_ylabel(down)
    bar = figure.add_axes((0.85, 0.14, 0.025, 0.74))
    figure.colorbar(image, cax=bar, label=what)


def _value(value: Any) -> str:
    """What a point that leaves a parameter as it is takes for it has no value to show."""
    return "as it is" if value is None else str(value)


def _lines(
    figure: Any,
    points: Sequence[tuple[Mapping[str, Any], float | None]],
    varied: Sequence[str],
    taken: Mapping[str, Sequence[Any]],
    what: str,
) -> None:
    along, others = varied[0], varied[1:]
    places = {value: place for place, value in enumerate(taken[along])}
    series: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    for values, number in points:
        if number is not None:
            key = tuple(values.get(axis) for axis in others)
            series.setdefault(key, []).append((places[values.get(along)], number))
    plot = figure.add_axes((0.12, 0.14, 0.84, 0.74))
    for number, (key, line) in enumerate(list(series.items())[:MOST_LINES]):
        line.sort()
        told = [f"{axis} {value}" for axis, value in zip(others, key, strict=True) if value is not None]
        colour = _COLOURS[number % len(_COLOURS)]
        plot.plot(
            [x for x, _ in line],
            [y for _, y in line],
            marker="o",
            markersize=3.5,
            linewidth=1.2,
            color=colour,
            label=", ".join(told) or "as it is",
        )
    plot.set_xticks(range(len(places)), [_value(value) for value in places])
    plot.set_xlabel(along)
    plot.set_ylabel(what)
    plot.set_ylim(bottom=0)
    plot.yaxis.set_major_formatter(lambda value, _: number_text(value))
    grid_below(plot)
    if others:
        plot.legend(frameon=False, fontsize=7)

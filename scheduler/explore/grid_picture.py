# SPDX-License-Identifier: Apache-2.0
"""The picture of a sweep: lines over one parameter, or a heat map over two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traces.pictures.drawing import (
    OWN_PAPER,
    Legend,
    Paper,
    arranged,
    grid_below,
    number_text,
    settle,
    short,
)
from traces.pictures.palette import Style

MOST_LINES = 10
"""Combinations of the other parameters that get a line each; those that lie on each other have one."""
LONGEST_VALUE = 20
"""Characters of the value of a parameter beside an axis."""
ASPECT = 0.56
LEAST_APART = 0.01
"""Of the highest value: lines that are nowhere further apart are drawn as one."""

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#F0E442")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_DASHES: Any = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))


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
    line, more lines by the others (at most `MOST_LINES`, those that would lie on each other as one).
    """
    taken = {axis: _distinct(values.get(axis) for values, _ in points) for axis in axes}
    varied = [axis for axis in axes if len(taken[axis]) > 1]
    if not varied or all(number is None for _, number in points):
        return False
    paper = paper.sized(6.4)
    series = _series(points, varied)
    lines = joined_lines(series)[:MOST_LINES]
    legend = Legend(())
    if len(varied) != 2 and varied[1:]:
        looks = [
            Style(_COLOURS[at % len(_COLOURS)], label_of(keys, varied[1:], taken))
            for at, keys in enumerate(lines)
        ]
        legend = Legend(
            looks, _note(series), _MARKERS, [_DASHES[at % len(_DASHES)] for at in range(len(lines))]
        )
    with arranged(paper, ASPECT * paper.width_inches, paths, title, legend) as figure:
        plot = figure.add_subplot()
        if len(varied) == 2:
            _heat_map(figure, plot, points, varied, taken, what, paper)
        else:
            _lines(plot, [series[keys[0]] for keys in lines], varied[0], taken[varied[0]], what)
    return True


def _distinct(values: Any) -> list[Any]:
    """Values once each; numbers in order, others as they come."""
    distinct = list(dict.fromkeys(values))
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in distinct)
    return sorted(distinct) if numbers else distinct


def _heat_map(
    figure: Any,
    plot: Any,
    points: Sequence[tuple[Mapping[str, Any], float | None]],
    varied: Sequence[str],
    taken: Mapping[str, Sequence[Any]],
    what: str,
    paper: Paper,
) -> None:
    import numpy as np

    across, down = varied
    table = np.full((len(taken[down]), len(taken[across])), np.nan)
    for values, number in points:
        if number is not None:
            table[taken[down].index(values.get(down)), taken[across].index(values.get(across))] = number
    image = plot.imshow(table, cmap="viridis_r", aspect="auto", origin="lower")
    plot.set_xticks(range(len(taken[across])), [_value(value) for value in taken[across]])
    plot.set_yticks(range(len(taken[down])), [_value(value) for value in taken[down]])
    plot.set_xlabel(short(across))
    plot.set_ylabel(short(down))
    figure.colorbar(image, label=what, format=lambda value, _: number_text(value))
    settle(figure, paper)
    low, high = np.nanmin(table), np.nanmax(table)
    for row, column in np.ndindex(*table.shape):
        number = float(table[row, column])
        dark = not np.isnan(number) and (number - low) > 0.5 * (high - low)
        text = "does not fit" if np.isnan(number) else number_text(number)
        if paper.inches(text) <= plot.get_position().width * paper.width_inches / table.shape[1]:
            plot.text(column, row, text, ha="center", va="center", color="white" if dark else "black")


def _value(value: Any) -> str:
    """The value of a parameter; "default" for a point that does not set it."""
    return "default" if value is None else short(str(value), LONGEST_VALUE)


def _series(
    points: Sequence[tuple[Mapping[str, Any], float | None]], varied: Sequence[str]
) -> dict[tuple[Any, ...], dict[Any, float]]:
    """Figures by the value of the first parameter, by the values of the others."""
    series: dict[tuple[Any, ...], dict[Any, float]] = {}
    for values, number in points:
        if number is not None:
            key = tuple(values.get(axis) for axis in varied[1:])
            series.setdefault(key, {})[values.get(varied[0])] = number
    return series


def _lines(
    plot: Any, lines: Sequence[Mapping[Any, float]], along: str, taken: Sequence[Any], what: str
) -> None:
    for number, line in enumerate(lines):
        places = [place for place, value in enumerate(taken) if value in line]
        plot.plot(
            places,
            [line[taken[place]] for place in places],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=4.5 - 0.2 * number,
            linewidth=1.2,
            linestyle=_DASHES[number % len(_DASHES)],
            color=_COLOURS[number % len(_COLOURS)],
        )
    plot.set_xticks(range(len(taken)), [_value(value) for value in taken])
    plot.set_xlabel(short(along))
    plot.set_ylabel(what)
    plot.set_ylim(bottom=0)
    plot.yaxis.set_major_formatter(lambda value, _: number_text(value))
    grid_below(plot)


def _note(series: Mapping[tuple[Any, ...], Mapping[Any, float]]) -> str:
    """Which lines are not drawn."""
    lines = len(joined_lines(series))
    joined = f"less than {LEAST_APART:.0%} apart: drawn as one line" if lines < len(series) else ""
    beyond = f"{lines - MOST_LINES} more lines not drawn" if lines > MOST_LINES else ""
    return "; ".join(note for note in (joined, beyond) if note)


def joined_lines(series: Mapping[tuple[Any, ...], Mapping[int, float]]) -> list[list[tuple[Any, ...]]]:
    """Keys of the lines that are drawn: those of lines that would lie on each other are together."""
    highest = max((abs(y) for line in series.values() for y in line.values()), default=0.0)
    groups: list[list[tuple[Any, ...]]] = []
    for key, line in series.items():
        for group in groups:
            first = series[group[0]]
            if first.keys() == line.keys() and all(
                abs(first[x] - y) <= LEAST_APART * highest for x, y in line.items()
            ):
                group.append(key)
                break
        else:
            groups.append([key])
    return groups


def label_of(keys: Sequence[tuple[Any, ...]], axes: Sequence[str], taken: Mapping[str, Sequence[Any]]) -> str:
    """What the combinations of a line have in common; an axis with all of its values is any.

    Combinations that are not all of these values with all of those are told one after the other.
    """
    values = [_distinct(key[at] for key in keys) for at in range(len(axes))]
    if math.prod(map(len, values)) > len(keys):
        at = next(at for at, some in enumerate(values) if len(some) > 1)
        parts = [[key for key in keys if key[at] == value] for value in values[at]]
        return "; ".join(label_of(part, axes, taken) for part in parts)
    texts = []
    for axis, some in zip(axes, values, strict=True):
        shown = [str(value) for value in some if value is not None]
        if len(some) == len(taken[axis]) > 1:
            texts.append(f"any {axis}")
        elif shown:
            texts.append(f"{axis} {' or '.join(shown)}")
    return ", ".join(texts) or "default"

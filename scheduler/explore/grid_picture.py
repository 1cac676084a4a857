# SPDX-License-Identifier: Apache-2.0
"""The picture of a sweep: lines over one parameter, or a heat map over two."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traces.pictures.drawing import (
    LONGEST_TITLE,
    OWN_PAPER,
    POINTS_PER_INCH,
    Paper,
    drawn,
    grid_below,
    number_text,
    short,
    text_points,
)

MOST_LINES = 10
"""Combinations of the other parameters that get a line each; those that lie on each other have one."""
LONGEST_VALUE = 20
"""Characters of the value of a parameter beside an axis."""
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
    with drawn(6.4, 4.0, paths, dpi=paper.dpi) as figure:
        if len(varied) == 2:
            _heat_map(figure, points, varied, taken, what)
        else:
            _lines(figure, points, varied, taken, what)
        figure.text(
            0.02, 0.985, short(paper.titled(title), LONGEST_TITLE), va="top", fontsize=9, fontweight="bold"
        )
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
    plot.set_xlabel(short(across))
    plot.set_ylabel(short(down))
    bar = figure.add_axes((0.85, 0.14, 0.025, 0.74))
    figure.colorbar(image, cax=bar, label=what)


def _value(value: Any) -> str:
    """What a point that leaves a parameter default takes for it has no value to show."""
    return "default" if value is None else short(str(value), LONGEST_VALUE)


def _lines(
    figure: Any,
    points: Sequence[tuple[Mapping[str, Any], float | None]],
    varied: Sequence[str],
    taken: Mapping[str, Sequence[Any]],
    what: str,
) -> None:
    along, others = varied[0], varied[1:]
    places = {value: place for place, value in enumerate(taken[along])}
    series: dict[tuple[Any, ...], dict[int, float]] = {}
    for values, number in points:
        if number is not None:
            key = tuple(values.get(axis) for axis in others)
            series.setdefault(key, {})[places[values.get(along)]] = number
    lines = joined_lines(series)
    plot = figure.add_axes((0.12, 0.14, 0.84, 0.74))
    for number, keys in enumerate(lines[:MOST_LINES]):
        line = sorted(series[keys[0]].items())
        plot.plot(
            [x for x, _ in line],
            [y for _, y in line],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=4.5 - 0.2 * number,
            linewidth=1.2,
            linestyle=_DASHES[number % len(_DASHES)],
            color=_COLOURS[number % len(_COLOURS)],
            label=label_of(keys, others, taken),
        )
    plot.set_xticks(range(len(places)), [_value(value) for value in places])
    plot.set_xlabel(short(along))
    plot.set_ylabel(what)
    plot.set_ylim(bottom=0)
    plot.yaxis.set_major_formatter(lambda value, _: number_text(value))
    grid_below(plot)
    if others:
        joined = f"less than {LEAST_APART:.0%} apart: drawn as one line" if len(lines) < len(series) else ""
        beyond = f"{len(lines) - MOST_LINES} more lines not drawn" if len(lines) > MOST_LINES else ""
        _legend_below(figure, plot, "; ".join(note for note in (joined, beyond) if note))


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


def _legend_below(figure: Any, plot: Any, note: str) -> None:
    """A note and the names of the lines below the axes, in as many columns as fit."""
    handles, labels = plot.get_legend_handles_labels()
    width, font = figure.get_figwidth(), 7.0
    widest = max(len(line) for line in labels) + 8
    columns = max(int(width * POINTS_PER_INCH / text_points("x" * widest, font)), 1)
    room = int(width * POINTS_PER_INCH / columns / text_points("x", font)) - 8
    labels = ["\n".join(textwrap.wrap(label, room)) for label in labels]
    columns = min(columns, len(labels))
    rows = [labels[first :: -(-len(labels) // columns)] for first in range(-(-len(labels) // columns))]
    high = sum(max(label.count("\n") + 1 for label in row) for row in rows) + bool(note)
    legend_inches = 1.45 * font / POINTS_PER_INCH * high + 0.06
    before, axes_inches = figure.get_figheight(), plot.get_position().height * figure.get_figheight()
    bottom = plot.get_position().y0 * before + legend_inches
    height = before + legend_inches
    figure.set_figheight(height)
    plot.set_position((0.12, bottom / height, 0.84, axes_inches / height))
    figure.legend(
        handles,
        labels,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.03 / height),
        ncols=columns,
        frameon=False,
        fontsize=font,
        title=note or None,
        title_fontsize=font,
        handlelength=3.0,
        borderpad=0.0,
        borderaxespad=0.0,
    )

# SPDX-License-Identifier: Apache-2.0
"""Rows of stacked bars: where the cycles of a run go, by layer and step, or by op and cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import asdict

from configs.values import Struct, replace
from traces.causes import bound_by
from traces.metrics import OpMetrics
from traces.pictures.drawing import (
    LEAST_SEEN_POINTS,
    OWN_PAPER,
    POINTS_PER_INCH,
    Legend,
    Paper,
    framed,
    name_rows,
    short,
    title_inches,
)
from traces.pictures.palette import (
    BLOCK_STYLES,
    CAUSE_STYLES,
    HATCH_COLOUR,
    STEP_STYLES,
    Style,
    family,
)
from traces.text_table import amount, counted
from traces.totals import collapsed, largest, layer_of

WIDTH_INCHES = 7.5
MOST_ROWS = 20
"""Layers or ops that get a bar; the others are added up in the last row."""
RIGHT_INCHES = 0.15
ROW_LINES = 1.6


class BarRow(Struct, frozen=True):
    """A bar: its name, cycles by category, and what is written behind it."""

    name: str
    parts: Mapping[str, float]
    text: str


class BarChart(NamedTuple):
    """Rows, the looks of their categories in the order they are stacked, and the text of the axis."""

    rows: Sequence[BarRow]
    looks: Mapping[str, Style]
    axis: str


def breakdown_chart(ops: Sequence[OpMetrics]) -> BarChart:
    """A bar per layer, its steps stacked."""
    return BarChart(layer_rows(ops), STEP_STYLES, "cluster cycles")


def causes_chart(ops: Sequence[OpMetrics]) -> BarChart:
    """A bar per op, its cycles divided by cause.

    Steps that a layer takes again and again are one op, as in the table of a run.
    """
    axis = "cluster cycles; colours: mean over the cores of work and waits"
    return BarChart(cause_rows(ops), CAUSE_STYLES, axis)


def energy_chart(energy: Mapping[str, Any]) -> BarChart:
    """A bar per op, divided by block; `energy` is that of a summary."""
    low, high, watts = (energy[key] for key in ("low_joules", "high_joules", "average_watts"))
    whole = f"{amount(energy['nominal_joules'], 'J')} ({amount(low, 'J')} to {amount(high, 'J')})"
    axis = f"nJ; {whole}, {amount(watts, 'W')} by {energy['energy_model']}"
    return BarChart(energy_rows(energy), BLOCK_STYLES, axis)


def energy_rows(energy: Mapping[str, Any]) -> list[BarRow]:
    """Nanojoules of the ops by block, the largest first; beyond `MOST_ROWS` in one row."""
    ordered = sorted(energy["by_op"], key=lambda item: -item["joules"])
    shown, rest = ordered[:MOST_ROWS], ordered[MOST_ROWS:]
    if rest:
        blocks = {name: sum(item["by_block"][name] for item in rest) for name in BLOCK_STYLES}
        joules = sum(item["joules"] for item in rest)
        shown.append({"name": counted(len(rest), "other"), "joules": joules, "by_block": blocks})
    return [
        BarRow(
            item["name"],
            {name: 1e9 * joules for name, joules in item["by_block"].items()},
            f"{amount(item['joules'], 'J')}  {item['joules'] / (energy['nominal_joules'] or 1):.0%}",
        )
        for item in shown
    ]


def layer_rows(ops: Sequence[OpMetrics]) -> list[BarRow]:
    """Cycles of every layer by family of steps, the largest first; beyond `MOST_ROWS` in one row."""
    layers: dict[str, dict[str, float]] = {}
    for op in ops:
        steps = layers.setdefault(layer_of({"name": op.name, "step": op.step}), {})
        steps[family(op.step)] = steps.get(family(op.step), 0) + op.cycles
    whole = sum(op.cycles for op in ops)
    ordered = sorted(layers.items(), key=lambda item: -sum(item[1].values()))
    shown, others = ordered[:MOST_ROWS], [steps for _, steps in ordered[MOST_ROWS:]]
    if others:
        added = {step: sum(steps.get(step, 0) for steps in others) for step in STEP_STYLES}
        shown.append((f"{len(others)} other{'s' if len(others) > 1 else ''}", added))
    return [_row(name, steps, whole) for name, steps in shown]


def cause_rows(ops: Sequence[OpMetrics]) -> list[BarRow]:
    """Cycles of the ops by `traces.causes.GROUPS`, the largest first; beyond `MOST_ROWS` in one row."""
    added = [{**asdict(op), "stalls": dict(op.stalls), "macs": 0, "kernel": ""} for op in ops]
    whole = sum(op.cycles for op in ops)
    rows = []
    for total in largest(collapsed(added), MOST_ROWS):
        groups = bound_by(total.causes)
        scale = total.cycles / max(sum(groups.values()), 1)
        rows.append(_row(total.name, {name: cycles * scale for name, cycles in groups.items()}, whole))
    return rows


def _row(name: str, parts: Mapping[str, float], whole_cycles: int) -> BarRow:
    cycles = round(sum(parts.values()))
    return BarRow(name, parts, f"{cycles:,}  {cycles / max(whole_cycles, 1):.0%}")


def draw_bars(chart: BarChart, *paths: Path | None, title: str = "", paper: Paper | None = None) -> None:
    """Draw the rows, the first on top.

    Equal input gives equal bytes. Raises InputError if a file cannot be written.
    """
    paper, looks = (paper or OWN_PAPER).sized(WIDTH_INCHES), chart.looks
    rows = [replace(row, name=short(row.name)) for row in chart.rows]
    used = [name for name in looks if any(row.parts.get(name) for row in rows)]
    left = max((paper.inches(row.name) for row in rows), default=0.0) + 0.12
    width = paper.width_inches - left - RIGHT_INCHES
    text_inches = max((paper.inches(row.text) for row in rows), default=0.0) + 0.06
    paper.check_room(left + text_inches)
    longest = max((sum(row.parts.values()) for row in rows), default=1.0) or 1.0
    end = longest / max(1 - text_inches / width, 0.3)
    least = LEAST_SEEN_POINTS / (width * POINTS_PER_INCH) * end
    legend = Legend([looks[name] for name in used if any(row.parts.get(name, 0) >= least for row in rows)])
    axis_lines = paper.folded(chart.axis, 0.7 * paper.width_inches)
    rows_inches = ROW_LINES * paper.line_inches * max(len(rows), 3)
    bottom_inches = legend.inches(paper) + (1.4 + len(axis_lines)) * paper.line_inches + 0.1
    height = bottom_inches + rows_inches + title_inches(title, paper)
    with framed(paper, height, paths, title, legend) as figure:
        axes = figure.add_axes(
            (
                left / paper.width_inches,
                bottom_inches / height,
                width / paper.width_inches,
                rows_inches / height,
            )
        )
        lefts = [0.0] * len(rows)
        for name in used:
            look, widths = looks[name], [row.parts.get(name, 0.0) for row in rows]
            axes.barh(
                range(len(rows)),
                widths,
                0.76,
                lefts,
                color=look.colour,
                hatch=look.hatch or None,
                edgecolor=HATCH_COLOUR if look.hatch else "none",
                linewidth=0.0,
            )
            lefts = [before + more for before, more in zip(lefts, widths, strict=True)]
        for number, (behind, row) in enumerate(zip(lefts, rows, strict=True)):
            axes.annotate(
                row.text, (behind, number), (3, 0), textcoords="offset points", va="center_baseline"
            )
        axes.set_xlim(0, end)
        name_rows(axes, [row.name for row in rows], 3)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.locator_params(axis="x", nbins=max(int(width / paper.inches(f"{longest:,.0f}") / 1.6), 2))
        last = end * (1 + (2 * RIGHT_INCHES - 1.1 * paper.inches(f"{longest:,.0f}")) / (2 * width))
        axes.set_xticks([tick for tick in axes.get_xticks() if tick <= min(last, end)])  # none is cut
        axes.set_xlabel("\n".join(axis_lines), labelpad=1)
        axes.grid(axis="x", linewidth=0.4, color="#DDDDDD")
        axes.set_axisbelow(True)

# SPDX-License-Identifier: Apache-2.0
"""An exploration from its file to its result: simulate the points, find the front, write files."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arch.energy.accounting import energy_of
from arch.energy.activity import NO_OP, Activity
from configs.files import together
from configs.units import parse_bytes
from configs.values import Struct
from configs.version import VERSION
from pulptrain.exploring.explore_spec import DELAY, ENERGY, OBJECTIVES, Spec, SpecPoint
from scheduler.explore.grid_picture import draw_grid
from scheduler.explore.pareto import pareto_front
from scheduler.explore.picture import draw_front
from scheduler.explore.point import Outcome
from scheduler.explore.sweep import simulate_points
from scheduler.search.cache import ResultCache
from scheduler.search.progress import Meter
from scheduler.search.workers import Workers
from traces.csv_file import write_rows
from traces.files.result_folder import EXPLORATION_FILES, write_summary
from traces.pictures.drawing import OWN_PAPER, Paper

SIZES = ("l1", "l2", "l3")
"""Axes whose values are sizes, as parameters are whose names end in ``_bytes``."""


class Exploration(Struct, frozen=True):
    """What an exploration came to: the object `explore --json` prints, and whether Ctrl-C ended it early."""

    summary: dict[str, Any]
    interrupted: bool


def explore(
    spec: Spec, workers: Workers, cache: ResultCache | None = None, meter: Meter | None = None
) -> Exploration:
    """Simulate the points of `spec` and find the Pareto front of its objectives, all to be small.

    Interrupted by Ctrl-C, the result has the points simulated so far and the front among them.
    """
    started = time.perf_counter()
    points = [item.point for item in spec.points if item.point is not None]
    found, cached, interrupted = simulate_points(points, workers, cache, meter)
    outcomes = iter([found.get(position) for position in range(len(points))])
    of_points = [next(outcomes) if item.point is not None else item.refused for item in spec.points]
    rows = [
        _row(number, item, outcome)
        for number, (item, outcome) in enumerate(zip(spec.points, of_points, strict=True))
        if outcome is not None
    ]
    fitting = [row for row in rows if row["reason"] is None]
    base = next((row for row in rows if row["number"] == spec.baseline and row["reason"] is None), None)
    for row in fitting:
        row["speedup"] = base["seconds"] / row["seconds"] if base is not None else None
    front = pareto_front([[row[name] for name in spec.objectives] for row in fitting])
    for position in front:
        fitting[position]["on_front"] = True
    summary = {
        "name": spec.name,
        "model": spec.model,
        "objectives": list(spec.objectives),
        "axes": list(spec.axes),
        "points": rows,
        "front": [fitting[position]["number"] for position in front],
        "points_requested": len(spec.points),
        "baseline": base["number"] if base is not None else None,
        "energy_model": ", ".join(dict.fromkeys(item.chip[0].name for item in spec.points if item.chip))
        or None,
        "version": VERSION,
        "simulator": {"cached": cached, "wall_seconds": time.perf_counter() - started},
    }
    return Exploration(summary, interrupted)


def _row(number: int, item: SpecPoint, outcome: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {"number": number, "values": dict(item.values), "on_front": False}
    row["reason"] = outcome.why or None
    row["missing_bytes"] = outcome.short_bytes or None
    if outcome.why:
        return row
    assert item.point is not None
    timing = item.point.timing
    row |= {
        "cycles": outcome.cycles,
        "seconds": outcome.seconds,
        "macs": outcome.macs,
        "mac_per_cycle": outcome.macs / outcome.cycles,
        "instructions": outcome.instructions,
        "stall_cycles": outcome.stall_cycles,
        "dma_bytes": outcome.dma_bytes,
        "peak_l1_bytes": outcome.l1_bytes,
        "peak_l2_bytes": outcome.l2_bytes,
        "peak_l3_bytes": outcome.l3_bytes,
        "cores": timing.cores,
        "l1_size_bytes": timing.l1.size_bytes,
    }
    if item.chip is not None:
        energy = energy_of(Activity({NO_OP: outcome.activity}, {}), *item.chip)
        row |= {
            ENERGY: energy.nominal,
            "low_joules": energy.low,
            "high_joules": energy.high,
            "average_watts": energy.nominal / energy.seconds,
            DELAY: energy.nominal * energy.seconds,
        }
    return row


@together()
def write_exploration(summary: Mapping[str, Any], folder: Path, paper: Paper | None = None) -> list[Path]:
    """Write points.json, points.csv, pictures of the grid and, for two objectives or more, of the front."""
    objects, table, png, svg, grid_png, grid_svg = (folder / name for name in EXPLORATION_FILES)
    paths = [write_summary(objects, summary), table]
    axes = summary["axes"]
    figures = list(dict.fromkeys(key for row in summary["points"] for key in row if key != "values"))
    figures = [key for key in figures if key not in axes]  # the cores of the SoC are those that were asked
    points = (
        [*map(as_numbers(row["values"]).get, axes), *map(row.get, figures)] for row in summary["points"]
    )
    write_rows(table, [*axes, *figures], points)
    fitting = [row for row in summary["points"] if row["reason"] is None]
    if len(summary["objectives"]) > 1 and fitting:
        down, along = summary["objectives"][:2]
        draw_front(
            [(row[along], row[down]) for row in fitting],
            [position for position, row in enumerate(fitting) if row["on_front"]],
            [", ".join(f"{key} {value}" for key, value in row["values"].items()) for row in fitting],
            (OBJECTIVES[along], OBJECTIVES[down]),
            f"{summary['name']}: {summary['model']}, {len(fitting)} of {len(summary['points'])} points fit",
            png,
            svg,
            paper=paper or OWN_PAPER,
        )
        paths += [png, svg]
    first = summary["objectives"][0]
    drawn = draw_grid(
        [(row["values"], row[first] if row["reason"] is None else None) for row in summary["points"]],
        axes,
        OBJECTIVES[first],
        f"{summary['name']}: {summary['model']}",
        grid_png,
        grid_svg,
        paper=paper or OWN_PAPER,
    )
    return [*paths, *([grid_png, grid_svg] if drawn else [])]


def as_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a point for a table: sizes of memories in bytes, so that they sort as numbers."""
    sizes = {key: value for key, value in values.items() if key in SIZES or key.endswith("_bytes")}
    return {**values, **{key: parse_bytes(value) for key, value in sizes.items()}}

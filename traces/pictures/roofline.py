# SPDX-License-Identifier: Apache-2.0
"""The roofline of a run: a point per op, dots for its tiles, below what cores and DMA can do at most."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from configs.errors import InputError
from traces.events import Slice
from traces.pictures.drawing import (
    OWN_PAPER,
    Legend,
    Paper,
    framed,
    grid_below,
    number_text,
    title_inches,
)
from traces.pictures.labels import FAR, NEAR, draw_labels
from traces.pictures.palette import STEP_STYLES, family
from traces.roofline import RoofPoint, off_chip_bytes, op_points, roofs_of, tile_points

WIDTH_INCHES = 7.5
ASPECT = 0.62
MARKERS = {"FW": "o", "LOSS": "v", "IG": "s", "WG": "^", "UPD": "D", "other": "P"}
LABELS_PER_INCH = 1.6
"""Ops with most cycles that are named, by the width of the picture."""
WIDE = 500
"""Ratio of the ends of an axis from which only powers of ten are marked."""
MOST_DOTS = 20_000
"""Tiles beyond are left out, evenly."""


def draw_roofline(
    summary: Mapping[str, Any],
    slices: Iterable[Slice],
    *paths: Path | None,
    op: str = "",
    title: str = "",
    paper: Paper | None = None,
) -> None:
    """Draw ops, or one `op`, and their tiles: MAC/cycle against MAC/byte, logarithmic, below the roofs.

    Filled is what is executed, hollow below it what of that is useful. Raises InputError for a summary
    without roofs, and where no op multiplies.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    paper = (paper or OWN_PAPER).sized(WIDTH_INCHES)
    roofs = roofs_of(summary)
    points = [point for point in op_points(summary) if not op or point.name == op]
    if not points:
        raise InputError(
            f"{op or 'the run'} has no multiply-accumulates, so a roofline cannot be drawn",
            where="--what roofline",
            cure="use a run or an op with matrix multiplications or convolutions",
        )
    slices = list(slices)
    tiles, moved = tile_points(slices, points), off_chip_bytes(slices)
    off_chip = {point.name: moved[point.name] for point in points if moved.get(point.name)}
    tiles = tiles[:: len(tiles) // MOST_DOTS + 1]
    used = [step for step in STEP_STYLES if any(family(point.step) == step for point in points)]
    wastes = any(point.useful_macs < point.macs for point in points)
    notes = {
        _roof(roofs, bool(off_chip)): True,
        "filled: all MACs, hollow: without multiplications by zero": wastes,
        "dots: tiles": bool(tiles),
        "cross: per byte of L3 traffic": bool(off_chip),
    }
    note = "; ".join(text for text, occurs in notes.items() if occurs)
    legend = Legend([STEP_STYLES[step] for step in used], note, [MARKERS[step] for step in used])
    axis_lines = paper.folded("MAC per byte moved (busier direction)", 0.8 * paper.width_inches)
    bottom_inches = legend.inches(paper) + (1.6 + len(axis_lines)) * paper.line_inches + 0.14
    chart_inches = ASPECT * paper.width_inches
    height = bottom_inches + chart_inches + title_inches(title, paper)
    left = (paper.inches("0.001") + paper.line_inches + 0.14) / paper.width_inches
    paper.check_room(left * paper.width_inches)
    with framed(paper, height, paths, title, legend) as figure:
        axes = figure.add_axes(
            (left, bottom_inches / height, 0.97 - left, chart_inches / height), xscale="log", yscale="log"
        )
        far = [point.macs / off_chip[point.name] for point in points if point.name in off_chip]
        _set_limits(axes, [*points, *tiles], far, roofs)
        _draw_roofs(axes, roofs, with_l3=bool(off_chip))
        for step in used:
            _draw_points(axes, step, points, tiles, paper)
        for point in points:
            if point.name in off_chip:
                there = point.macs / off_chip[point.name]
                axes.plot([point.intensity, there], 2 * [point.rate], color="#9A9A9A", linewidth=0.5)
                axes.plot(there, point.rate, marker="x", color="black", markersize=0.5 * paper.font_points)
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < WIDE else (1,), numticks=20))
            axis.set_major_formatter(lambda value, _: number_text(value))
            axis.set_minor_locator(NullLocator())
        axes.set_xlabel("\n".join(axis_lines), labelpad=1)
        axes.set_ylabel("MAC per cycle", labelpad=1)
        grid_below(axes)
        places = [(p.intensity, rate) for p in points for rate in {p.rate, p.useful_rate} if rate]
        places += _roof_places(axes, roofs)
        draw_labels(
            figure,
            axes,
            places,
            _named(points, round(LABELS_PER_INCH * paper.width_inches)),
            paper.font_points,
            (*NEAR, *FAR),
        )


def _set_limits(
    axes: Any, points: Sequence[RoofPoint], far: Sequence[float], roofs: Mapping[str, float]
) -> None:
    """Around all points, their intensities `far` off chip, and the bend of the roof."""
    top = max(roofs["mac_per_cycle"], *(point.rate for point in points))
    bend = roofs["mac_per_cycle"] / roofs["dma_bytes_per_cycle"]
    across = [bend, *far, *(point.intensity for point in points)]
    rates = [rate for point in points for rate in (point.rate, point.useful_rate) if rate > top * 1e-4]
    axes.set_xlim(min(across) / 1.8, max(across) * 2.5)
    axes.set_ylim(min(rates, default=top) / 1.8, top * 2.2)


def _roof(roofs: Mapping[str, float], with_l3: bool) -> str:
    """The roofs in words."""
    l3 = f", dashed L3 {number_text(roofs['l3_bytes_per_cycle'])} B/cycle" if with_l3 else ""
    macs, dma = roofs["mac_per_cycle"], roofs["dma_bytes_per_cycle"]
    return f"roofs: {number_text(macs)} MAC/cycle, DMA {number_text(dma)} B/cycle{l3}"


def _draw_roofs(axes: Any, roofs: Mapping[str, float], *, with_l3: bool) -> None:
    """A horizontal line for the cores, slopes for the DMA and for L3."""
    (low, high), peak = axes.get_xlim(), roofs["mac_per_cycle"]
    for key, dashes in (("dma_bytes_per_cycle", "-"), ("l3_bytes_per_cycle", "--"))[: 1 + with_l3]:
        bend = peak / roofs[key]
        across = [min(low, bend), bend, max(high, bend)]
        axes.plot(
            across, [across[0] * roofs[key], peak, peak], color="black", linewidth=0.9, linestyle=dashes
        )


def _roof_places(axes: Any, roofs: Mapping[str, float]) -> list[tuple[float, float]]:
    """Points along the roof, where no label is to stand."""
    low, high = map(math.log, axes.get_xlim())
    across = [math.exp(low + (high - low) * part / 80) for part in range(81)]
    peak, rate = roofs["mac_per_cycle"], roofs["dma_bytes_per_cycle"]
    return [(x, min(peak, x * rate)) for x in across]


def _named(points: Sequence[RoofPoint], most: int) -> list[tuple[float, float, str]]:
    """Names of the ops with most cycles; steps that a layer takes again and again have one together."""
    groups: dict[str, list[RoofPoint]] = {}
    for point in points:
        groups.setdefault(point.name.rstrip("0123456789"), []).append(point)
    largest = sorted(groups.items(), key=lambda item: -sum(point.cycles for point in item[1]))
    named = []
    for name, members in largest[:most]:
        label = f"{name} x{len(members)}" if len(members) > 1 else members[0].name
        named.append((members[-1].intensity, members[-1].rate, label))
    return named


def _draw_points(
    axes: Any, step: str, points: Sequence[RoofPoint], tiles: Sequence[RoofPoint], paper: Paper
) -> None:
    """Ops of a step with lines down to what is useful of them, and their tiles as dots."""
    look, marker, size = STEP_STYLES[step], MARKERS[step], 0.7 * paper.font_points
    of_step = [point for point in points if family(point.step) == step]
    dots = [tile for tile in tiles if family(tile.step) == step]
    plain: dict[str, Any] = {"linestyle": "none", "color": look.colour}
    axes.plot(
        [tile.intensity for tile in dots],
        [tile.rate for tile in dots],
        marker=".",
        markersize=2,
        alpha=0.5,
        rasterized=len(dots) > 1000,
        **plain,
    )
    wasted = [point for point in of_step if point.useful_macs < point.macs]
    for point in wasted:
        axes.plot(2 * [point.intensity], [point.rate, point.useful_rate], color=look.colour, linewidth=0.7)
    axes.plot(
        [point.intensity for point in wasted],
        [point.useful_rate for point in wasted],
        marker=marker,
        markersize=size,
        markerfacecolor="white",
        **plain,
    )
    axes.plot(
        [point.intensity for point in of_step],
        [point.rate for point in of_step],
        marker=marker,
        markersize=size,
        markeredgecolor="black",
        markeredgewidth=0.4,
        **plain,
    )

# SPDX-License-Identifier: Apache-2.0
"""Pictures of the page, one per measured set: predicted over measured cycles, the error, its distribution."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from configs.files import replacing
from scheduler.validation.rows.statistics import Result, timed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MACHINES = {
    ("4-static", "0"): ("shared FPUs, no bank conflicts", "#2a6f97"),
    ("4-static", "1"): ("shared FPUs, bank conflicts", "#c8553d"),
    ("private", "0"): ("private FPUs, no bank conflicts", "#5b8c5a"),
    ("private", "1"): ("private FPUs, bank conflicts", "#8e6c8a"),
    ("4-dynamic", "1"): ("FPUs shared per cycle, bank conflicts", "#c9a227"),
}
"""(fpus, bank_conflicts) -> label and colour; a file without these columns is drawn in the first colour."""

LIMITS_PERCENT = (-40, 40)
"""Range of the error panel; rows beyond are drawn on its edge."""

QUANTILES = (50, 95)
"""Per cent of the rows whose largest error the distribution marks."""


def draw(results: Sequence[Result], title: str, path: Path, noise_percent: float | None = None) -> None:
    """Write a PNG. Left: predicted over measured, the diagonal and 10 % to either side. Middle: the error.

    Right: the cumulative distribution of its absolute value (ECDF), with the noise of the set if it is known.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    results = timed(results)
    figure, (plane, errors, spread) = pyplot.subplots(1, 3, figsize=(13.5, 4.2))
    low = min(row.measured for row in results) / 1.4
    high = max(row.measured for row in results) * 1.4
    plane.plot((low, high), (low, high), color="black", linewidth=0.7)
    for factor in (0.9, 1.1):
        plane.plot((low, high), (factor * low, factor * high), color="grey", linewidth=0.6, linestyle=":")
    size = 4 if len(results) > 500 else 14
    for key, (label, colour) in MACHINES.items():
        part = [row for row in results if machine(row) == key]
        if not part:
            continue
        measured = [row.measured for row in part]
        style = {
            "s": size,
            "linewidths": 0,
            "alpha": 0.5,
            "color": colour,
            "label": f"{label} ({len(part):,})",
        }
        plane.scatter(measured, [row.prediction.cycles for row in part], **style)
        shown = [min(max(row.error_percent, LIMITS_PERCENT[0]), LIMITS_PERCENT[1]) for row in part]
        errors.scatter(measured, shown, **style)
        absolute = [abs(row.error_percent) for row in part]
        spread.ecdf(absolute, color=colour, linewidth=1.2)
    plane.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    plane.set(xlabel="measured cycles", ylabel="predicted cycles")
    plane.set_aspect("equal")
    plane.set_title(f"{title}: {len(results):,} rows", fontsize=10)
    errors.axhline(0, color="black", linewidth=0.7)
    for limit in (-10, 10):
        errors.axhline(limit, color="grey", linewidth=0.6, linestyle=":")
    errors.set(xscale="log", xlim=(low, high), ylim=(LIMITS_PERCENT[0] - 2, LIMITS_PERCENT[1] + 2))
    errors.set(xlabel="measured cycles", ylabel="(predicted - measured) / measured, %")
    errors.set_title("error; beyond 40 % drawn on the edge", fontsize=10)
    _mark(spread, [abs(row.error_percent) for row in results], noise_percent)
    handles, labels = errors.get_legend_handles_labels()
    if "fpus" in results[0].case.cells:
        figure.legend(
            handles, labels, loc="lower center", ncols=len(labels), fontsize=7, frameon=False, markerscale=2
        )
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def _mark(spread: Axes, absolute: Sequence[float], noise_percent: float | None) -> None:
    """Axes of the distribution, its quantiles over all rows, and the noise."""
    for quantile in QUANTILES:
        error = float(np.percentile(absolute, quantile))
        spread.axhline(quantile / 100, color="grey", linewidth=0.6, linestyle=":")
        spread.annotate(
            f"{quantile} %: {error:.2f}",
            (1, quantile / 100),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="top",
            fontsize=8,
        )
    if noise_percent:
        spread.axvline(noise_percent, color="black", linewidth=0.7, linestyle="--")
        spread.annotate(f" noise {noise_percent:.2f}", (noise_percent, 0.02), fontsize=8)
    spread.set(xscale="symlog", xlim=(0, max(100.0, *absolute)), ylim=(0, 1.02))
    spread.set(xlabel="absolute error, %", ylabel="share of the rows")
    spread.set_title("distribution of the absolute error", fontsize=10)


def machine(row: Result) -> tuple[str, str]:
    """The key of a row in `MACHINES`."""
    first = next(iter(MACHINES))
    return row.case.cells.get("fpus", first[0]), row.case.cells.get("bank_conflicts", first[1])

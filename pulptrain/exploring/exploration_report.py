# SPDX-License-Identifier: Apache-2.0
"""What an exploration came to, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.text_table import counted, table_lines


def exploration_lines(
    summary: Mapping[str, Any], width: int, *, top: int | None = 40, full: bool = False
) -> list[str]:
    """A row per point: its values, objectives, speed-up over the baseline, and whether it is on the front.

    At most `top` rows, the points of the front first; all with `full`.
    """
    points = list(summary["points"])
    shown = points
    if not full and top is not None and len(points) > top:
        kept = sorted(points, key=lambda point: (not point["on_front"], point["number"]))[:top]
        shown = sorted(kept, key=lambda point: point["number"])
    fitting = [point for point in points if point["reason"] is None]
    lines = [f"{summary['name']}: {summary['model']}, {counted(len(points), 'point')}, {len(fitting)} fit"]
    axes, objectives = list(summary["axes"]), list(summary["objectives"])
    objectives = [name for name in objectives if name not in axes]
    baseline = summary.get("baseline")
    heads = [axes[0] if axes else "point", *axes[1:], *objectives]
    heads += ["speed-up"] if baseline is not None else []
    rows = []
    for point in shown:
        cells = [str(point["values"].get(axis, "")) for axis in axes] or [str(point["number"])]
        if point["reason"] is None:
            cells += [_number(point[name]) for name in objectives]
            cells += [f"{point['speedup']:.2f}"] if baseline is not None else []
        else:
            word = "does not fit" if point["missing_bytes"] else "-"
            cells += [word, *[""] * (len(heads) - len(cells) - 1)]
        mark = "*" if point["on_front"] else ""
        rows.append([*cells, f"{mark} baseline".strip() if point["number"] == baseline else mark])
    lines += ["", *table_lines([*heads, "front"], rows, width, left=("front",))]
    if len(shown) < len(points):
        lines.append(f"{counted(len(points) - len(shown), 'other')}: --full, or points.csv of --out")
    refused = [point for point in shown if point["reason"] is not None]
    for point in refused:
        text = ", ".join(f"{key}={value}" for key, value in point["values"].items())
        lines.append(f"  {text}: {point['reason']}")
    return lines


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"

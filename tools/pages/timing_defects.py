# SPDX-License-Identifier: Apache-2.0
"""docs/timing-defects.md: which figure of validation notices which timing defect, and which none does."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tools.pages.page import Page, table
from tools.timing_defects.bounds import MEAN, committed
from tools.timing_defects.defects import DEFECTS, NOT_SEEN
from tools.timing_defects.rows import WATCHED, rows_of


def _times(record: dict[str, Any]) -> float:
    return float(abs(record["to_percent"] - record["from_percent"]) / record["bound"])


def score() -> str:
    """How many defects of each part are seen."""
    parts = Counter(change.part for change in DEFECTS.values())
    unseen = Counter(DEFECTS[name].part for name in NOT_SEEN)
    rows = [(part, count, count - unseen[part]) for part, count in parts.items()]
    rows.append(("all", len(DEFECTS), len(DEFECTS) - len(NOT_SEEN)))
    return table(("part of the product", "defects", "seen"), rows, numbers=True)


def bounds() -> str:
    """Rows, mean error and its bound of every set."""
    figures = committed()["figures"]
    rows = []
    for name in WATCHED:
        figure = figures[f"{name} {MEAN}"]
        rows.append((name, len(rows_of(name)), f"{figure['percent']:.2f}", f"{figure['bound']:.2f}"))
    return table(("set", "rows", "mean error, %", "bound, points"), rows, numbers=True)


def seen() -> str:
    """Every defect that is seen, with the figure that is farthest beyond its bound."""
    rows = []
    for name, record in committed()["defects"].items():
        if record["figures"]:
            moved = f"{record['from_percent']:+.2f} -> {record['to_percent']:+.2f} %"
            where = f"`{DEFECTS[name].file}`"
            rows.append((name, where, record["figure"], moved, f"{_times(record):.1f}", record["figures"]))
    titles = ("defect", "file", "figure that moved farthest", "from -> to", "times its bound", "figures out")
    return table(titles, rows)


def not_seen() -> str:
    """Every defect that is not, and why."""
    return table(
        ("defect", "file", "why"), [(name, f"`{DEFECTS[name].file}`", why) for name, why in NOT_SEEN.items()]
    )


PAGE = Page("docs/timing-defects.md", {"score": score, "bounds": bounds, "seen": seen, "not_seen": not_seen})

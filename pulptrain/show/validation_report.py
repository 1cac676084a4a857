# SPDX-License-Identifier: Apache-2.0
"""How far predictions are off: as one plain object, and for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from configs.version import VERSION
from scheduler.validation.rows.statistics import Result, farthest_off, figures, grouped, timed
from scheduler.validation.runner import Refused, Validation
from traces.text_table import table_lines

WORST_ROWS = 10
"""Rows named under the table."""

FIGURES = {
    "cases": "rows",
    "mape_percent": "mean",
    "p95_percent": "p95",
    "max_percent": "max",
    "bias_percent": "bias",
    "noise_percent": "noise",
    "instructions_mape_percent": "instr",
    "top1_regret_percent": "regret",
}
"""Figures of the table and their column heads, in order; with four columns of groups they fit 100."""

HEADS = {"bank_conflicts": "conflicts"}
"""Shorter heads of group columns."""


def validation_summary(done: Validation, group_by: Sequence[str] = ()) -> dict[str, Any]:
    """What ``validate --json`` prints, `groups` if asked for; rows keep the columns the KIND does not use.

    `not_measured` counts rows without a measured time, whose error is null and which are in `cases` only.
    """
    kind = done.kind.name
    summary: dict[str, Any] = {"kind": kind, **figures(done.results, kind)}
    if group_by:
        summary["groups"] = [
            {"group": dict(zip(group_by, key, strict=True)), **figures(results, kind)}
            for key, results in grouped(done.results, group_by).items()
        ]
    columns = {"id", *(column.name for column in done.kind.columns)}
    summary["not_predicted"] = len(done.refused)
    summary["not_predicted_rows"] = [
        {"where": row.error.where, "reason": row.error.message} for row in done.refused
    ]
    summary["not_measured"] = len(done.results) - len(timed(done.results))
    summary["rows"] = [_row(result, columns) for result in done.results]
    summary["version"] = VERSION
    return summary


def _row(result: Result, known: set[str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": result.case.id,
        "measured": result.measured,
        "predicted": result.prediction.cycles,
        "error_percent": result.error_percent if result.measured else None,
    }
    extra = {name: cell for name, cell in result.case.cells.items() if name not in known}
    return {**extra, **row}


def list_refused(refused: Sequence[Refused]) -> None:
    """Tell on standard error which rows are not predicted: a line per row, the same cure once only."""
    cures: set[str] = set()
    for row in refused:
        print(f"pulptrain: {row.error.where}: {row.error.message}", file=sys.stderr)
        cure = row.error.cure
        if cure is not None and cure not in cures:
            print(f"  try: {cure}", file=sys.stderr)
            cures.add(cure)


def print_tables(width: int, done: Validation, columns: Sequence[str]) -> None:
    """Print the figures by group and for all rows, and the rows that are farthest off."""
    kind = done.kind.name
    groups = grouped(done.results, columns)
    shown = [name for name in FIGURES if name in figures((), kind)]
    heads = [*(HEADS.get(column, column) for column in columns), *(FIGURES[name] for name in shown)]
    rows = []
    for key in sorted(groups, key=in_number_order):
        numbers = figures(groups[key], kind)
        rows.append([*(text or "-" for text in key), *(_cell(numbers[name]) for name in shown)])
    total = figures(done.results, kind)
    rows.append(["all", *[""] * (len(columns) - 1), *(_cell(total[name]) for name in shown)])
    left = [HEADS.get(column, column) for column in columns]
    print("\n".join(table_lines(heads, rows, width, left=left)))
    print(
        "Errors in percent of the measured cycles. All rows: median error "
        f"{_cell(total['median_percent'])} %, rank correlation {_cell(total['rank_correlation'], 4)}."
    )
    print(f"\nfarthest off of {len(done.results)} rows:")
    worst = [
        [
            result.case.id,
            f"{result.measured:,}",
            f"{result.prediction.cycles:,}",
            f"{result.error_percent:+z.2f}",
        ]
        for result in farthest_off(done.results, WORST_ROWS)
    ]
    print("\n".join(table_lines(["row", "measured", "predicted", "error %"], worst, width)))


def in_number_order(key: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Texts, then numbers in numeric order."""
    return tuple((int(text), "") if text.isdigit() else (-1, text) for text in key)


def _cell(value: float | None, decimals: int = 2) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{decimals}f}"

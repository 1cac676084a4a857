# SPDX-License-Identifier: Apache-2.0
"""How far predictions are off, as one plain object: what ``validate --json`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from configs.version import VERSION
from scheduler.validation.rows.statistics import Result, figures, grouped, timed
from scheduler.validation.runner import Validation


def validation_summary(done: Validation, group_by: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON object of the contract, `groups` if asked for; rows keep the columns the KIND does not use.

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

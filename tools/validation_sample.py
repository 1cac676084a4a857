# SPDX-License-Identifier: Apache-2.0
"""Figures of every measured set on a seeded sample of its rows: a quick look at what a change does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from configs.errors import InputError
from scheduler.validation.rows.kinds import kind_named
from scheduler.validation.rows.statistics import Result, figures
from scheduler.validation.runner import predict_rows
from tools.validation.sets import SETS

SEED = 2024
ROWS = {"mm": 160, "layer": 120, "micro": 200, "rtl mm": 60, "rtl micro": 120, "rtl loops": 48}
OTHER_ROWS = 24
"""Rows drawn from a set; all if it has fewer."""

DIGITS = 3
"""Decimals of a figure."""


def sample_figures(name: str, folder: Path) -> dict[str, Any]:
    """Figures of the sample of a set whose file is in `folder`, and the sum of the predicted cycles.

    `not_predicted` is how many rows of it cannot be.

    The sample depends on the order of the rows of the file and on nothing else.
    """
    item = SETS[name]
    kind = kind_named(item.kind)
    # Rows that cannot be read are counted on the page; here they are no part of the sample.
    cases = kind.read(folder / item.file, item.selections, [])
    count = min(len(cases), ROWS.get(name, OTHER_ROWS))
    chosen = sorted(random.Random(SEED).sample(range(len(cases)), count))
    results = []
    for index, answer in zip(chosen, predict_rows(item.kind, [cases[i] for i in chosen]), strict=True):
        if not isinstance(answer, InputError):
            results.append(Result(cases[index], answer, kind.measure_of(cases[index]).column))
    numbers = {
        key: round(value, DIGITS) if isinstance(value, float) else value
        for key, value in figures(results, item.kind).items()
    }
    return {
        **numbers,
        "not_predicted": count - len(results),
        "predicted_cycles": sum(result.prediction.cycles for result in results),
    }

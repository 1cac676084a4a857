# SPDX-License-Identifier: Apache-2.0
"""The figures that watch, and how far each may move: the one place where the bounds come from.

A figure may move by what it is uncertain by anyway. A measured row is known to within the noise of its set
(the scatter of a second measurement, `noise_percent` of tests/validation-figures.json; of kernels measured
once that of the same kernels elsewhere, `MEASURED_TWICE`) or to one cycle, as counters count, whichever is
more. The mean of rows is known to the root of the sum of squares of these, divided by their number: its
standard error. That is the bound of a mean error, of a bias and of the bias of a group; a 95th percentile,
which hangs on few rows, has twice the standard error of a mean and so twice the bound. No bound is below
`LEAST_PERCENT`, so that a harmless change (another rounding, another order of two transfers) stays inside.

A change of the model that is meant moves figures, too: then the committed ones are written again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import sqrt
from typing import Any

import numpy as np

from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.kinds import kind_named
from scheduler.validation.rows.tiled_layers import NO_COMPUTE
from tools.pages.page import ROOT
from tools.timing_defects.rows import WATCHED, rows_of
from tools.validation.sets import SETS

LEAST_PERCENT = 0.25
"""Percentage points every mean or bias may move: the standard error of the 120 sampled rows of KIND layer,
whose calls scatter most (2.8 %). A figure is not known any better, so nothing is learnt from less."""

COUNTED_CYCLES = 1
"""A counter reads whole cycles."""

PERCENTILE_FACTOR = 2
"""Standard error of a 95th percentile over that of a mean, of normal errors: 2.1."""

MEAN, BIAS, PERCENTILE = "mean", "bias", "95th percentile"

COMMITTED = ROOT / "tests" / "timing-defects.json"
"""Figures, bounds and what came of every defect, as `python -m tools.timing_defects --write` found them."""

NOISES = ROOT / "tests" / "validation-figures.json"

Cycles = Mapping[str, Sequence[int | None]]
"""By set: predicted cycles of its rows, None of a row that cannot be predicted."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a set or of a `group` of its rows, in percent of measured cycles; `bound` in points."""

    set: str
    group: str
    what: str
    percent: float
    bound: float

    @property
    def name(self) -> str:
        """As tables have it: set, group, which figure."""
        return " ".join(filter(None, (self.set + ("," if self.group else ""), self.group, self.what)))


@dataclass(frozen=True, slots=True)
class Move:
    """A figure that has left its bound."""

    figure: str
    committed: float
    percent: float
    bound: float

    @property
    def times(self) -> float:
        """How often its bound it has moved."""
        return abs(self.percent - self.committed) / self.bound


def figures_of(cycles: Cycles) -> list[Figure]:
    """All figures of the sets whose rows were predicted."""
    return [figure for name, predicted in cycles.items() for figure in _figures(name, predicted)]


def _figures(name: str, predicted: Sequence[int | None]) -> Iterator[Figure]:
    kind = kind_named(SETS[name].kind)
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for case, cycles in zip(rows_of(name), predicted, strict=True):
        if cycles is None:
            continue
        measured = case.number(kind.measure_of(case).column)
        row = (
            100.0 * (cycles - measured) / measured,
            max(noise_percent(name, case), 100.0 * COUNTED_CYCLES / measured),
        )
        groups[""].append(row)
        if WATCHED[name].groups:
            groups[_group(name, case)].append(row)
    for group, rows in groups.items():
        errors = np.array([error for error, _ in rows])
        bound = max(LEAST_PERCENT, sqrt(sum(known * known for _, known in rows)) / len(rows))
        yield Figure(name, group, BIAS, float(errors.mean()), bound)
        if not group:
            absolute = np.abs(errors)
            yield Figure(name, group, MEAN, float(absolute.mean()), bound)
            percentile = float(np.percentile(absolute, 95))
            yield Figure(name, group, PERCENTILE, percentile, PERCENTILE_FACTOR * bound)


def _group(name: str, case: Case) -> str:
    words = (case.cells[column] for column in WATCHED[name].groups)
    return " ".join(word for word in words if word not in ("", "-"))


@cache
def _noises() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(NOISES.read_text(encoding="utf-8"))
    return found


MEASURED_TWICE = {
    "tiled": "mm",
    "tiled-layers": "mm",
    "overlap, kernel": "mm",
    "overlap, transfers": "mm",
    "tutorial-anchors": "layer",
}
"""Sets of rows that were measured once -> the set whose kernels were measured twice, in the same way."""


def noise_percent(name: str, case: Case) -> float:
    """How far two measurements of a row of a set lie apart; 0 where no kernel runs."""
    if case.cells.get("buffering", "").endswith(NO_COMPUTE):
        return 0.0
    return float(_noises()[MEASURED_TWICE.get(name, name)]["noise_percent"] or 0.0)


def committed() -> dict[str, Any]:
    """What `COMMITTED` holds: `rows`, `figures` and `defects`."""
    found: dict[str, Any] = json.loads(COMMITTED.read_text(encoding="utf-8"))
    return found


def moves(cycles: Cycles) -> list[Move]:
    """The figures of these predictions that are beyond their bounds, farthest first."""
    before = committed()["figures"]
    found = []
    for figure in figures_of(cycles):
        known = before[figure.name]
        move = Move(figure.name, known["percent"], figure.percent, known["bound"])
        if move.times > 1:
            found.append(move)
    return sorted(found, key=lambda move: -move.times)

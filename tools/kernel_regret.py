# SPDX-License-Identifier: Apache-2.0
"""What picking the kernel with the fewest predicted cycles costs, choice by choice, on measured matmuls.

And what it would cost to pick by a measurement: where FPUs or banks are shared, two measurements of a warm
kernel differ, because nobody sets in which phase the cores meet, and no prediction can be asked to choose
better than they repeat (`repeat_percents`, `sharing_agreements`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.validation.rows.statistics import Result, both_samples, grouped

SAME_CHOICE = ("codegen", "dtype", "n", "k", "m", "trans_b", "cores", "bank_conflicts", "fpus")
"""Rows equal in these differ by kernel only."""

CELL = ("codegen", "cores", "fpus", "bank_conflicts")
"""What choices are gathered by."""

Cell = tuple[str, ...]
"""The texts of `CELL` of a choice."""


@dataclass(frozen=True, slots=True)
class KernelRegret:
    """The kernels of one shape, team and configuration: the predicted fastest against the measured fastest.

    `regret_percent` is what the chosen one takes more than the best, both by the mean of the two samples.
    `repeat_percents` are the same for a choice by one sample, scored by the other, both ways round; empty
    without a second sample. `quiet` is whether two runs can hardly differ: one core, or private FPUs without
    bank conflicts.
    """

    cell: Cell
    shape: str
    chosen: str
    best: str
    kernels: int
    regret_percent: float
    repeat_percents: tuple[float, ...]
    quiet: bool


def kernel_choices(results: Sequence[Result]) -> list[KernelRegret]:
    """All choices among two kernels or more, in order of the rows. Equal predictions: the first row."""
    choices = []
    for rows in grouped(results, SAME_CHOICE).values():
        if len({row.case.text("kernel") for row in rows}) < 2:
            continue
        chosen = min(rows, key=lambda row: row.prediction.cycles)
        best = min(rows, key=both_samples)
        case = chosen.case
        alone = case.number("cores") == 1
        undisturbed = case.text("fpus") == "private" and case.number("bank_conflicts") == 0
        cells = case.cells
        choices.append(
            KernelRegret(
                tuple(cells[column] for column in CELL),
                f"{cells['n']}x{cells['k']}x{cells['m']}{'ᵀ' if cells['trans_b'] == '1' else ''}",
                case.text("kernel"),
                best.case.text("kernel"),
                len(rows),
                _excess_percent(both_samples, chosen, rows),
                _repeats(rows),
                alone or undisturbed,
            )
        )
    return choices


def _excess_percent(cycles: Callable[[Result], float], chosen: Result, rows: Sequence[Result]) -> float:
    return 100.0 * (cycles(chosen) / min(map(cycles, rows)) - 1.0)


def _repeats(rows: Sequence[Result]) -> tuple[float, ...]:
    if any(row.case.optional("cycles_kernel") is None for row in rows):
        return ()

    def first(row: Result) -> float:
        return row.case.number("cycles")

    def second(row: Result) -> float:
        return row.case.number("cycles_kernel")

    return tuple(
        _excess_percent(scored, min(rows, key=picked), rows)
        for picked, scored in ((first, second), (second, first))
    )


def share_within(choices: Sequence[KernelRegret], percent: float) -> float:
    """Share of the choices, from 0 to 1, whose regret is at most `percent`. There must be a choice."""
    return sum(choice.regret_percent <= percent for choice in choices) / len(choices)


def share_repeated_within(choices: Sequence[KernelRegret], percent: float) -> float | None:
    """The same of choices by one measurement scored by the other; None without a second sample."""
    repeats = [value for choice in choices for value in choice.repeat_percents]
    return sum(value <= percent for value in repeats) / len(repeats) if repeats else None


@dataclass(frozen=True, slots=True)
class SharingAgreement:
    """What sharing costs in one cell: cycles over those with private FPUs and no conflicts, kernel by kernel.

    Means of that ratio, measured and predicted, and its correlation between the two samples and between a
    sample (the mean of both correlations) and the prediction.
    """

    cell: Cell
    kernels: int
    measured: float
    predicted: float
    between_samples: float
    with_prediction: float


def sharing_agreements(results: Sequence[Result]) -> list[SharingAgreement]:
    """Of every cell with rows that were measured with private FPUs and without conflicts as well."""
    quiet: dict[Hashable, Result] = {}
    shared: dict[Cell, list[tuple[Hashable, Result]]] = defaultdict(list)
    for row in results:
        cells = row.case.cells
        key = tuple(cells[column] for column in (*SAME_CHOICE[:7], "kernel"))
        if (cells["fpus"], cells["bank_conflicts"]) == ("private", "0"):
            quiet[key] = row
        elif row.case.optional("cycles_kernel") is not None:
            shared[tuple(cells[column] for column in CELL)].append((key, row))
    agreements = []
    for cell, rows in shared.items():
        ratios = np.array(
            [
                (
                    row.measured / quiet[key].measured,
                    row.case.number("cycles_kernel") / quiet[key].case.number("cycles_kernel"),
                    row.prediction.cycles / quiet[key].prediction.cycles,
                )
                for key, row in rows
                if key in quiet
            ]
        )
        if len(ratios) > 1:
            between = np.corrcoef(ratios.T)
            agreements.append(
                SharingAgreement(
                    cell,
                    len(ratios),
                    float(ratios[:, :2].mean()),
                    float(ratios[:, 2].mean()),
                    float(between[0, 1]),
                    float((between[0, 2] + between[1, 2]) / 2),
                )
            )
    return agreements

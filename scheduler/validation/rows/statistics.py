# SPDX-License-Identifier: Apache-2.0
"""How far predictions are from measurements: the figures `pulptrain validate` prints."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from configs.values import Struct
from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.prediction import Prediction

CONFIGURATION = ("soc", "timing", "bank_conflicts", "fpus")


class Result(Struct, frozen=True):
    """One predicted row; `column` is the one with the measured cycles."""

    case: Case
    prediction: Prediction
    column: str = "cycles"

    @property
    def measured(self) -> int:
        """Measured cycles."""
        return self.case.number(self.column)

    @property
    def error_percent(self) -> float:
        """(predicted - measured) / measured, on cycles; not a number where no time was measured."""
        if not self.measured:
            return math.nan
        return 100.0 * (self.prediction.cycles - self.measured) / self.measured


def timed(results: Iterable[Result]) -> list[Result]:
    """The rows with a measured time: the others are the base that is counted from."""
    return [result for result in results if result.measured]


def farthest_off(results: Iterable[Result], count: int) -> list[Result]:
    """The rows with the largest errors, largest first."""
    return sorted(timed(results), key=lambda result: -abs(result.error_percent))[:count]


def figures(results: Sequence[Result], kind: str) -> dict[str, Any]:
    """The figures of the contract over some rows; null where the rows do not say.

    `median_percent`, `p95_percent` (linear interpolation) and `max_percent` are of the absolute error,
    `bias_percent` is the mean of the signed one, `rank_correlation` Spearman's with ties averaged. `cases`
    counts all rows, the others only those with a measured time.
    """
    count, results = len(results), timed(results)
    errors = np.array([result.error_percent for result in results])
    absolute = np.abs(errors)
    numbers: dict[str, Any] = {
        "cases": count,
        "mape_percent": _mean(absolute),
        "median_percent": float(np.median(absolute)) if len(results) else None,
        "p95_percent": float(np.percentile(absolute, 95)) if len(results) else None,
        "max_percent": float(absolute.max()) if len(results) else None,
        "bias_percent": _mean(errors),
        "rank_correlation": rank_correlation(
            [result.measured for result in results], [result.prediction.cycles for result in results]
        ),
        "noise_percent": noise_percent(results, kind),
    }
    if kind == "mm":
        numbers["instructions_mape_percent"] = instructions_mape_percent(results)
        numbers["top1_regret_percent"] = top1_regret_percent(results)
    return numbers


def grouped(results: Iterable[Result], columns: Sequence[str]) -> dict[tuple[str, ...], list[Result]]:
    """Results by the texts of some columns, groups in order of first appearance."""
    groups: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for result in results:
        groups[tuple(result.case.cells[column] for column in columns)].append(result)
    return dict(groups)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for fewer than two values or where one side is constant."""
    if len(a) < 2:
        return None
    ranks_a, ranks_b = _ranks(a), _ranks(b)
    spread = float(ranks_a.std() * ranks_b.std())
    if spread == 0.0:
        return None
    return float(((ranks_a - ranks_a.mean()) * (ranks_b - ranks_b.mean())).mean() / spread)


def noise_percent(results: Sequence[Result], kind: str) -> float | None:
    """How far two measurements of the same case lie apart.

    mm and loop: mean of |a - b - median(a - b)| / a, a `cycles`, b `cycles_kernel`, the median within
    codegen, cores and configuration. layer: mean of (`cycles_max` - `cycles_min`) / `cycles`. overlap and
    tiled: mean distance of the same kernel's time without transfers (`cycles_compute_alone`, of every tile
    `cycles_compute_per_tile`), measured with every row, from its median, over the cycles of the row.
    icache-rtl: mean distance of the passes 1 to 3 from their mean.
    """
    if kind in ("mm", "loop"):
        return _second_sample_noise(results)
    if kind == "layer":
        spreads = []
        for result in results:
            low, high = result.case.optional("cycles_min"), result.case.optional("cycles_max")
            if low is not None and high is not None:
                spreads.append(100.0 * (high - low) / result.measured)
        return _mean(spreads)
    if kind == "overlap":
        return _noise_of_kernels(results, "cycles_compute_alone", "")
    if kind == "tiled":
        return _noise_of_kernels(results, "cycles_compute_per_tile", "tiles")
    if kind == "icache-rtl":
        return _noise_of_passes(results)
    return None


_KERNEL = ("codegen", "kernel", "dtype", "n", "k", "m", "cores", *CONFIGURATION, "build")
"""Columns that name the kernel of a row and its machine."""

_PASSES = ("iter1_max", "iter2_max", "iter3_max")
"""Columns of the warm passes through the same code."""


def _noise_of_kernels(results: Sequence[Result], column: str, times: str) -> float | None:
    """Rows run the same kernel alone, too; None where none was timed twice."""
    alone: dict[Hashable, list[tuple[Result, int]]] = defaultdict(list)
    for result in timed(results):
        cycles = result.case.optional(column)
        if cycles is not None:
            alone[tuple(result.case.cells.get(name, "") for name in _KERNEL)].append((result, cycles))
    noise = []
    for rows in alone.values():
        if len(rows) < 2:
            continue
        median = float(np.median([cycles for _, cycles in rows]))
        noise += [
            100.0 * abs(cycles - median) * (result.case.number(times) if times else 1) / result.measured
            for result, cycles in rows
        ]
    return _mean(noise)


def _noise_of_passes(results: Sequence[Result]) -> float | None:
    noise = []
    for result in timed(results):
        if result.column not in _PASSES:
            continue
        passes = [result.case.number(name) for name in _PASSES]
        mean = sum(passes) / len(passes)
        noise += [100.0 * abs(cycles - mean) / mean for cycles in passes]
    return _mean(noise)


def instructions_mape_percent(results: Sequence[Result]) -> float | None:
    """Mean absolute error of the instructions over the rows where they were counted."""
    return _mean(instruction_errors_percent(results))


def instruction_errors_percent(results: Sequence[Result]) -> list[float]:
    """Absolute errors of the instructions of the rows where they were counted."""
    errors = []
    for result in results:
        counted, predicted = result.case.optional("instructions"), result.prediction.instructions
        if counted and predicted is not None:
            errors.append(100.0 * abs(predicted - counted) / counted)
    return errors


def top1_regret_percent(results: Sequence[Result]) -> float | None:
    """What picking the kernel with the fewest predicted cycles costs over the best, mean over the choices.

    A choice is the kernels of one codegen for one shape, team and configuration. Measured is the mean of
    `cycles` and `cycles_kernel` (of `cycles` alone where the other is not there). Equal predictions: the
    kernel that comes first in the file.
    """
    columns = ("codegen", "dtype", "n", "k", "m", "trans_b", "cores", "bank_conflicts", "fpus")
    regrets = []
    for group in grouped(results, columns).values():
        if len({result.case.text("kernel") for result in group}) < 2:
            continue
        chosen = min(group, key=lambda result: result.prediction.cycles)
        best = min(both_samples(result) for result in group)
        regrets.append(100.0 * (both_samples(chosen) / best - 1.0))
    return _mean(regrets)


def both_samples(result: Result) -> float:
    """Mean of the two samples of a measured matmul, the one where there is no second."""
    second = result.case.optional("cycles_kernel")
    return float(result.measured) if second is None else (result.measured + second) / 2.0


def _second_sample_noise(results: Sequence[Result]) -> float | None:
    differences: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for result in results:
        second = result.case.optional("cycles_kernel")
        if second is not None:
            key = tuple(result.case.cells[column] for column in ("codegen", "cores", *CONFIGURATION))
            differences[key].append((result.measured, result.measured - second))
    noise = []
    for pairs in differences.values():
        median = float(np.median([difference for _, difference in pairs]))
        noise += [100.0 * abs(difference - median) / measured for measured, difference in pairs]
    return _mean(noise)


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    averages: NDArray[np.float64] = last - (counts - 1) / 2.0
    return averages[inverse]

# SPDX-License-Identifier: Apache-2.0
"""The best MAC per cycle of every configuration of the measured matmuls, predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.validation.rows.statistics import Result, both_samples, grouped

COLUMNS = ("dtype", "fpus", "bank_conflicts")
"""What makes a configuration."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The best of one configuration; `row` is the id of the row that was measured best."""

    configuration: tuple[str, ...]
    codegen: str
    measured: float
    predicted: float
    row: str
    predicted_row: str

    @property
    def error_percent(self) -> float:
        """Of the predicted best."""
        return 100.0 * (self.predicted / self.measured - 1.0)


def peaks(results: Sequence[Result], cores: int = 8) -> list[Peak]:
    """Best MAC per cycle over all shapes and kernels, of all codegens together ("all") and of each.

    Measured is the mean of both samples; the predicted best may be another row than the measured one.
    """
    listed = []
    on_cores = [row for row in results if row.case.number("cores") == cores]
    for configuration, rows in sorted(grouped(on_cores, COLUMNS).items()):
        listed.append(_peak(configuration, "all", rows))
        listed += [
            _peak(configuration, codegen, part)
            for (codegen,), part in sorted(grouped(rows, ("codegen",)).items())
        ]
    return listed


def _peak(configuration: tuple[str, ...], codegen: str, rows: Sequence[Result]) -> Peak:
    measured = max(rows, key=lambda row: _macs(row) / both_samples(row))
    predicted = max(rows, key=lambda row: _macs(row) / row.prediction.cycles)
    return Peak(
        configuration,
        codegen,
        _macs(measured) / both_samples(measured),
        _macs(predicted) / predicted.prediction.cycles,
        measured.case.id,
        predicted.case.id,
    )


def _macs(row: Result) -> int:
    return row.case.number("n") * row.case.number("k") * row.case.number("m")

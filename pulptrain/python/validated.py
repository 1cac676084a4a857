# SPDX-License-Identifier: Apache-2.0
"""How far predictions are off measurements, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pulptrain.python.op_result import Summarised, data_frame


class Validated(Summarised):
    """Predictions of measured rows; `summary` is what ``pulptrain validate --json`` prints."""

    @property
    def mape_percent(self) -> float | None:
        """Mean absolute error in percent of the measured cycles; None without a measured row."""
        value = self.summary["mape_percent"]
        return None if value is None else float(value)

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """Every row: `id`, `measured` and `predicted` cycles, `error_percent`."""
        rows: Sequence[Mapping[str, Any]] = self.summary["rows"]
        return rows

    def to_pandas(self) -> Any:
        """A pandas data frame with a row each. Raises `InputError` without pandas."""
        return data_frame(self.rows)

    def __str__(self) -> str:
        numbers = [
            f"{key.removesuffix('_percent')} {value:.2f} %"
            for key, value in self.summary.items()
            if key.endswith("_percent") and isinstance(value, float)
        ]
        return f"{self.summary['kind']}, {self.summary['cases']} cases: {', '.join(numbers)}"

    def __repr__(self) -> str:
        return f"Validated({self})"

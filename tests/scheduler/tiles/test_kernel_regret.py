# SPDX-License-Identifier: Apache-2.0
"""What a choice by prediction costs, and what a choice by one measurement would, worked out by hand."""

import pytest

from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.rows.statistics import Result
from tools.kernel_regret import (
    kernel_choices,
    share_repeated_within,
    share_within,
    sharing_agreements,
)

SHARED = {"fpus": "4-static", "cores": 8}
ROW = {
    **{"codegen": "c", "dtype": "fp32", "n": 1, "k": 1, "m": 1, "trans_b": 0},
    **{"cores": 1, "bank_conflicts": 0, "fpus": "private"},
}


def samples(first: int, second: int | None, predicted: int, kernel: str, **cells: str | int) -> Result:
    row = {**ROW, **cells, "kernel": kernel}
    values = {**row, "cycles": first, "cycles_kernel": second}
    texts = {name: str(value) for name, value in row.items()}
    return Result(Case("id", "f:2", values, texts), Prediction(predicted))


def test_a_choice_is_scored_by_the_mean_of_both_samples() -> None:
    rows = [
        samples(100, 120, 90, "a", **SHARED),  # predicted fastest, mean 110
        samples(110, 90, 95, "b", **SHARED),  # measured fastest, mean 100
        samples(50, 50, 50, "alone", n=2, **SHARED),  # no choice
    ]
    (choice,) = kernel_choices(rows)
    assert (choice.cell, choice.shape) == (("c", "8", "4-static", "0"), "1x1x1")
    assert (choice.chosen, choice.best, choice.kernels, choice.quiet) == ("a", "b", 2, False)
    assert choice.regret_percent == pytest.approx(10)
    # The first sample picks a, 120 instead of 90 by the second; the second picks b, 110 instead of 100.
    assert choice.repeat_percents == pytest.approx((100 / 3, 10))
    assert share_within([choice], 10.1) == 1
    assert share_repeated_within([choice], 10.1) == 0.5


def test_rows_measured_once_say_nothing_about_repeating() -> None:
    rows = [samples(100, None, 90, "a"), samples(105, None, 95, "b")]
    (choice,) = kernel_choices(rows)
    assert choice.quiet
    assert choice.repeat_percents == ()
    assert share_repeated_within([choice], 3) is None


def test_sharing_is_compared_with_the_same_kernels_on_private_fpus() -> None:
    """Both samples agree on which kernel suffers, the prediction says the other one does."""
    quiet = [samples(100, 200, 50, kernel, fpus="private", cores=8) for kernel in "abc"]
    shared = [
        samples(100, 200, 60, "a", **SHARED),
        samples(110, 220, 55, "b", **SHARED),
        samples(120, 240, 50, "c", **SHARED),
        samples(999, 999, 999, "not measured with private FPUs", **SHARED),
    ]
    (found,) = sharing_agreements([*quiet, *shared])
    assert (found.cell, found.kernels) == (("c", "8", "4-static", "0"), 3)
    assert (found.measured, found.predicted) == (pytest.approx(1.1), pytest.approx(1.1))
    assert found.between_samples == pytest.approx(1)
    assert found.with_prediction == pytest.approx(-1)
    assert sharing_agreements(quiet) == []

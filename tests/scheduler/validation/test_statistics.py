# SPDX-License-Identifier: Apache-2.0
"""The figures of `pulptrain validate`, on rows small enough to work out by hand."""

from __future__ import annotations

import pytest

from configs.values import replace
from scheduler.validation.rows.cases import Case
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.rows.statistics import Result, farthest_off, figures, grouped, rank_correlation

PASSES = ("iter1_max", "iter2_max", "iter3_max")

MACHINE = {
    "soc": "s",
    "timing": "t",
    "bank_conflicts": "0",
    "fpus": "private",
    "codegen": "c",
    "dtype": "fp32",
}


def result(measured: int, predicted: int, instructions: int | None = None, **cells: str | int) -> Result:
    named = MACHINE | {"n": "1", "k": "1", "m": "1", "trans_b": "0", "cores": "1", "kernel": "mm"}
    named |= {name: str(cell) for name, cell in cells.items()}
    counted = {"cycles": measured, "cycles_kernel": None, "instructions": None}
    counted |= {"cycles_min": None, "cycles_max": None}
    counted |= dict.fromkeys(("tiles", "cycles_compute_alone", "cycles_compute_per_tile", *PASSES))
    values: dict[str, str | int | None] = {**named, **counted}
    values |= {name: cell for name, cell in cells.items() if name in counted}
    return Result(Case("id", "f:2", values, named), Prediction(predicted, instructions))


def test_errors_are_signed_and_their_figures_absolute() -> None:
    rows = [result(100, 110), result(200, 180), result(400, 400), result(1000, 1300)]
    numbers = figures(rows, "dma")
    assert numbers["cases"] == 4
    assert numbers["mape_percent"] == pytest.approx(12.5)
    assert numbers["median_percent"] == pytest.approx(10)
    assert numbers["bias_percent"] == pytest.approx(7.5)
    assert numbers["max_percent"] == pytest.approx(30)
    assert numbers["p95_percent"] == pytest.approx(10 + 0.85 * 20)
    assert numbers["rank_correlation"] == pytest.approx(1)
    assert numbers["noise_percent"] is None
    assert "top1_regret_percent" not in numbers


def test_no_rows_give_no_figures() -> None:
    numbers = figures([], "mm")
    assert numbers.pop("cases") == 0
    assert set(numbers.values()) == {None}


def test_rows_without_a_measured_time_count_as_cases_only() -> None:
    rows = [result(100, 110), result(0, 20)]
    numbers = figures(rows, "dma")
    assert numbers["cases"] == 2
    assert numbers["mape_percent"] == numbers["max_percent"] == pytest.approx(10)
    assert [row.measured for row in farthest_off(rows, 5)] == [100]


def test_ties_share_their_rank() -> None:
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 2, 4], [10, 20, 20, 40]) == pytest.approx(1)
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 1.125, spreads of 1.125 and 1.25.
    assert rank_correlation([1, 2, 2, 4], [1, 2, 3, 4]) == pytest.approx(1.125 / (1.125 * 1.25) ** 0.5)
    assert rank_correlation([5, 5], [1, 2]) is None
    assert rank_correlation([5], [1]) is None


def test_noise_of_mm_is_the_scatter_around_the_median_difference_of_its_set() -> None:
    """Differences 20, 20, 50 in one set, median 20, and 5 alone in another: (0 + 0 + 30/300 + 0) / 4."""
    rows = [
        result(100, 1, cycles_kernel=80),
        result(200, 1, cycles_kernel=180),
        result(300, 1, cycles_kernel=250),
        result(100, 1, cycles_kernel=95, cores=8),
        result(100, 1),
    ]
    assert figures(rows, "mm")["noise_percent"] == pytest.approx(100 * 0.1 / 4)
    assert figures(rows, "loop")["noise_percent"] == pytest.approx(100 * 0.1 / 4)


def test_noise_of_a_layer_is_the_range_of_its_calls() -> None:
    rows = [result(100, 1, cycles_min=90, cycles_max=120), result(100, 1, cycles_min=100), result(100, 1)]
    assert figures(rows, "layer")["noise_percent"] == pytest.approx(30)


def test_noise_of_kernels_beside_transfers_is_the_spread_of_their_time_without() -> None:
    """Alone 90, 100 and 120, median 100, over rows of 200; the kernel of the fourth was timed once."""
    rows = [
        result(200, 1, cycles_compute_alone=90),
        result(200, 1, cycles_compute_alone=100),
        result(200, 1, cycles_compute_alone=120),
        result(200, 1, cycles_compute_alone=500, kernel="other"),
    ]
    assert figures(rows, "overlap")["noise_percent"] == pytest.approx(100 * (10 + 0 + 20) / 200 / 3)
    assert figures(rows[3:], "overlap")["noise_percent"] is None
    tiles = [result(1000, 1, cycles_compute_per_tile=cycles, tiles=4) for cycles in (90, 110)]
    assert figures(tiles, "tiled")["noise_percent"] == pytest.approx(100 * 10 * 4 / 1000)


def test_noise_of_a_pass_is_the_distance_of_the_warm_passes_from_their_mean() -> None:
    row = result(100, 1, iter1_max=90, iter2_max=100, iter3_max=110)
    warm = replace(
        row, case=replace(row.case, values={**row.case.values, "iter3_max": 110}), column="iter3_max"
    )
    assert figures([warm], "icache-rtl")["noise_percent"] == pytest.approx(100 * (10 + 0 + 10) / 100 / 3)
    assert figures([row], "icache-rtl")["noise_percent"] is None, "the first pass was measured once"


def test_instruction_errors_are_averaged_over_rows_that_counted_them() -> None:
    def counted(measured: int, predicted: int) -> Result:
        row = result(10, 10, predicted)
        return Result(
            Case("id", "f:2", {**row.case.values, "instructions": measured}, row.case.cells), row.prediction
        )

    rows = [counted(100, 90), counted(100, 100), result(1, 1, 7)]
    assert figures(rows, "mm")["instructions_mape_percent"] == pytest.approx(5)


def test_regret_is_what_the_predicted_best_kernel_loses() -> None:
    """One choice costs 100 against 80, so 25 %; the other is right; a kernel alone is no choice."""
    rows = [
        result(110, 50, kernel="a", cycles_kernel=90),
        result(90, 60, kernel="b", cycles_kernel=70),
        result(100, 10, kernel="a", n=2),
        result(200, 20, kernel="b", n=2),
        result(500, 10, kernel="a", n=3),
    ]
    assert figures(rows, "mm")["top1_regret_percent"] == pytest.approx(12.5)


def test_groups_keep_the_order_of_the_file() -> None:
    rows = [result(1, 1, cores=8), result(2, 2, cores=1), result(3, 3, cores=8)]
    assert {key: [row.measured for row in part] for key, part in grouped(rows, ("cores",)).items()} == {
        ("8",): [1, 3],
        ("1",): [2],
    }

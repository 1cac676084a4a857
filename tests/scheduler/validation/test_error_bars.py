# SPDX-License-Identifier: Apache-2.0
"""Error bars: the rule by which errors of parts combine, and whether bars hold of rows held out."""

from __future__ import annotations

import random
from math import inf, pi, sqrt

import pytest

from configs.grades import MEASURED
from scheduler.validation.error_bars import (
    ANY,
    BESIDE,
    DISTURBED,
    ONE,
    UNDISTURBED,
    Bar,
    ErrorClass,
    ErrorTable,
    Key,
    candidates,
    combined,
    kernel_key,
    machine_key,
    shipped_table,
    student,
    team_of,
)
from tools.validation.error_classes import (
    ITERATIONS_ON_RTL,
    OPS_ON_RTL,
    TABLE,
    bar_of,
    class_of,
    held_out_today,
    iterations_of,
    shares_of,
    stamp,
    table_of,
    text_of,
)
from tools.validation.error_rows import FILES, STEPS, STEPS_WARM, ErrorRow, Part, cases_of, error_rows, stored
from trainlib.kernels.evidence import nest_evidence
from trainlib.kernels.library import LIBRARY

MANY = 10**9
"""Rows of a class whose bias and spread are as good as known."""


def test_biases_add_and_spreads_add_by_share() -> None:
    a, b = ErrorClass(MANY, 0.02, 0.04), ErrorClass(MANY, -0.01, 0.01)
    bar = combined([(0.25, "a", a), (0.75, "b", b)])
    assert bar.bias == pytest.approx(0.25 * 0.02 - 0.75 * 0.01)
    assert bar.spread == pytest.approx(0.25 * 0.04 + 0.75 * 0.01)
    assert bar.within == pytest.approx(0.0025 + 1.959964 * 0.0175, rel=1e-6)
    # A class may come in parts; it is one all the same.
    assert combined([(0.25, "a", a), (0.5, "b", b), (0.25, "b", b)]).spread == pytest.approx(bar.spread)


def test_causes_are_independent_of_each_other() -> None:
    instructions = [(1.0, "i", ErrorClass(MANY, 0.01, 0.03))]
    machine = [(1.0, "m", ErrorClass(MANY, 0.02, 0.04))]
    bar = combined(instructions, machine)
    assert (bar.bias, bar.spread) == (pytest.approx(0.03), pytest.approx(0.05))
    assert combined(machine, []) == combined(machine)


def test_few_rows_make_a_bar_longer() -> None:
    """The textbook's interval of the next value after ten."""
    bar = combined([(1.0, "few", ErrorClass(10, 0.0, 0.01))])
    assert bar.freedom == pytest.approx(9)
    assert bar.within == pytest.approx(2.262 * 0.01 * sqrt(1.1), rel=1e-3)
    two = combined([(0.5, "a", ErrorClass(10, 0.0, 0.01)), (0.5, "b", ErrorClass(10, 0.0, 0.01))])
    assert two.spread == pytest.approx(bar.spread)
    assert two.freedom == pytest.approx(18), "two equal spreads of 9 degrees are known as well as one of 18"
    assert combined([(1.0, "exact", ErrorClass(10, 0.02, 0.0))]) == Bar(0.02, 0.0, inf)


@pytest.mark.parametrize(
    ("freedom", "value"), [(3, 3.182), (5, 2.571), (9, 2.262), (30, 2.042), (120, 1.980), (inf, 1.960)]
)
def test_the_factor_is_that_of_the_tables(freedom: float, value: float) -> None:
    assert student(freedom) == pytest.approx(value, rel=0.01 if freedom < 9 else 0.001)


def test_typical_is_the_mean_of_the_absolute_error() -> None:
    assert Bar(0.0, 0.01, inf).typical == pytest.approx(0.01 * sqrt(2 / pi))
    assert Bar(-0.03, 0.0, inf).typical == 0.03
    drawn = random.Random(1)
    errors = [abs(drawn.gauss(0.01, 0.02)) for _ in range(100_000)]
    assert Bar(0.01, 0.02, inf).typical == pytest.approx(sum(errors) / len(errors), rel=0.01)


def test_a_class_without_rows_is_joined_with_wider_ones() -> None:
    key = Key("gvsoc", "matmul", "clang-rv32", UNDISTURBED, "below 2000")
    wider = [(item.codegen, item.team, item.size) for item in candidates(key)]
    assert wider == [
        (codegen, team, size)
        for codegen in ("clang-rv32", ANY)
        for team in (UNDISTURBED, DISTURBED)
        for size in ("below 2000", "below 500", ANY)
    ]
    longest = next(candidates(Key("gvsoc", "matmul", "clang-rv32", ONE, "10000 and more")))
    assert longest.size == "10000 and more"
    found = ErrorTable({Key("gvsoc", "matmul", ANY, DISTURBED, ANY).text: ErrorClass(10, 0, 0)}).nearest(key)
    assert found == ("gvsoc / matmul / any / shared / any", ErrorClass(10, 0, 0))
    assert ErrorTable({}).nearest(key) is None


def test_the_class_of_a_part_goes_by_its_calls() -> None:
    assert kernel_key("rtl", "moves", "c", ONE, 4_000, 4).size == "below 2000"
    assert kernel_key("rtl", "moves", "c", ONE, 10_000, 1).size == "10000 and more"
    assert kernel_key("rtl", "moves", "c", ONE, 10_000, 0).size == ANY
    assert machine_key("rtl", BESIDE, 900, 3).size == "below 500"
    assert machine_key("rtl", "DMA", 900, 3).size == ANY
    teams = (team_of(cores, private_fpus=own, bank_conflicts=met) for cores, own, met in TEAMS)
    assert [*teams] == [ONE, DISTURBED, DISTURBED, UNDISTURBED]


TEAMS = ((1, False, True), (8, True, True), (8, False, False), (8, True, False))


def test_a_row_of_several_parts_tells_of_none() -> None:
    def row(*parts: Part) -> ErrorRow:
        return ErrorRow("layer", "1", "relu FW", "gvsoc", "clang-xpulp", ONE, 1000, 1000, parts)

    relu, copy = Part("relu_fw", 950, 1, is_nest=True), Part("copy", 50, 1, is_nest=True)
    assert class_of(row(relu, copy)) == Key("gvsoc", "computes", "clang-xpulp", ONE, "below 2000")
    assert class_of(row(relu, Part("copy", 300, 1, is_nest=True))) is None


@pytest.mark.parametrize(
    ("programs", "longest_percent"),
    [
        ("layer steps, bars from kernels", 8),
        ("layer steps, bars from kernels and other layers", 8),
        ("tile loops", 6),
        ("whole iterations", 8),
        (OPS_ON_RTL, 35),
    ],
)
def test_nine_of_ten_lie_within_bars_they_had_no_part_in(programs: str, longest_percent: float) -> None:
    """A bar that always holds because it is long would be no result, so the median length is held too."""
    items = held_out_today()[programs]
    bars = sorted(item.bar.within for item in items if item.bar is not None)
    assert len(bars) == len(items) >= 14
    assert sum(item.within for item in items) >= 0.9 * len(items)
    assert 100 * bars[len(bars) // 2] < longest_percent


def test_every_exported_iteration_lies_within_a_bar_of_other_models() -> None:
    items = held_out_today()[ITERATIONS_ON_RTL]
    assert len(items) == 9
    assert all(item.within for item in items)


@pytest.mark.parametrize("sets", [STEPS, (STEPS_WARM,)])
def test_nine_of_ten_exported_ops_and_all_iterations_lie_within_what_a_run_states(
    sets: tuple[str, ...],
) -> None:
    rows = [row for row in stored() if row.set in sets]
    within = [abs(row.error) <= bar_of(shares_of(row), shipped_table()).within for row in rows]  # type: ignore[union-attr]
    assert len(rows) >= 168
    assert sum(within) >= 0.9 * len(rows)
    for row, shares in iterations_of(rows):
        bar = bar_of(shares, shipped_table())
        assert bar is not None
        assert abs(row.error) <= bar.within, row.row


def test_the_table_is_that_of_the_rows_and_of_today() -> None:
    """Otherwise ``python -m tools.validation.error_rows``, then ``... .error_classes``."""
    table = table_of(stored())
    assert TABLE.read_text(encoding="utf-8") == text_of(table), "made of other rows"
    assert shipped_table().digest == stamp(), "older than tests/validation-figures.json"
    assert shipped_table() == table


def predicted_again(name: str, count: int) -> None:
    cases = cases_of(name)
    again = error_rows(name, random.Random(name).sample(cases, min(count, len(cases))))
    assert set(again) <= {row for row in stored() if row.set == name}


@pytest.mark.parametrize("name", FILES)
def test_rows_are_predicted_as_they_are_kept(name: str) -> None:
    """One of every set; the samples of `tests/validation-figures.json` tell of the others."""
    predicted_again(name, 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_more_rows_are_predicted_as_they_are_kept(name: str) -> None:
    predicted_again(name, 100)


def test_a_kernel_has_a_family_if_rows_have_it() -> None:
    measured = {
        (found.rows_of, name)
        for codegen in LIBRARY.codegen_names()
        for name in LIBRARY.kernel_names(codegen)
        if (found := nest_evidence(codegen, name)).label == MEASURED and name != "layer_call"
    }
    for codegen, name in measured:
        assert shipped_table().family("gvsoc", codegen, name) is not None, (codegen, name)

# SPDX-License-Identifier: Apache-2.0
"""Code that is fetched: refills alone, sequences of ops, and whole iterations, against the RTL."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence

import numpy as np
import pytest

from scheduler.validation.rows import steps
from scheduler.validation.rows.cases import Case, Selection
from scheduler.validation.rows.kinds import kind_named
from scheduler.validation.rows.prediction import Prediction
from scheduler.validation.runner import predict_rows
from shared.paths import MEASURED


def predicted(kind: str, file: str, *selections: Selection) -> list[tuple[Case, int, int]]:
    """Rows with a model: case, predicted and measured cycles."""
    rows = kind_named(kind).read(MEASURED / file, selections, [])
    answers = predict_rows(kind, rows)
    return [
        (case, answer.cycles, case.number(kind_named(kind).measure_of(case).column))
        for case, answer in zip(rows, answers, strict=True)
        if isinstance(answer, Prediction)
    ]


def mean_error(rows: Sequence[tuple[Case, int, int]]) -> float:
    return float(np.mean([abs(cycles - measured) / measured for _, cycles, measured in rows]))


def test_refills_are_met_in_the_mean_by_all_rows_and_by_a_third_that_nothing_was_read_off() -> None:
    rows = predicted("refill", "rtl-refill.csv.gz", Selection("prefetch", ("0",)))
    assert len(rows) == 399
    assert mean_error(rows) <= 0.03
    assert mean_error(rows[2::3]) <= 0.03
    beside = [row for row in rows if row[0].text("group") == "dma"]
    assert mean_error(beside) <= 0.01, "lines behind the reads of the DMA"
    blocked = [row for row in rows if row[0].text("group") == "order"]
    assert mean_error(blocked) <= 0.02, "the third order of a direction waits until the first is cut"


def test_sequences_of_ops_are_met_and_without_code_are_not() -> None:
    rows = predicted("sequence", "rtl-sequence.csv.gz", Selection("measure", ("whole",)))
    assert len(rows) == 28
    assert mean_error(rows) <= 0.02
    warm = predicted("sequence", "rtl-sequence.csv.gz", Selection("measure", ("warm",)))[::4]
    assert mean_error(warm) <= 0.03, "the platform of the rows"
    without = [(case, cycles, rows[4 * number][2]) for number, (case, cycles, _) in enumerate(warm)]
    assert mean_error(without) > 0.15


RUNS = [
    ("simple-mlp", "double", "8"),
    *(
        pytest.param(*run, marks=pytest.mark.sweep)
        for run in (
            ("simple-mlp", "double", "1"),
            ("tutorial-cnn", "double", "8"),
            ("tutorial-cnn", "single", "8"),
            ("attn", "double", "8"),
            ("attn", "single", "8"),
            ("gru", "double", "8"),
            ("gru", "double", "1"),
        )
    ),
]


@pytest.mark.parametrize(("model", "buffering", "cores"), RUNS)
def test_an_iteration_with_the_instructions_measured_takes_what_the_rtl_took(
    model: str, buffering: str, cores: str
) -> None:
    rows = predicted(
        "steps",
        "rtl-steps.csv.gz",
        *(
            Selection(column, (value,))
            for column, value in (
                ("model", model),
                ("buffering", buffering),
                ("cores", cores),
                ("measure", "counted"),
            )
        ),
    )
    whole = sum(cycles for _, cycles, _ in rows) / sum(measured for *_, measured in rows)
    assert abs(whole - 1) <= 0.05


def test_an_iteration_with_hardware_loops_takes_what_the_rtl_took() -> None:
    """Another codegen, whose rows nothing was looked at for: 203,441 cycles."""
    rows = predicted("steps", "rtl-steps-xpulp.csv.gz", Selection("measure", ("counted",)))
    assert len(rows) == 10
    whole = sum(cycles for _, cycles, _ in rows)
    assert whole == pytest.approx(203_441, rel=0.05)


@pytest.mark.sweep
def test_long_ops_with_the_instructions_measured_are_met() -> None:
    rows = predicted("steps", "rtl-steps.csv.gz", Selection("measure", ("counted",)))
    errors = [abs(cycles - measured) / measured for _, cycles, measured in rows if measured > 2_000]
    assert len(errors) == 118
    assert np.median(errors) <= 0.05
    assert np.percentile(errors, 90) <= 0.15


@pytest.mark.parametrize(
    ("model", "buffering"),
    [
        ("tutorial-cnn", "single"),
        ("simple-mlp", "double"),
        pytest.param("tutorial-cnn", "double", marks=pytest.mark.sweep),
        pytest.param("gru", "double", marks=pytest.mark.sweep),
        pytest.param("attn", "double", marks=pytest.mark.sweep),
    ],
)
def test_a_program_has_as_many_bytes_of_code_as_were_linked(model: str, buffering: str) -> None:
    beside = MEASURED / f"{model}.yaml"
    run = steps.Run(str(beside) if beside.is_file() else model, buffering, 8, steps.CODEGEN)
    code = steps.planned(run)[0].program.code
    assert code is not None
    linked = linked_bytes(model, buffering)
    assert 4_000 < linked < 22_000
    assert code.size_bytes == pytest.approx(linked, rel=0.08)


BENCH = ("start", "start_main", "nothing", "memcpy", "memset", "pt_cycles")
"""Functions of the start-up code and of the bench."""


def linked_bytes(model: str, buffering: str) -> int:
    """Functions of ops, kernels and platform in the symbols of an exported program."""
    with gzip.open(MEASURED / "rtl-steps-symbols.csv.gz", "rt", encoding="utf-8") as file:
        return sum(
            int(row["bytes"])
            for row in csv.DictReader(file)
            if (row["model"], row["buffering"], row["cores"]) == (model, buffering, "8")
            and row["function"] not in BENCH
        )

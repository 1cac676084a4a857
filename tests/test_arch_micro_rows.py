"""Every row of micro.csv that runs instructions: 5 % or 0.5 cycle per operation, whichever is larger.

The rows, their code and the known deviations are in `scheduler.validation.micro`, which the page
docs/validation.md uses as well; tests/test_arch_sync.py has the rows of the event unit and of the offload.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from scheduler.validation import micro

MEASURED = Path(__file__).parent.parent / "measured" / "micro.csv.gz"
ROUNDING_CYCLES = 0.001
"""The file and the list of deviations have three decimals."""


@cache
def rows() -> tuple[dict[str, str], ...]:
    return tuple(micro.read_rows(MEASURED))


@cache
def predicted() -> tuple[micro.MicroRow, ...]:
    return tuple(micro.predict(rows()))


def test_every_row_is_predicted_tested_elsewhere_or_named_as_not_modelled():
    elsewhere = sum(row["group"] in micro.TESTED_ELSEWHERE for row in rows())
    named = Counter(
        row["name"]
        for row in rows()
        if row["group"] not in micro.TESTED_ELSEWHERE and micro.not_modelled(row) is not None
    )
    assert named == {"empty": 12, "lw_cl_timer_periph": 4}
    assert len(predicted()) + elsewhere + sum(named.values()) == len(rows()) == 2148
    assert len(predicted()) == 1736


@pytest.mark.parametrize("group", ["cluster_pe0", "multi_max", "multi_min", "fc", "fc_L2priv"])
def test_rows_are_within_tolerance_but_for_the_known_deviations(group):
    beyond = [row.key for row in predicted() if row.group == group and not row.within]
    assert beyond == [key for key in micro.DEVIATIONS if key[0] == group]


def test_the_known_deviations_are_as_large_as_listed_and_say_why():
    errors = {row.key: row.error_cycles for row in predicted() if row.key in micro.DEVIATIONS}
    for key, (error_cycles, cause) in micro.DEVIATIONS.items():
        assert errors[key] == pytest.approx(error_cycles, abs=ROUNDING_CYCLES), key
        assert len(cause.split()) > 5


def test_one_core_and_the_fabric_controller_are_off_by_less_than_a_third_of_a_cycle():
    for row in predicted():
        if row.group in ("cluster_pe0", *micro.FABRIC_CONTROLLER):
            assert abs(row.error_cycles) <= max(0.3, 0.005 * row.measured), row


def test_the_tolerance_is_the_one_asked_for():
    def near(measured: float, predicted_cycles: float) -> bool:
        return micro.MicroRow("g", "n", 1, "private", False, 1, measured, predicted_cycles).within

    assert [near(1.0, 1.5), near(1.0, 1.51)] == [True, False]
    assert [near(100.0, 105.0), near(100.0, 105.1)] == [True, False]

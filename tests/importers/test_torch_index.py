# SPDX-License-Identifier: Apache-2.0
"""A hundred modules, losses, optimizers, schedules, steps of PyTorch: whence they are drawn, the oracle."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from shared.tiers import sweep_nine_of_ten

pytestmark = pytest.mark.needs_torch

try:
    from shared import torch_index
    from shared.torch_index import CASES
    from shared.torch_index_runs import STORED, WRONG, outcome
except ImportError:  # the marker skips what needs it
    CASES = ()


def test_the_list_is_the_draw_and_the_whole_of_the_other_indices():
    named = {
        section: {case.name for case in CASES if case.section == section} for section in torch_index.SECTIONS
    }
    assert named[torch_index.MODULES] == set(torch_index.drawn_modules())
    assert named[torch_index.LOSSES] == set(torch_index.all_losses())
    assert named[torch_index.OPTIMIZERS] == set(torch_index.all_optimizers())
    assert named[torch_index.SCHEDULES] == set(torch_index.all_schedules())
    assert len(CASES) == 100
    assert max(Counter(case.name for case in CASES).values()) == 1


@pytest.mark.parametrize("case", CASES[::10], ids=lambda case: case.name)
def test_a_case_is_the_same_in_both_types_of_numbers(case):
    single, double = list(torch_index.trained(case.training())), list(torch_index.trained(case.in_double()))
    assert len(single) == 2
    for ours, theirs in zip(single, double, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        for name, weight in theirs.weights.items():
            assert (ours.weights[name] - weight).abs().max() <= 1e-5 * weight.abs().max(), name


@pytest.mark.parametrize("case", sweep_nine_of_ten([case.name for case in CASES]))
def test_two_steps_on_the_simulated_machine_end_as_is_stored(case):
    """Else: `PYTHONPATH=tests python -m shared.torch_index_runs`, then `python -m tools.pages pytorch`."""
    rows = json.loads(STORED.read_text(encoding="utf-8"))
    stored = next(row for row in rows if row["name"] == case)
    found = outcome(next(item for item in CASES if item.name == case))
    assert (found.status, found.reason) == (stored["status"], stored["reason"])
    assert found.status != WRONG


def test_at_least_three_quarters_of_the_hundred_are_right_and_none_is_wrong():
    counts = Counter(row["status"] for row in json.loads(STORED.read_text(encoding="utf-8")))
    assert counts["right"] >= 75
    assert counts["right"] + counts["refused"] == 100

# SPDX-License-Identifier: Apache-2.0
"""The kernel predicted fastest is near the best measured one."""

import pytest

from scheduler.validation.rows.cases import parse_selection
from scheduler.validation.runner import validate
from shared.paths import MEASURED
from tools.kernel_regret import kernel_choices, share_repeated_within, share_within

ROWS = MEASURED / "mm.csv.gz"


def choices(*where: str):
    selections = [parse_selection(text) for text in where]
    return kernel_choices(validate("mm", ROWS, workers=1, selections=selections).results)


def test_one_core_chooses_within_one_percent() -> None:
    found = choices("codegen=asm-xpulp", "cores=1", "bank_conflicts=0")
    assert len(found) == 39
    assert all(choice.quiet for choice in found)
    assert share_within(found, 1.0) >= 0.97


@pytest.mark.slow
def test_all_measured_shapes() -> None:
    found = choices()
    quiet = [choice for choice in found if choice.quiet]
    others = [choice for choice in found if not choice.quiet]
    assert (len(quiet), len(others)) == (222, 504)
    assert share_within(quiet, 1.0) >= 0.97
    assert share_within(others, 3.0) >= 0.90
    for part, percent in ((quiet, 1.0), (others, 3.0)):
        repeated = share_repeated_within(part, percent)
        assert repeated is not None
        assert share_within(part, percent) > repeated, "better than by one of the two measurements"
    missed = [choice for choice in found if choice.regret_percent > (1 if choice.quiet else 3)]
    assert {choice.shape for choice in missed if choice.cell[1] != "8"} == {"4x4x4"}

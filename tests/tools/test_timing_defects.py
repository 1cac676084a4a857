# SPDX-License-Identifier: Apache-2.0
"""Timing defects put into the product move figures of validation beyond their bounds, harmless changes not.

`make test` tries a few defects on the set that sees each; `make alarm` all, on all sets
(`python -m tools.timing_defects` prints them).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from scheduler.validation.rows.kinds import KINDS
from shared.paths import ROOT
from tools.timing_defects import bounds
from tools.timing_defects.bounds import LEAST_PERCENT, Move, committed, figures_of, moves
from tools.timing_defects.defects import DEFECTS, NOT_SEEN
from tools.timing_defects.harmless import HARMLESS
from tools.timing_defects.rows import UNWATCHED, WATCHED, count_of, rows_of
from tools.timing_defects.trial import AS_IT_IS, OutgrownError, changed, predictions
from tools.validation.sets import SETS

PARTS = ("lowerings", "tile loop", "DMA", "fork and join", "prices")

QUICK = {
    "a matmul is priced with half its K": ("mm",),
    "SGD is priced as a copy": ("loop",),
    "every output is waited for at once": ("tiled-layers",),
    "inputs are never loaded in advance": ("tiled",),
    "no gap between the bursts of a store": ("dma",),
    "kernels do not slow transfers down": ("dma-contention",),
    "a barrier opens one cycle late": ("micro",),
    "the join costs the master nothing": ("layer",),
    "a stall at a bank counts twice": ("overlap, kernel",),
    "a taken branch costs one cycle less": ("loop",),
}
QUICK[AS_IT_IS] = tuple(dict.fromkeys(name for names in QUICK.values() for name in names))
"""What `make test` tries, and the set that has to see it; none of them sees the product as it is.

Of every set, `tests/tools/test_validation_sets.py` holds the figures of the product as it is.
"""


def _moves(names: list[str], sets: Mapping[str, Sequence[str]] | None = None) -> dict[str, list[Move]]:
    moved = {}
    for name, cycles in predictions(names, sets):
        assert not isinstance(cycles, OutgrownError), cycles
        moved[name] = moves(cycles)
    return moved


def test_a_few_defects_are_seen_and_the_product_as_it_is_is_not() -> None:
    found = _moves(list(QUICK), QUICK)
    assert found.pop(AS_IT_IS) == []
    assert [name for name, moved in found.items() if not moved] == []


@pytest.mark.alarm
def test_all_defects_are_seen_but_those_that_no_row_can_see() -> None:
    unseen = {name for name, moved in _moves(list(DEFECTS)).items() if not moved}
    assert unseen == set(NOT_SEEN)


@pytest.mark.alarm
def test_harmless_changes_stay_within_the_bounds() -> None:
    assert {name: moved for name, moved in _moves(list(HARMLESS)).items() if moved} == {}


def test_the_committed_findings_are_those_of_these_defects() -> None:
    """If not: python -m tools.timing_defects --write, then python -m tools.pages timing_defects."""
    records = committed()["defects"]
    assert list(records) == list(DEFECTS)
    assert {name for name, record in records.items() if not record["figures"]} == set(NOT_SEEN)
    assert len(DEFECTS) - len(NOT_SEEN) >= 20
    for part in PARTS:
        assert sum(change.part == part and name not in NOT_SEEN for name, change in DEFECTS.items()) >= 4


def test_every_defect_replaces_something_of_the_product_and_is_taken_back() -> None:
    """In a file that exists; validation itself is not the product."""
    for name, change in {**DEFECTS, **HARMLESS}.items():
        assert (ROOT / change.file).is_file(), name
        assert not change.file.startswith(("scheduler/validation", "tools", "tests"))
        replaced = [
            (target, attribute, vars(target).get(attribute)) for target, attribute, _ in change.changes()
        ]
        assert replaced, name
        with changed(name):
            assert all(vars(target)[attribute] is not before for target, attribute, before in replaced), name
        assert all(vars(target).get(attribute) is before for target, attribute, before in replaced), name


def test_the_rows_are_few_and_cover_every_set_and_layer_step() -> None:
    assert set(WATCHED) == {name for name, item in SETS.items() if item.kind not in UNWATCHED}
    assert {SETS[name].kind for name in WATCHED} | UNWATCHED == set(KINDS)
    assert count_of() == committed()["rows"] <= 470, "seconds a defect"
    steps = {(case.text("primitive"), case.text("step")) for case in rows_of("layer")}
    assert len(steps) >= 44
    assert re.search("conv2d.*softmax", " ".join(sorted(primitive for primitive, _ in steps)))


def test_a_bound_is_the_standard_error_of_its_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of 100 and 400 cycles are known to 1 % and 0.25 %, or to the noise of the set."""
    cases = rows_of("dma-contention")[:2]
    monkeypatch.setattr(bounds, "rows_of", lambda name: cases)
    measured = [case.number("dma_total_cycles") for case in cases]
    figures = figures_of({"dma-contention": [measured[0], 2 * measured[1]]})
    by_name = {figure.what: figure for figure in figures}
    known = [100 / cycles for cycles in measured]
    error = max(LEAST_PERCENT, (known[0] ** 2 + known[1] ** 2) ** 0.5 / 2)
    assert by_name["bias"].percent == by_name["mean"].percent == 50
    assert by_name["bias"].bound == by_name["mean"].bound == pytest.approx(error)
    assert by_name["95th percentile"].bound == pytest.approx(2 * error)
    monkeypatch.setattr(bounds, "noise_percent", lambda name, case: 30.0)
    assert figures_of({"dma-contention": measured})[0].bound == pytest.approx(30 / 2**0.5)

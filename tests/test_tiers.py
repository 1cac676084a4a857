# SPDX-License-Identifier: Apache-2.0
"""The tiers hold together: no row is lost, every marker means something, reasons are printed."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.tiers import (
    ASKED,
    DRAWN_SHARE,
    NEEDS,
    ROOT,
    SHARE,
    SWEEPING,
    a_tenth,
    examples,
    skip_what_lacks_a_tool,
    sweep_nine_of_ten,
)

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
OPTIONS = PROJECT["pytest"]["ini_options"]
DEFINED = {line.partition(":")[0] for line in OPTIONS["markers"]}


@dataclass(frozen=True)
class Row:
    kind: int
    dtype: str
    number: int


ROWS = [Row(*values) for values in product(range(7), ("fp32", "fp16", "bf16"), range(20))]


def marks_of(parameter: object) -> set[str]:
    return {mark.name for mark in parameter.marks}  # type: ignore[attr-defined]


def test_a_tenth_is_a_tenth_and_meets_every_kind() -> None:
    kept = a_tenth(ROWS, lambda row: (row.kind, row.dtype))
    assert len(kept) == len(ROWS) / SHARE
    assert {(row.kind, row.dtype) for row in kept} == {(row.kind, row.dtype) for row in ROWS}
    assert [row for row in ROWS if row in kept] == kept


def test_rare_kinds_make_it_more_than_a_tenth() -> None:
    assert a_tenth(ROWS, lambda row: row) == ROWS


def test_a_new_row_leaves_the_others_in_their_tier() -> None:
    """Else every added example would change what `make test` runs."""
    kinds = (lambda row: row.kind, lambda row: row.dtype)
    before = a_tenth(ROWS, *kinds)
    after = a_tenth([*ROWS, Row(99, "fp32", 0)], *kinds)
    assert len(set(before) - set(after)) <= 1, "what only filled the share may give way"
    assert Row(99, "fp32", 0) in after


def test_every_row_is_in_one_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASKED, "")
    marked = sweep_nine_of_ten(ROWS, lambda row: row.kind, smoke=lambda row: row.kind)
    assert [parameter.values[0] for parameter in marked] == ROWS  # type: ignore[attr-defined]
    marks = Counter(name for parameter in marked for name in marks_of(parameter))
    assert marks == {"sweep": len(ROWS) * (SHARE - 1) / SHARE, "smoke": 7}
    assert not any({"smoke", "sweep"} <= marks_of(parameter) for parameter in marked)
    for asked in ("smoke", "sweep"):
        monkeypatch.setenv(ASKED, asked if asked == "smoke" else f"not {asked}")
        made = sweep_nine_of_ten(ROWS, lambda row: row.kind, smoke=lambda row: row.kind)
        wanted = [row for row in marked if (asked in marks_of(row)) == (asked == "smoke")]
        assert made == wanted, "rows that `-m` leaves out are not made"


def test_every_marker_is_documented_and_every_documented_one_known() -> None:
    assert {name for name in DEFINED if name.startswith("needs_")} == set(NEEDS)
    assert all(line.partition(": ")[2] for line in OPTIONS["markers"])
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {name for name in DEFINED if f"`{name}`" not in contributing} == set()


def test_tools_are_asked_for_by_marker() -> None:
    """skipif and importorskip would say their reasons in words of their own, and in no table."""
    found = {
        f"{path.name}: {word}"
        for path in sorted((ROOT / "tests").glob("test_*.py"))
        if path.name != "test_tiers.py"
        for word in re.findall(r"skipif|importorskip", path.read_text(encoding="utf-8"))
    }
    assert not found


def test_a_missing_tool_skips_with_its_reason(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert re.search(r"-r\w*s", OPTIONS["addopts"]), "pytest prints why it skipped"
    item = pytest.Function.from_parent(request.node.parent, name="absent", callobj=lambda: None)
    item.add_marker("needs_gcc")
    asked = []
    monkeypatch.setitem(NEEDS, "needs_gcc", lambda: asked.append(1) or "no gcc")
    skip_what_lacks_a_tool([item, item])
    assert {mark.kwargs["reason"] for mark in item.iter_markers("skip")} == {"needs_gcc: no gcc"}
    assert asked == [1], "looked for once"


@pytest.mark.parametrize("marker", NEEDS)
def test_a_tool_is_there_or_the_reason_names_it(marker: str) -> None:
    reason = NEEDS[marker]()
    assert reason is None or re.search(marker.split("_")[1], reason)


@pytest.mark.parametrize("sweeping", [True, False])
def test_a_property_draws_all_examples_in_the_sweep_and_a_few_elsewhere(
    sweeping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWEEPING, raising=False)
    if sweeping:
        monkeypatch.setenv(SWEEPING, "1")
    drawn = []

    @examples(100, database=None)
    @given(number=st.integers())
    def property_test(number: int) -> None:
        drawn.append(number)

    property_test()
    assert len(drawn) == (100 if sweeping else 100 / DRAWN_SHARE)
    assert [mark.name for mark in getattr(property_test, "pytestmark", [])] == ["sweep"] * sweeping

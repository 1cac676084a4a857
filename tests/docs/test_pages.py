# SPDX-License-Identifier: Apache-2.0
"""What the pages show of the simulator is what it says today."""

from __future__ import annotations

from pathlib import Path

import pytest

import pulptrain as pt
from tools.pages import fit, tuned, what_if
from tools.pages.__main__ import all_pages, main
from tools.pages.page import Page, table

PAGES = all_pages()
OLDER: tuple[str, ...] = ()
"""Slow blocks whose figures are not of today, each with a first line ``*Older than ...`` that says so."""


def without_rounding(text: str) -> list[str]:
    """All lines but those whose last digits depend on the order in which this machine's BLAS adds."""
    return [line for line in text.splitlines() if not line.startswith(("numbers  ", "loss  "))]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(f"{page}.{block}", marks=pytest.mark.slow if block in item.rests_on else ())
        for page, item in PAGES.items()
        for block in item.blocks
        if f"{page}.{block}" not in OLDER
    ],
)
def test_a_block_is_up_to_date(name: str) -> None:
    """If this fails after a change of the model: python -m tools.pages NAME, see the difference."""
    page, _, block = name.partition(".")
    shown = PAGES[page].shown()[block]
    assert without_rounding(shown) == without_rounding(PAGES[page].text_of(block))


def test_slow_blocks_are_of_today_or_say_that_they_are_not() -> None:
    """If this fails: python -m tools.pages NAME; or, if that takes too long now, list it as `OLDER`."""
    assert [f"{page}.{block}" for page, item in PAGES.items() for block in item.older()] == list(OLDER)
    for name in OLDER:
        page, _, block = name.partition(".")
        assert PAGES[page].shown()[block].startswith("*Older than ")


def test_predictions_that_take_minutes_are_of_the_timing_of_today() -> None:
    """If this fails cycles or predictions have changed: python -m tools.pages.what_if --models NAME."""
    assert says_which_are_older(what_if.PAGE, "verified", list(what_if.older()))
    rows = {(row["model"], row["way"]): row for row in what_if.stored()}
    assert what_if.measure("simple-mlp", "double") == rows["simple-mlp", "double"]


def says_which_are_older(page: Page, block: str, rows: list[str]) -> bool:
    first = page.shown()[block].splitlines()[0]
    return first.startswith("*Older than ") == bool(rows) and all(name in first for name in rows)


def test_figures_that_take_hours_are_of_today_or_say_that_they_are_not() -> None:
    """Measure them again: python -m tools.pages.tuned --cache FILE --models NAME."""
    older = [row.model for row in tuned.stored_rows() if not tuned.is_of_today(row)]
    assert says_which_are_older(tuned.PAGE, "cycles", older)


@pytest.mark.needs_ortools
def test_fits_that_take_minutes_are_of_today_or_say_that_they_are_not() -> None:
    """If this fails cycles or answers have changed: python -m tools.pages.fit --models NAME --socs NAME."""
    rows = [row for row in fit.stored() if row["soc"] == "pulp-open"]
    older = [row["model"] for row in rows if not fit.is_of_today(row)]
    assert says_which_are_older(fit.PAGE, "half", older)
    stored = next(row["half"] for row in rows if row["model"] == "simple-mlp")
    caches = "warm" if "simple-mlp" in older else ""
    l2 = f"{stored['l2_kib']}KiB"
    today = pt.fit("simple-mlp", l2=l2, icache=caches, points=0, time_limit=fit.SECONDS).summary
    keys = ("cycles", "predicted_cycles", "predicted_bytes", "peak_bytes", "before")
    assert {key: today[key] for key in keys} == {key: stored[key] for key in keys}


@pytest.mark.slow
def test_a_row_that_takes_hours_is_measured_again() -> None:
    rows = {row.model: row for row in tuned.stored_rows()}
    assert tuned.measure("simple-mlp", tuned.CUTS["simple-mlp"], None) == rows["simple-mlp"]


def test_only_the_blocks_asked_for_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.pages.page.ROOT", tmp_path)
    text = "by hand\n<!-- block: a -->\nold\n<!-- end -->\n<!-- block: b -->\nold\n<!-- end -->\nby hand\n"
    (tmp_path / "page.md").write_text(text)
    page = Page("page.md", {"a": lambda: "new\\1", "b": lambda: "new"})
    page.write(["a"])
    assert (tmp_path / "page.md").read_text() == text.replace("old", "new\\1", 1)
    with pytest.raises(ValueError, match="b"):
        Page("page.md", {"a": str}).shown()


def test_a_slow_block_is_older_when_what_it_rests_on_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.pages.page.ROOT", tmp_path)
    (tmp_path / "page.md").write_text("<!-- block: a -->\nold\n<!-- end -->\n")
    cycles = [100]
    page = Page("page.md", {"a": lambda: "new"}, {"a": lambda: cycles})
    assert page.older() == ["a"]  # nobody knows what it is of
    page.write(["a"])
    assert (page.older(), page.shown()) == ([], {"a": "new\n"})
    cycles[0] = 101
    assert page.older() == ["a"]


def test_a_table() -> None:
    assert table(("a", "b"), [(1, "x|y")], numbers=True) == "| a | b |\n|---|--:|\n| 1 | x\\|y |\n"


def test_a_block_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print", "paper.peak"]) == 0
    assert capsys.readouterr().out == PAGES["paper"].text_of("peak")
    with pytest.raises(SystemExit):
        main(["paper.nothing"])

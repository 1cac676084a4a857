"""A short part of `make fuzz`, and its own promises: seeded, minimised, and it does find defects."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tools.fuzz.mutate import mutated_text
from tools.fuzz.pool import Pool, minimised
from tools.fuzz.subjects import KINDS, Subject, base_files, subject
from tools.fuzz.worker import Outcome, failure_of

SHORT = 60
"""Inputs of the part in the normal tests: under half a minute."""


def test_an_input_is_the_same_for_the_same_seed_and_number() -> None:
    base_files()
    for number in range(20):
        assert subject(7, number) == subject(7, number)
    assert len({subject(7, number).arguments for number in range(20)}) > 5
    assert {subject(7, number).kind for number in range(100)} == set(KINDS)


@pytest.mark.fuzz
def test_a_short_part_of_the_fuzzing_finds_nothing(tmp_path: Path) -> None:
    base_files()
    pool = Pool(2, tmp_path / "work")
    try:
        outcomes = list(pool.outcomes((number, subject(0, number)) for number in range(SHORT)))
    finally:
        pool.end()
    assert len(outcomes) == SHORT
    failed = {number: outcome for number, _, outcome in outcomes if outcome.failure}
    assert not failed


def test_an_input_is_minimised_to_what_fails() -> None:
    item = Subject("x", ("run", "a", "b", "c"), {"f": b"\n".join(str(n).encode() for n in range(100))})
    found = minimised(
        item, lambda tried: b"42" in tried.files["f"].split(b"\n") and "b" in tried.arguments, most=500
    )
    assert found == Subject("x", ("run", "b"), {"f": b"42"})


def test_a_defect_is_named_by_its_place() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        mutated_text("x", 1 / 0)  # type: ignore[arg-type]
    assert failure_of(caught.value).startswith("ZeroDivisionError in tests/test_tools_fuzz.py")
    assert mutated_text("a: 1", Random(0)) == mutated_text("a: 1", Random(0))
    assert Outcome(0).failure == ""

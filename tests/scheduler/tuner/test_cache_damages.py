# SPDX-License-Identifier: Apache-2.0
"""A damaged cache is set aside once or does no harm: the results are those without it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from pulptrain.__main__ import run
from shared.cache_damages import DAMAGES, damage
from shared.tuner_case import SMALL_MODEL

ARGUMENTS = ["--cores", "2", "--l1", "16KiB"]
SEEDS = range(200)
SOME = tuple(
    next(seed for seed in SEEDS if random.Random(seed).choice(list(DAMAGES)) == kind)
    for kind in ("a block", "rows that are no text", "the schema")
)


class Commands:
    """A tuning and a run of a small model, which keep their results in one file."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.cache = folder / "c.sqlite"
        self._model = str(folder / "small.yaml")
        self._schedule = folder / "s.yaml"
        self._capsys = capsys
        Path(self._model).write_text(SMALL_MODEL)

    def results(self) -> tuple[object, ...]:
        """What both say, but for times and counts of the cache, and the schedule."""
        kept = ["--cache", str(self.cache), "--json"]
        tune = ["tune", self._model, *ARGUMENTS, "--tilings", "1", "--workers", "1"]
        return (
            self._answer([*tune, *kept, "--save-schedule", str(self._schedule)]),
            self._answer(["run", self._model, *ARGUMENTS, "--no-functional", "--resident", "auto", *kept]),
            self._schedule.read_bytes(),
        )

    def _answer(self, arguments: list[str]) -> object:
        code = run(arguments)
        printed = self._capsys.readouterr()
        assert code == 0, printed.err
        assert "Traceback" not in printed.err
        return {key: value for key, value in json.loads(printed.out).items() if key != "simulator"}


@pytest.mark.parametrize("seeds", [SOME, pytest.param(SEEDS, marks=pytest.mark.slow)], ids=["some", "200"])
def test_damages_are_set_aside_once_or_harmless(
    seeds: Sequence[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = Commands(tmp_path, capsys)
    expected = commands.results()
    sound = tmp_path / "sound"
    shutil.copy(commands.cache, sound)
    kinds: dict[str, int] = dict.fromkeys(("set aside", "harmless"), 0)
    for seed in seeds:
        for file in tmp_path.glob("c.sqlite*"):
            file.unlink()
        shutil.copy(sound, commands.cache)
        done = damage(commands.cache, seed)
        assert commands.results() == expected, done
        aside = list(tmp_path.glob("c.sqlite.corrupt-?"))
        assert len(aside) <= 1, done
        if aside:
            assert commands.results() == expected, done
        assert list(tmp_path.glob("c.sqlite.corrupt-?")) == aside, f"{done}: set aside again"
        kinds["set aside" if aside else "harmless"] += 1
    print(kinds)
    assert kinds["set aside"] > len(seeds) // 3

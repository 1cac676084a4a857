# SPDX-License-Identifier: Apache-2.0
"""What a report of a memory that is too small advises is typed, and ends in a run or in another report."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pulptrain.__main__ import run
from shared.paths import ROOT
from shared.tiers import sweep_nine_of_ten

FITS, DOES_NOT_FIT = 0, 3

REFUSED = (
    "simple-mlp --l2 4KiB --l3 0",
    "simple-mlp --l2 1KiB --l3 1KiB",
    "simple-mlp --l2 2KiB --l3 1KiB --batch 4",
    "simple-mlp --l1 4KiB",
    "simple-mlp --buffering none --l1 10KiB",
    "simple-mlp --l1 11KiB --tile fc1.FW=co:8,ci:64",
    "adam --l2 6KiB --l3 0",
    "adam --l2 2KiB --l3 2KiB",
    "adam --accumulate 3 --l2 6KiB --l3 0",
    "tutorial-cnn --l2 40KiB --l3 0",
    "tutorial-cnn --l2 8KiB --l3 64KiB",
    "tutorial-cnn --buffering none",
    "digits-cnn --batch 2 --l2 24KiB --l3 0",
    "gru-keywords --l1 10KiB",
    "tiny-transformer --l2 24KiB --l3 16KiB",
)
"""Runs that do not fit, on small models; adam is simple-mlp with states and momentum."""


@dataclass(frozen=True)
class Advised:
    """What a report says to write, and whether the report says that it then fits."""

    how: str
    fits: bool


def model_of(name: str) -> dict[str, Any]:
    """The model as its file has it."""
    file = ROOT / "configs" / "models" / f"{'simple-mlp' if name == 'adam' else name}.yaml"
    model: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    if name == "adam":
        model["optimizer"] = {"name": "adam", "learning_rate": 0.001}
    return model


def typed(words: list[str], model: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    """Exit code and printed object of a run of a model, its numbers checked."""
    Path("model.yaml").write_text(yaml.safe_dump(model, sort_keys=False), encoding="utf-8")
    capsys.readouterr()
    code = run(["run", "model.yaml", *words, "--json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, json.loads(out) if out else err


def advice_of(report: dict[str, Any]) -> Iterator[Advised]:
    """The levers, and of the cure every option that has a value."""
    for lever in report["tried_changes"]:
        yield Advised(lever["how"], lever["fits"])
    for words in re.findall(r"--[a-z0-9]+ [A-Za-z0-9]+", report["remedy"]):
        yield Advised(words, fits=False)


def carried_out(how: str, words: list[str], model: dict[str, Any]) -> list[str]:
    """Options with the advice; what it says of the model file is written into `model`."""
    if how.startswith("--"):
        return [*words, *shlex.split(how)]
    if how == "train: last in the model file":
        model["train"] = "last"
    elif how == "optimizer: {name: sgd} in the model file":
        model["optimizer"] = {"name": "sgd", "learning_rate": model["optimizer"]["learning_rate"]}
    else:
        found = re.fullmatch(r"(\w+): (\w+) (?:in layer (\S+)|of (\S+) in the model file)", how)
        assert found is not None, how
        layer = next(one for one in model["layers"] if one["name"] == (found[3] or found[4]))
        layer[found[1]] = yaml.safe_load(found[2])
    return words


def _saves(then: dict[str, Any], report: dict[str, Any]) -> bool:
    """Whether a report that follows is about fewer bytes, or about something else."""
    places = [(one["level"], (one["where"] or "").partition(",")[0]) for one in (then, report)]
    return places[0] != places[1] or _tensors_bytes(then) < _tensors_bytes(report)


def _tensors_bytes(report: dict[str, Any]) -> int:
    """What is required without the code: a cure says what it saves of the tensors."""
    of_code = sum(row["size_bytes"] for row in report["contributors"] if row["name"].startswith("code of "))
    return int(report["required_bytes"]) - of_code


@pytest.mark.parametrize("command", sweep_nine_of_ten(REFUSED))
def test_every_cure_of_a_memory_that_is_too_small_ends_in_a_run_or_in_a_report(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *words = shlex.split(command)
    code, report = typed(words, model_of(name), capsys)
    assert code == DOES_NOT_FIT, report
    followed = list(advice_of(report))
    assert followed
    wrong = {}
    for advised in followed:
        model = model_of(name)
        code, came_of_it = typed(carried_out(advised.how, words, model), model, capsys)
        if code not in ((FITS,) if advised.fits else (FITS, DOES_NOT_FIT)):
            wrong[advised.how] = code, str(came_of_it)[:300]
        elif code == FITS and came_of_it["functional"]["passed"] is False:
            wrong[advised.how] = came_of_it["functional"]["worst_tensor"]
        elif code == DOES_NOT_FIT and not _saves(came_of_it, report) and "--l" not in advised.how:
            wrong[advised.how] = "saves nothing"
    assert not wrong

# SPDX-License-Identifier: Apache-2.0
"""What was typed and written before names changed is still understood.

`data/format-1` are files of `run`, `explore` and `tune` by the version before (8c37baf0); of the summary
three ops and the keys that other commands read.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

import pulptrain as pt
from configs.old_names import KEYS, OBJECTIVES, OPTIONS, new_options
from pulptrain.__main__ import run
from pulptrain.cli import application
from pulptrain.python.answers import Explored
from scheduler.tuner.schedule_file import load_schedule
from shared.paths import ROOT
from shared.printed import printed
from traces.files.json_keys import KEYS as KNOWN
from traces.files.json_keys import key_of
from traces.files.json_text import keys_in

BEFORE = ROOT / "tests" / "data" / "format-1"


@pytest.mark.parametrize("command", OPTIONS)
def test_an_old_option_is_no_option_of_today_and_stands_for_one(command: str) -> None:
    click = typer.main.get_command(application([command])).commands[command]  # type: ignore[attr-defined]
    today = {flag for item in click.params for flag in item.opts}
    assert set(OPTIONS[command].values()) <= today
    assert not set(OPTIONS[command]) & today


def test_an_old_option_works_with_one_note(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["kernel", "mm", "--n", "4", "--quiet"]
    assert run([*words, "--accumulate"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("pulptrain: note: ") == 1
    assert "'--accumulate' is now '--add-to-c'" in said.err
    assert new_options(["tune", "m", "--cuts=2", "--", "--cuts"]) == [
        "tune",
        "m",
        "--tilings=2",
        "--",
        "--cuts",
    ]
    capsys.readouterr()
    assert new_options(["run", "--cuts"]) == ["run", "--cuts"], "of another command"
    assert run([*words, "--add-to-c"]) == 0
    assert capsys.readouterr().err == ""


def test_an_old_keyword_of_python_works_with_a_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(pt.InputError, match="--step-variants"):
        pt.tune("simple-mlp", lowerings="x", cache=False)  # type: ignore[call-arg]
    assert "'lowerings' is now 'step_variants'" in capsys.readouterr().err


def test_a_run_of_yesterday_is_read_with_the_keys_of_today(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    old = json.loads((BEFORE / "summary.json").read_text())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text(json.dumps(old))
    summary = pt.load(tmp_path / "run").summary
    assert summary["training"]["iterations_requested"] == old["training"]["iterations_asked"] == 2
    assert summary["energy"]["energy_model"] == old["energy"]["coefficients_from"] == "gap9"
    assert summary["tilings"]["estimated"] == old["tilings"]["kept"]
    assert summary["ops"][0]["runs_per_update"] == old["ops"][0]["times"] == 2
    assert {
        f"{parent}.{name}" for name, parent, _ in keys_in(summary) if key_of(name, parent) is None
    } == set()
    folder = str(tmp_path / "run")
    assert printed(capsys, "why", folder)["format"] == 2
    assert printed(capsys, "compare", folder, folder)["speedup"] == 1
    assert run(["plot", folder, "--what", "breakdown", "-q"]) == 2, "its trace is not here"


def test_points_and_a_schedule_of_yesterday_are_read() -> None:
    explored = pt.load(BEFORE)
    assert isinstance(explored, Explored)
    old = json.loads((BEFORE / "points.json").read_text())
    assert explored.summary["objectives"] == ["cycles", *map(OBJECTIVES.__getitem__, old["objectives"][1:])]
    assert explored.best["peak_l1_bytes"] in [point["l1_bytes"] for point in old["points"]]
    (choice, *_) = load_schedule(str(BEFORE / "schedule.yaml")).choices
    assert choice.op == "fc.FW"


def test_no_key_of_today_has_an_old_name() -> None:
    old = {name for name in KEYS if "." not in name}
    assert not old & set(KNOWN), "one name, one meaning"
    assert {*KEYS.values()} <= {name.rpartition(".")[2] for name in KNOWN}

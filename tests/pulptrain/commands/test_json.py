# SPDX-License-Identifier: Apache-2.0
"""Every JSON object of every command: a format number, the units of its keys, no key that nobody explains."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import pulptrain as pt
from pulptrain.__main__ import run
from shared.paths import ROOT
from traces.events import STALLS
from traces.files.json_keys import KEYS, NAMED_BY_DATA, key_of
from traces.files.json_text import FORMAT, json_object, keys_in

MODEL = """name: small
input: {shape: [6]}
loss: mse
optimizer: {name: sgd, learning_rate: 0.1}
layers: [{name: fc, type: linear, out_features: 3}]
"""
SWEEP = "name: e\nmodel: small.yaml\nsweep: {cores: [1, 2], l1: [8KiB, 64KiB]}\n"
ENERGY = "settings: {energy: generic-22fdx}\n"

COMMANDS = (
    "run small.yaml",
    "run small.yaml --accumulate 2 --iterations 3 --out out",
    "run small.yaml --dump-program",
    "run small.yaml --soc gap9",
    "run tutorial-cnn --l1 6KiB --no-functional",
    "what-if small.yaml",
    "deploy small.yaml --out project",
    "kernel mm",
    "primitive relu --step fw --shape 4x4",
    "tune small.yaml --no-cache --tilings 1 --workers 1 --save-schedule s.yaml",
    "tune small.yaml --no-cache --tilings 1 --workers 1 --save-schedule e.yaml --soc gap9 --objective energy",
    "fit small.yaml --no-cache --save-model f.yaml",
    "fit small.yaml --no-cache --ladder",
    "explore explore.yaml --no-cache --workers 1 --out points",
    f"validate layer {ROOT}/measured/tutorial-anchors.csv.gz --keep-going --group-by step",
    "list socs",
    "list models",
    "list kernels",
    "list primitives",
    "show conv2d",
    "show small.yaml",
    "show pulp-open",
    "show sgd",
    "show idle",
    "example",
    "example explore-tutorial-cnn",
    "compare stored stored",
    "compare stored measured.csv",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("json")
    (made / "small.yaml").write_text(MODEL)
    (made / "explore.yaml").write_text(SWEEP + ENERGY)
    (made / "stored").mkdir()
    summary = pt.run(made / "small.yaml", functional=False).summary
    (made / "stored" / "summary.json").write_text(json.dumps(summary))
    (made / "measured.csv").write_text("op,cycles\nfc,1000\nnothing,1\n")
    return made


def unexplained(content: Any) -> set[str]:
    return {f"{parent}.{name}" for name, parent, _ in keys_in(content) if key_of(name, parent) is None}


def check(content: dict[str, Any]) -> None:
    assert unexplained(content) == set()
    assert content["format"] == FORMAT
    again = json_object({key: value for key, value in content.items() if key not in ("format", "units")})
    assert content["units"] == again["units"]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("command", COMMANDS)
def test_the_object_a_command_prints_explains_itself(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    code = run([*shlex.split(command), "--json"])
    printed = capsys.readouterr()
    assert code in (0, 3), printed.err
    content = json.loads(printed.out)
    check(content)
    for op in content.get("ops", ()):
        assert tuple(op["stalls"]) == STALLS  # a word that nothing was lost to says 0


@pytest.mark.usefixtures("undrawn")
def test_the_files_of_a_run_and_of_an_exploration_explain_themselves(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert run(["run", "small.yaml", "--out", "files", "--json"]) == 0
    assert run(["explore", "explore.yaml", "--out", "swept", "--no-cache", "--quiet"]) == 0
    found = sorted(path.name for path in folder.glob("*/*.json") if path.parent.name in ("files", "swept"))
    assert found == ["points.json", "run-info.json", "summary.json"]
    for path in (*folder.glob("files/*.json"), *folder.glob("swept/*.json")):
        check(json.loads(path.read_text()))


def test_every_key_with_a_unit_in_its_name_has_that_unit() -> None:
    endings = {"_bytes": "B", "_cycles": "cycles", "_hz": "Hz", "_percent": "%", "_seconds": "s"}
    for name, key in KEYS.items():
        for ending, unit in endings.items():
            if name.endswith(ending):
                assert unit in key.unit, name
    assert all(key.meaning for key in KEYS.values())
    assert set(NAMED_BY_DATA) <= set(KEYS)


def test_a_key_nobody_explains_is_noticed() -> None:
    assert unexplained({"cycles": 1, "stalls": {"made_up": 2}, "ops": [{"made_up": 3}]}) == {"ops.made_up"}

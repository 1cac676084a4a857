# SPDX-License-Identifier: Apache-2.0
"""What docs/security.md promises: data runs no code, and nothing is written but what was asked for."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from pulptrain.__main__ import run
from scheduler.search.cache import ResultCache
from shared.tuner_case import SMALL_MODEL


class Code:
    """An object that makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, ("was-run",))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(arguments) == 2
    assert not Path("was-run").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "value", ["!!python/object/apply:os.mkdir [was-run]", "!!python/name:os.mkdir", "!mine 3", "!!set {}"]
)
@pytest.mark.parametrize("command", [["run"], ["explore"], ["run", "digits-cnn", "--soc"], ["kernel"]])
def test_yaml_constructs_no_objects(
    command: list[str], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.yaml").write_text(f"name: {value}\n")
    assert "a.yaml:1" in refused([*command, "a.yaml"], capsys)
    Path("a.yaml").write_text(f"{value}\n")
    refused([*command, "a.yaml"], capsys)


def test_arrays_hold_no_objects(capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("a.npz", x=np.array([Code()], dtype=object))
    error = refused(["primitive", "relu", "--shape", "4", "--values", "a.npz"], capsys)
    assert "a.npz" in error


@pytest.mark.parametrize("text", ["__import__('os').mkdir('was-run')", "().__class__", "cores.real", "N[0]"])
def test_kernels_calculate_and_do_nothing_else(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.yaml").write_text(
        "kernel: mine\nabout: a test\ncode_bytes: 8\narrays: {A: 4, B: 4, C: 4}\ntrans_b: false\n"
        f'element_bytes: 4\nnames:\n  block: "{text}"\nlisting: |2\n    ret\n'
    )
    assert "mine.yaml" in refused(["kernel", "mine.yaml"], capsys)


def test_a_cache_brings_no_triggers(tmp_path: Path) -> None:
    path = tmp_path / "c"
    ResultCache(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "CREATE TRIGGER t AFTER INSERT ON results_1 BEGIN UPDATE results_1 SET value = 1; END"
        )
        connection.commit()
    warnings: list[str] = []
    ResultCache(path, warnings.append).close()
    assert "the tables are not those of a cache" in warnings[0]


def test_nothing_is_written_but_what_was_asked_for(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("home", "tmp", "work")}
    for folder in folders.values():
        folder.mkdir()
    (folders["work"] / "small.yaml").write_text(SMALL_MODEL)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "PULPTRAIN"))
    }
    environment |= {"HOME": str(folders["home"]), "TMPDIR": str(folders["tmp"])}
    command = [sys.executable, "-m", "pulptrain", "run", "small.yaml", "--no-functional", "--quiet"]
    asked = ["--no-cache", "--out", "out"]
    subprocess.run([*command, *asked], check=True, cwd=folders["work"], env=environment)
    assert sorted(os.listdir(folders["work"])) == ["out", "small.yaml"]
    assert os.listdir(folders["tmp"]) == []
    # A library keeps the list of fonts there.
    assert {path.name for path in folders["home"].rglob("*") if path.is_dir()} <= {
        *(".cache", ".config", "matplotlib")
    }


LONG_NAMES = ("x" * 300, "y" * 300 + ".yaml", "a/" * 3000 + "b", "d" * 250 + "/" + "e" * 300)


@pytest.mark.parametrize(
    "command",
    [
        *(f"{name} NAME" for name in ("run", "show", "kernel", "primitive", "explore", "plot", "replay")),
        *(
            "new NAME",
            "compare . NAME",
            "run simple-mlp --soc NAME",
            "run simple-mlp --values NAME",
            "validate mm NAME",
        ),
        *("run simple-mlp --schedule NAME", "example examples --out NAME", "run simple-mlp --out NAME"),
    ],
)
def test_a_name_that_no_file_can_have_is_an_error_in_one_line(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in LONG_NAMES:
        assert run([name if word == "NAME" else word for word in command.split()]) == 2, name[-9:]
        error = capsys.readouterr().err
        assert "pulptrain: error: " in error
        assert "internal defect" not in error
    assert not os.listdir()

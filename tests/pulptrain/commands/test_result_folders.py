# SPDX-License-Identifier: Apache-2.0
"""What `--out`, `--schedule` and `--cache` may write over, and result folders that others have changed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pulptrain.__main__ import run
from shared.tuner_case import SMALL_MODEL

QUIET = ["--no-functional", "--no-cache", "--quiet"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "small.yaml").write_text(SMALL_MODEL)
    assert run(["run", str(folder / "small.yaml"), *QUIET, "--out", str(folder / "out")]) == 0
    return folder / "out"


@pytest.fixture
def copy(results: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(results, tmp_path / "copy"))


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says that refuses: the error and its cure."""
    assert run(arguments) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert len(error.splitlines()) <= 2
    return error


def test_results_of_ours_are_written_over_and_carry_a_format_number(copy: Path) -> None:
    model = str(copy.parent / "small.yaml")
    Path(model).write_text(SMALL_MODEL)
    (copy / "gantt.png").write_bytes(b"damaged")
    assert run(["run", model, *QUIET, "--out", str(copy)]) == 0
    for name in ("summary.json", "run-info.json"):
        assert json.loads((copy / name).read_text())["format"] == 2
    assert (copy / "gantt.png").read_bytes() != b"damaged"
    zoom = ["plot", str(copy), "--what", "gantt", "--quiet", "--out", str(copy.parent / "zoom")]
    assert run(zoom) == 0
    assert run(zoom) == 0, "pictures say that they are ours"


@pytest.mark.parametrize("name", ["summary.json", "gantt.png", "trace.csv", "memory.csv", "breakdown.svg"])
def test_a_file_of_the_users_in_the_folder_is_refused_before_any_work(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    error = refused(["run", "digits-cnn", "--quiet", "--out", str(tmp_path)], capsys)
    assert "nothing was overwritten" in error
    assert name in error
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == '{"mine": 1}'


@pytest.mark.parametrize("name", ["", ".", "/", "/dev/null", "notes.txt", "none/s.yaml"])
def test_a_schedule_is_written_to_no_place_that_is_not_its_own(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pulptrain.tuning.model_tuning.tune_model", None)  # refused before it would be called
    Path("notes.txt").write_text("notes")
    assert "--save-schedule" in refused(["tune", "digits-cnn", "--no-cache", "--save-schedule", name], capsys)
    assert Path("notes.txt").read_text() == "notes"
    assert Path("/dev/null").is_char_device()


def test_a_cache_that_is_not_ours_is_refused_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("notes")
    for name in (str(notes), "/dev/null", str(tmp_path)):
        assert "--cache" in refused(["run", "digits-cnn", "--quiet", "--cache", name], capsys)
    assert notes.read_text() == "notes"
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def changed(**values: object) -> Callable[[Path], None]:
    """Changes the summary of a result folder."""

    def change(folder: Path) -> None:
        path = folder / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def written(name: str, content: bytes) -> Callable[[Path], None]:
    """Writes a file of a result folder; a CSV takes the place of the Parquet file."""

    def change(folder: Path) -> None:
        if name == "trace.csv":
            (folder / "trace.parquet").unlink(missing_ok=True)
        (folder / name).write_bytes(content)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(format=3), "the unknown format 3"),
        (changed(format="new"), "the unknown format 'new'"),
        (changed(cycles="many"), "must be a whole number from 1"),
        (changed(cycles=10**30), "must be a whole number from 1"),
        (changed(cluster_hz=0), "must be a whole number from 1"),
        (changed(capacity_bytes=[]), "must be a whole number of bytes"),
        (written("summary.json", b"[]"), "does not hold a JSON object"),
        (written("summary.json", b"[" * 100_000), "is not valid JSON"),
        (written("summary.json", b'{"cycles": ' + b"9" * 5000 + b"}"), "is not valid JSON"),
        (written("summary.json", b"\xff\xfe"), "is not valid JSON"),
        (written("trace.csv", b"\xff\xfe\n"), "is not (UTF-8 text|valid CSV)"),
        (written("trace.csv", b"track," + b"x" * 200_000), "is not (UTF-8 text|valid CSV)"),
        (written("trace.csv", b"track\nsoc\n"), "no column"),
        (written("trace.parquet", b"PAR1"), "not a Parquet file"),
        (written("memory.csv", b"\xff\xfe\n"), "is not (UTF-8 text|valid CSV)"),
        (written("memory.csv", b"name\n" + b"x" * 200_000), "no column"),
    ],
)
def test_a_result_folder_that_others_have_changed_is_told_where(
    copy: Path,
    change: Callable[[Path], None],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(copy)
    assert re.search(message, refused(["plot", str(copy), "--quiet", "--what", "memory"], capsys))


def test_a_folder_from_before_there_were_format_numbers_is_read(copy: Path) -> None:
    path = copy / "summary.json"
    summary = json.loads(path.read_text())
    del summary["format"]
    path.write_text(json.dumps(summary))
    assert run(["plot", str(copy), "--quiet", "--what", "breakdown"]) == 0

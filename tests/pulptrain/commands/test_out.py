# SPDX-License-Identifier: Apache-2.0
"""Where `--out` writes: a folder of its own, never among the files of others, and never a file by mistake."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from configs.errors import InputError
from pulptrain.__main__ import run
from shared.printed import printed, refused
from traces.files.result_folder import prepare_folder

FOLDERS = {
    "run": "run simple-mlp --no-functional",
    "tune": "tune simple-mlp --tilings 1 --steps fw --workers 1",
    "fit": "fit simple-mlp --points 0",
    "explore": "explore spec.yaml --workers 1",
    "primitive": "primitive relu --shape 4",
    "deploy": "deploy simple-mlp",
    "plot": "plot out",
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "spec.yaml").write_text("name: e\nmodel: simple-mlp\nsweep: {cores: [8]}\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    return tmp_path


@pytest.mark.parametrize("command", FOLDERS)
def test_no_command_writes_among_the_files_of_others(
    command: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if command == "plot":
        assert run(["run", "simple-mlp", "--no-functional", "--out", "out", "-q"]) == 0
    for folder, told in (
        (
            "mine",
            "'mine' exists already and pulptrain did not export it"
            if command == "deploy"
            else "'mine' has files that pulptrain did not write, e.g. notes.txt",
        ),
        ("-", "only --json can write to standard output (-)"),
        ("fig.jpg", "the picture format of" if command == "plot" else "is a file name, not a folder name"),
    ):
        said = refused(capsys, *FOLDERS[command].split(), "--out", folder, "-q")
        assert "error: --out: " in said
        assert told in said
    assert sorted(path.name for path in (here / "mine").iterdir()) == ["notes.txt"]
    assert not (here / "fig.jpg").exists()
    assert not (here / "-").exists()


def test_a_folder_that_pulptrain_wrote_is_written_again(here: Path) -> None:
    for _ in range(2):
        assert run(["run", "simple-mlp", "--no-functional", "--out", "out", "-q"]) == 0
        assert run(["plot", "out", "--what", "gantt", "--out", "pictures", "-q"]) == 0
    (here / "out" / "notes.txt").write_text("added later")
    assert run(["run", "simple-mlp", "--no-functional", "--out", "out", "-q"]) == 0
    (here / "pictures" / "holiday.png").write_bytes(b"\x89PNG of somebody")
    with pytest.raises(InputError, match=r"e.g. holiday\.png; results need a separate folder"):
        prepare_folder("pictures", ["gantt.png"])


def test_several_runs_are_drawn_by_the_command_that_plot_names(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for cores in ("4", "8"):
        assert run(["run", "simple-mlp", "--no-functional", "--cores", cores, "--out", cores, "-q"]) == 0
    said = refused(capsys, "plot", "4", "8", "--what", "breakdown", "-q")
    program, *arguments = shlex.split(said.partition("on one axis: ")[2].strip("` \n"))
    assert program == "pulptrain"
    assert run([*arguments, "--width", "5in", "--font", "8pt", "-q"]) == 0
    assert (here / "strips.png").is_file()


def test_a_run_says_how_many_parameters_of_its_soc_are_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    """As many as `show` marks."""
    parameters = printed(capsys, "show", "gap9")["found"][0]["parameters"]
    assert run(["run", "simple-mlp", "--soc", "gap9", "--no-functional"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("machine")]
    assert f"gap9 ({sum(item['assumed'] for item in parameters)} parameters assumed), timing rtl" in line

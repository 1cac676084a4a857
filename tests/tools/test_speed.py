# SPDX-License-Identifier: Apache-2.0
"""The commands that measure speed: what they refuse, and what their figures mean."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from configs.errors import InputError
from shared.paths import ROOT
from tools.speed import page
from tools.speed.against import line
from tools.speed.growth import exponent
from tools.speed.measure import Measured, in_turns
from tools.speed.rows import ROWS, SMALLEST, Row
from tools.speed.versions import Version, former


def test_an_exponent_is_the_slope_from_the_middle_to_the_end() -> None:
    assert exponent([1, 10, 100], [5.0, 2.0, 20.0]) == pytest.approx(1)
    assert exponent([1, 10, 100], [5.0, 2.0, 200.0]) == pytest.approx(2)


def test_a_line_says_ratio_and_other_cycles() -> None:
    old = Measured(2.0, 1 << 20, 0, {"cycles": 10})
    assert line(SMALLEST, old, Measured(1.0, 2 << 20, 0, {"cycles": 10}))[3:] == [
        "0.50",
        "1",
        "2",
        "the same",
    ]
    assert line(SMALLEST, old, Measured(1.0, 2 << 20, 0, {"cycles": 11}))[-1] == "10 -> 11"
    assert line(SMALLEST, old, Measured(1.0, 2 << 20, 2, {}))[-1] == "exit code 0 -> 2"


@pytest.mark.needs_git_history
def test_modules_of_a_former_version_are_its_own(tmp_path: Path) -> None:
    old = former("HEAD", tmp_path)
    where = [sys.executable, "-c", "import pulptrain; print(pulptrain.__file__)"]
    shown = subprocess.run(
        where, env=old.environment(), cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(shown.stdout.strip()).is_relative_to(old.tree)


@pytest.mark.needs_git_history
def test_a_version_without_a_command_is_refused_in_one_line(tmp_path: Path) -> None:
    """The first commit has no pulptrain/__main__.py: that of this version must not be run in its place."""
    first = subprocess.run(
        ["git", "-C", str(ROOT), "rev-list", "--max-parents=0", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    )
    with pytest.raises(InputError, match="it has no command pulptrain"):
        former(first.stdout.split()[0], tmp_path)


def test_versions_take_turns_and_each_round_begins_with_nothing_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands that write down which version they are of, and say whether something had been kept."""
    script = (
        "import json, os, pathlib; kept = pathlib.Path(os.environ['PULPTRAIN_CACHE']); "
        "open({log!r}, 'a').write({name!r}); print(json.dumps(dict(cycles=int(kept.exists())))); kept.touch()"
    )
    log = str(tmp_path / "log")
    monkeypatch.setattr(
        Version,
        "command",
        lambda self, *_: [sys.executable, "-c", script.format(log=log, name=self.name)],
    )
    versions = [Version(name, tmp_path, tmp_path) for name in "ab"]
    assert [run.summary["cycles"] for run in in_turns(versions, Row("cold", (), rounds=3))] == [0, 0]
    assert [run.summary["cycles"] for run in in_turns(versions, Row("again", (), ((),), rounds=1))] == [1, 1]
    assert Path(log).read_text() == "ababab" + "aabb"


@pytest.mark.needs_git_history
def test_a_revision_that_does_not_exist_is_refused() -> None:
    asked = [sys.executable, "-m", "tools.speed.against", "no-such"]
    ended = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, "there is no revision 'no-such'" in ended.stderr) == (2, True)


@pytest.mark.needs_git_history
def test_a_revision_that_does_not_start_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Version, "command", lambda self, *_: [sys.executable, "-c", "import no_such_library"])
    with pytest.raises(InputError, match=r"does not start .* No module named 'no_such_library'"):
        former("HEAD", tmp_path)


def test_blocks_of_the_page_are_those_that_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "speed.md"
    copy.write_text((ROOT / page.PATH).read_text())
    monkeypatch.setattr(page, "PATH", str(copy))
    for name in page.BLOCKS:
        page.write_block(name, "| new |")
        page.write_block(name, "| newer |")
    text = copy.read_text()
    assert text.count("| newer |") == 2
    assert "| new |" not in text
    with pytest.raises(ValueError, match="'none'"):
        page.write_block("none", "")


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)

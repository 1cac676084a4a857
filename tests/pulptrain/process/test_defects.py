# SPDX-License-Identifier: Apache-2.0
"""An exception nobody expected ends in one line, with a report in a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pulptrain import __main__, cli

ARGUMENTS = ["list", "socs"]


@pytest.fixture
def defect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Makes every command fail; returns where reports go."""

    def fail(_: list[str]) -> None:
        raise RuntimeError("a line\nand another")

    monkeypatch.setattr(cli, "application", fail)
    monkeypatch.delenv("PULPTRAIN_DEBUG", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_an_unexpected_exception_is_one_line_and_a_report(
    defect: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.run(ARGUMENTS) == 1
    error = capsys.readouterr().err
    found = re.fullmatch(
        r"pulptrain: internal defect: RuntimeError: a line and another; report: (\S+)\n", error
    )
    assert found is not None
    report = Path(found[1]).read_text()
    assert Path(found[1]).parent == defect
    for expected in ("Traceback", "RuntimeError: a line", "numpy ", "Python "):
        assert expected in report


def test_a_report_that_cannot_be_written_is_told(
    defect: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(defect / "none"))
    assert __main__.run(ARGUMENTS) == 1
    error = capsys.readouterr().err
    assert "report: none, cannot write it" in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("defect")
def test_for_developers_the_traceback_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PULPTRAIN_DEBUG", "1")
    assert __main__.run(ARGUMENTS) == 1
    assert "Traceback" in capsys.readouterr().err

# SPDX-License-Identifier: Apache-2.0
"""docs/pytorch.md is carried out: its file, its commands, its Python."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

from pulptrain.__main__ import run
from shared.paths import ROOT

pytestmark = pytest.mark.needs_torch

PAGE = (ROOT / "docs" / "pytorch.md").read_text()
BLOCKS = [
    (kind, text)
    for kind, text in re.findall(r"^<!-- (\w+)[^>]* -->\n+```\w*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
]


def texts(kind):
    """The blocks of a kind."""
    return [text for own, text in BLOCKS if own == kind]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the page's file, to work in."""
    (tmp_path / "net.py").write_text(texts("file")[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(kind):
    """The command lines of a kind, as words."""
    return [shlex.split(line)[1:] for text in texts(kind) for line in text.splitlines()]


@pytest.mark.sweep
def test_every_command_of_the_page_runs_and_the_converted_model_takes_as_long(folder, capsys):
    cycles = []
    for words in commands("run"):
        assert run(words) == 0, words
        shown = capsys.readouterr().out
        if words[0] == "run":
            cycles.append(re.search(r"([\d,]+) cycles", shown)[1])
        if words[1].endswith(":Net"):
            assert "convert" in words or "those of the module, computed by torch.autograd" in " ".join(
                shown.split()
            )
    assert len(cycles) == 4
    assert cycles[-1] == cycles[0]


def test_what_the_page_refuses_is_refused_in_its_words(folder, capsys):
    ((words,), (shown,)) = commands("refused"), texts("shows")
    assert run(words) == 2
    error = capsys.readouterr().err
    for line in shown.splitlines():
        assert line in error


def test_the_python_of_the_page_runs(folder, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(folder))
    try:
        for text in texts("python"):
            exec(compile(text, "docs/pytorch.md", "exec"), {})
    finally:
        sys.modules.pop("net", None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Net: input 3x16x16, batch 1")
    assert int(lines[-2]) > 0
    cycles, losses = lines[-1].split(" ", 1)
    assert int(cycles) > 0
    assert len(losses.split(",")) == 3

# SPDX-License-Identifier: Apache-2.0
"""docs/barvinn.md: its commands and its Python run and print what the page says of them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from pulptrain.__main__ import run
from shared.paths import ROOT
from tools import plain_resnet18

PAGE = (ROOT / "docs" / "barvinn.md").read_text(encoding="utf-8")
COMMANDS, PYTHON = (
    re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0] for kind in ("", "python")
)


@pytest.mark.slow
@pytest.mark.needs_onnx
def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    build, *commands = (shlex.split(line) for line in COMMANDS.splitlines())
    assert build[:3] == ["python", "-m", plain_resnet18.__name__]
    assert plain_resnet18.main(build[3:]) == 0
    printed = []
    for program, *arguments in commands:
        assert (program, run(arguments)) == ("pulptrain", 0)
        printed.append(capsys.readouterr().out)
    default, published, eight, loading = printed
    assert "Total countdown: 498104" in default
    assert "bit for bit" in default
    assert "792,808 cycles" in default
    assert "| rtl | 304 cycles | 1 | 792,808 |" in PAGE
    assert "Relu of 17 layers" in default
    assert "Total countdown: 532872" in published
    assert "8 of 8; 968 jobs" in eight
    # Loading takes time where the link has a rate: 5382 words of 512 bytes at the least.
    assert json.loads(loading)["cycles"] > 633_163 + 5382 * 512 // 64
    written = {file.name for file in (tmp_path / "out" / "resnet18").iterdir()}
    table = PAGE.partition("| file of")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])]
    assert len(named) >= 10
    for name in named:
        pattern = re.escape(name).replace(r"NN\-LAYER", r"\d\d-.*").replace(r"\*", ".*")
        assert any(re.fullmatch(pattern, file) for file in written), name
    exec(PYTHON, {})
    assert capsys.readouterr().out.split()[0::2][0] == "108072"
    assert "| 8 | 108,072 |" in PAGE

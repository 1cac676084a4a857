# SPDX-License-Identifier: Apache-2.0
"""Every command that README, CONTRIBUTING and the pages show is run, page by page, in the order of the page.

A page begins in a folder with the files it shows, and with examples and measured data unless it writes them.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import pulptrain as pt
from pulptrain.__main__ import run
from pulptrain.commands.new import template
from shared.onnx_models import model as onnx_model
from shared.onnx_models import node, saved, value
from shared.onnx_training_models import mlp_case
from shared.paths import ROOT

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").rglob("*.md"))

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\.venv/bin/)?pulptrain\s+(.+)$")

NOT_RUN = {
    "--executor dask://HOST:8786": "needs a cluster; tests/scheduler/tuner/test_workers.py has one",
}
"""Commands that no test can run as they stand, and what is tested instead."""

ELSEWHERE = {
    "adding-a-primitive.md": "tests/docs/test_adding_a_primitive.py",
    "barvinn.md": "tests/docs/test_barvinn.py",
    "pytorch.md": "tests/docs/test_pytorch.py",
}
"""Pages whose commands have a test of their own."""

QUICK = {"kernels.md", "CONTRIBUTING.md"}
"""Pages whose commands are run by `make test`; those of the others by `make sweep`."""


def commands(page: Path) -> list[str]:
    """The commands of a page, as a user would type them."""
    found = []
    for language, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language not in ("", "sh", "console"):
            continue
        for line in block.splitlines():
            match = _COMMAND.match(line.strip())
            if match:
                found.append(re.sub(r"\s+#.*$", "", match[1]))
    return found


def with_commands() -> list[object]:
    """The pages that show commands; those that take long are marked slow."""
    found = []
    for page in PAGES:
        marks = [] if page.name in QUICK else [pytest.mark.slow]
        marks += [pytest.mark.needs_onnx] if page.name == "onnx.md" else []
        marks += [pytest.mark.needs_torch] if page.name in ("onnx.md", "model-to-chip.md") else []
        if commands(page) and page.name not in ELSEWHERE:
            found.append(pytest.param(page, id=page.name, marks=marks))
    return found


def add_onnx_files(folder: Path) -> None:
    """By the names on the page: a network, a training graph and its optimizer, a case with goldens."""
    rng = np.random.default_rng(0)
    weights = {"cw": rng.standard_normal((4, 3, 3, 3)) / 5, "w": rng.standard_normal((4, 10)) / 2}
    nodes = [
        node("Conv", ["x", "cw"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["g"]),
        node("Flatten", ["g"], ["f"]),
        node("MatMul", ["f", "w"], ["y"]),
    ]
    network = onnx_model(
        nodes,
        [value("x", ["batch", 3, 32, 32])],
        [value("y", ["batch", 10])],
        {name: array.astype(np.float32) for name, array in weights.items()},
    )
    saved(folder, network)
    case = mlp_case(folder / "FOLDER", 1)
    for name, written in (("mlp_train", "training_model.onnx"), ("mlp_optimizer", "optimizer_model.onnx")):
        shutil.copy(case / name / "network.onnx", folder / written)


def furnish(folder: Path, page: Path) -> None:
    """What a reader of a page may have: examples, measured data, files of their own."""
    if "pulptrain example" not in page.read_text(encoding="utf-8"):
        for name in ("examples", "measured"):
            (folder / name).symlink_to(ROOT / name)
    if page.name == "onnx.md":
        add_onnx_files(folder)
    for name, text in _FILE.findall(page.read_text(encoding="utf-8")):
        (folder / name).write_text(text)


@pytest.mark.parametrize("page", with_commands())
def test_every_command_of_a_page_does_what_it_is_for(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    furnish(tmp_path, page)
    for command in commands(page):
        if any(part in command for part in NOT_RUN):
            continue
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
            code = run(shlex.split(command))
        assert code == 0, f"pulptrain {command}\n{printed.getvalue()}"


def test_no_command_is_pasted_as_a_pipe_or_a_placeholder() -> None:
    shown = [(page.name, command) for page in PAGES for command in commands(page)]
    assert len(shown) > 40
    for name, command in shown:
        assert not re.search(r"[|<>]|\.\.\.", command), (name, command)


def test_the_mistakes_the_tutorial_shows_are_those_that_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = dict(_BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")))
    Path("broken.yaml").write_text(blocks["yaml"])
    assert run(["run", "broken.yaml"]) == 2
    told = capsys.readouterr().err.splitlines()
    for line, shown in zip(told, blocks["text"].splitlines(), strict=True):
        assert line.startswith(shown.removesuffix("...)"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docs/tutorial.md", "docs/python-api.md"])
def test_the_python_a_page_shows_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(template("model", Path("net.yaml")))
    blocks = [text for language, text in _BLOCK.findall((ROOT / name).read_text()) if language == "python"]
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {"pt": pt})

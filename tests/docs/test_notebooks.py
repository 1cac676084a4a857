# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from the first cell to the last, and print what they show."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from pulptrain.show.shipped import shipped_files
from shared.rounding import without_rounding
from tools.notebooks import FOLDER, executed, texts

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_three_notebooks_ship() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"first-run", "explore-a-chip", "tune-and-understand"}
    assert {Path(place).name for place in shipped_files("notebooks")} == {path.name for path in NOTEBOOKS}


def test_the_first_screens_of_the_first_notebook_are_todays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells up to the first picture, carried out here: what they print, and what last lines are worth."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    notebook = json.loads((FOLDER / "first-run.ipynb").read_text())
    space: dict[str, Any] = {}
    compared = 0
    for cell in (cell for cell in notebook["cells"] if cell["cell_type"] == "code"):
        if "IPython" in "".join(cell["source"]):
            break
        tree = ast.parse("".join(cell["source"]))
        *lines, last = tree.body
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(ast.Module(lines, []), "cell", "exec"), space)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), space)
            else:
                exec(compile(ast.Module([last], []), "cell", "exec"), space)
                value = None
        shown = [
            "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))
            for output in cell["outputs"]
        ]
        found = [text for text in (printed.getvalue(), "" if value is None else repr(value)) if text]
        assert [*map(without_rounding, found)] == [*map(without_rounding, shown)]
        compared += len(shown)
    assert compared == 4


@pytest.mark.slow
@pytest.mark.needs_nbclient
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat

    monkeypatch.setenv("PYTHONPATH", "")
    shown: Any = nbformat.read(path, as_version=4)
    assert texts(executed(path, tmp_path)) == texts(shown)
    assert any(
        "image/png" in output.get("data", {}) for cell in shown.cells for output in cell.get("outputs", ())
    )

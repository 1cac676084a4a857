# SPDX-License-Identifier: Apache-2.0
"""The notebooks run from the first cell to the last, and print what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulptrain.show.shipped import shipped_files
from tools.notebooks import FOLDER, executed, texts

NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_three_notebooks_ship() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"first-run", "explore-a-chip", "tune-and-understand"}
    assert {Path(place).name for place in shipped_files("notebooks")} == {path.name for path in NOTEBOOKS}


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

# SPDX-License-Identifier: Apache-2.0
"""What planning chooses is written into the folder that is named, and is equal from process to process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from shared.paths import ROOT


def dumped(folder: Path, model: Path, *words: str, seed: str = "0") -> dict[str, bytes]:
    """Name and bytes of the files that the tool writes; `seed` orders the sets of that process."""
    command = [sys.executable, str(ROOT / "tools" / "dump_plans.py"), str(folder), str(model), *words]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_model_by_its_path_is_written_into_the_folder(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    model = tmp_path / "models" / "mine.yaml"
    model.write_text((ROOT / "configs" / "models" / "simple-mlp.yaml").read_text(encoding="utf-8"))
    asked = ("--buffering", "single", "--l1", "64KiB", "--form", "readable")
    first = dumped(tmp_path / "first", model, *asked)
    (name,) = first
    assert name.endswith("-models-mine.yaml_single_64KiB_readable.json")
    assert list(model.parent.iterdir()) == [model]
    assert dumped(tmp_path / "again", model, *asked, seed="1") == first
    assert b'"error"' not in first[name]

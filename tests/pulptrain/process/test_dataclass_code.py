# SPDX-License-Identifier: Apache-2.0
"""The code of dataclasses is kept between commands, and a file that is none does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def version(prefix: Path) -> str:
    """What `pulptrain --version` prints, with Python's compiled code below `prefix`."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-m", "pulptrain", "--version"]
    environment = {**inherited, "PYTHONPYCACHEPREFIX": str(prefix)}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_a_second_command_finds_the_code_and_a_broken_file_is_made_anew(tmp_path: Path) -> None:
    told = version(tmp_path)
    (kept,) = tmp_path.rglob("dataclasses.code")
    made = kept.read_bytes()
    version(tmp_path)
    assert kept.read_bytes() == made
    kept.write_bytes(made[:10])
    assert version(tmp_path) == told
    assert kept.read_bytes() == made
    assert [path.name for path in kept.parent.glob("dataclasses*")] == [kept.name]

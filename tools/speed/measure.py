# SPDX-License-Identifier: Apache-2.0
"""One command, its user CPU and its memory, by itself and in turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.speed.rows import Row
from tools.speed.versions import Version


@dataclass(frozen=True)
class Measured:
    """User CPU of a command and what it started, its peak of resident memory, and what it printed."""

    user_seconds: float
    peak_bytes: int
    exit_code: int
    summary: Mapping[str, Any]


def measured(version: Version, arguments: Sequence[str], folder: Path, kept: Path) -> Measured:
    """A command of `version` in `folder`, with the plans and prices of the file `kept`."""
    command = version.command(*arguments, "--json", "--quiet")
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(
            command, cwd=folder, env=version.environment(kept), stdout=out, stderr=subprocess.DEVNULL
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        told = out.read()
    summary = json.loads(told) if process.returncode == 0 else {}
    return Measured(used.ru_utime, 1024 * used.ru_maxrss, process.returncode, summary)


def once(version: Version, row: Row) -> Measured:
    """A row in a new folder, cold: it has compiled code and what its `before` stores."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in row.files.items():
            (folder / path).write_text(text, encoding="utf-8")
        kept = folder / "kept.sqlite"
        for arguments in row.before:
            measured(version, arguments, folder, kept)
        return measured(version, row.arguments, folder, kept)


def in_turns(versions: Sequence[Version], row: Row) -> list[Measured]:
    """By version the run of median user CPU; they take turns, so that a drift of the machine meets both."""
    found: list[list[Measured]] = [[] for _ in versions]
    for _ in range(row.rounds):
        for runs, version in zip(found, versions, strict=True):
            runs.append(once(version, row))
    return [_median(runs) for runs in found]


def _median(runs: Sequence[Measured]) -> Measured:
    middle = statistics.median_low([run.user_seconds for run in runs])
    return next(run for run in runs if run.user_seconds == middle)

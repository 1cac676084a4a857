# SPDX-License-Identifier: Apache-2.0
"""Standard output that is closed, full or no longer read: one line or none, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIST = f"{sys.executable} -m pulptrain list models"


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize(
    "end",
    [
        ">&-",
        pytest.param(
            "> /dev/full",
            marks=pytest.mark.needs_proc,
        ),
    ],
)
def test_standard_output_that_is_closed_or_full_is_told_in_one_line(end: str) -> None:
    done = shell(f"{LIST} {end}")
    assert done.returncode == 2
    *_, first, cure = done.stderr.splitlines()  # before them, what is being done
    assert first.startswith("pulptrain: error: standard output: the output cannot be written: ")
    assert cure.startswith("  try: ")


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    program = f"{LIST} --json; echo $? >&2"
    # The reader is gone before anything is written.
    done = shell(f"( sleep 0.2; {program} ) | true")
    assert done.stderr == "0\n"


def test_messages_that_standard_error_cannot_take_are_dropped() -> None:
    assert shell(f"{sys.executable} -m pulptrain list nothing 2> /dev/full").returncode == 2
    done = shell(f"{LIST} 2>&-")
    assert done.returncode == 0
    assert "resnet8" in done.stdout


def test_no_file_of_ours_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    cache = tmp_path / "c"
    command = f"{sys.executable} -m pulptrain run digits-cnn --no-functional --quiet --cache {cache}"
    assert shell(f"{command} <&- >&- 2>&-").returncode == 0
    assert cache.read_bytes().startswith(b"SQLite format 3\0")

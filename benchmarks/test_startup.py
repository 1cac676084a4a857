# SPDX-License-Identifier: Apache-2.0
"""How soon a command says something after Enter, and how long help takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

ROOT = Path(__file__).resolve().parents[1]

FIRST_LINE_SECONDS = 0.7
"""Allowed from Enter to the first line, on standard output or standard error."""

COMMANDS = (
    "--version",
    "--help",
    "run --help",
    "run tutorial-cnn",
    "run resnet8 --no-functional",
    "tune simple-mlp --tilings 1",
    "explore examples/explore-tutorial-cnn.yaml",
    "kernel mm",
    "primitive relu --shape 8x8",
    "validate dma measured/dma.csv.gz --where test=1d",
    "list socs",
    "show conv2d",
    "convert --help",
    "replay --help",
    "barvinn --help",
)


def first_line_seconds(command: str) -> float:
    """Time to the first line of a command, which is then ended."""
    with tempfile.TemporaryDirectory() as cache:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "pulptrain", *command.split()],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "XDG_CACHE_HOME": cache, "PULPTRAIN_NO_CACHE": "1"},
        )
        assert process.stdout is not None
        assert process.stdout.readline()
        taken = time.perf_counter() - started
        process.kill()
        process.communicate()
    return taken


@pytest.mark.parametrize("command", COMMANDS)
def test_the_first_line_comes_soon(command: str) -> None:
    best = min(first_line_seconds(command) for _ in range(3))
    print(f"{command:50s} {best:.2f} s to the first line")
    assert best <= FIRST_LINE_SECONDS

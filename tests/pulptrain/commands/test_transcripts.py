# SPDX-License-Identifier: Apache-2.0
"""What commands print at 80, 100 and 160 columns, to the letter.

After a change that is meant ``PYTHONPATH=.:tests python tests/pulptrain/commands/test_transcripts.py``
writes the files of `FOLDER` again.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex

import pytest

from configs.library import list_names
from pulptrain.__main__ import run
from pulptrain.commands.completion import completes
from shared.paths import TESTS
from shared.rounding import without_rounding

FOLDER = TESTS / "transcripts"
WIDTHS = (80, 100, 160)
COMMANDS = {
    "help": "--help",
    "run-help": "run --help",
    "tune-help": "tune --help",
    "explore-help": "explore --help",
    "run": "run tutorial-cnn",
    "run-full": "run tutorial-cnn --no-functional --full",
    "run-by-kernel": "run tutorial-cnn --no-functional --top 3 --group-by kernel",
    "inference": "run tutorial-cnn --steps fw",
    "recurrent": "run gru-keywords --no-functional",
    "primitive": "primitive linear --step wg --shape 64 --option out_features=32",
    "kernel": "kernel mm --n 32 --k 64 --m 32 --cores 4",
}
LINES = 60
"""Most lines of a run, unless all are asked for."""


def transcript(command: str, width: int) -> str:
    """What a command prints to a terminal, or anything else, of so many columns."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            assert run(shlex.split(command)) == 0
    finally:
        os.environ.pop("COLUMNS")
        if before is not None:
            os.environ["COLUMNS"] = before
    return out.getvalue()


@pytest.mark.needs_torch
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "recurrent")) for name in COMMANDS]
)
def test_a_command_prints_what_it_printed(name: str) -> None:
    for width in WIDTHS:
        text = transcript(COMMANDS[name], width)
        kept = (FOLDER / f"{name}-{width}.txt").read_text()
        assert without_rounding(text) == without_rounding(kept), f"{width} columns"
        assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    ("kind", "typed", "name"),
    [("models", "res", "resnet8"), ("soc", "gap", "gap9"), ("kernels", "mm_unroll_2x4", "mm_unroll_2x4")],
)
def test_names_are_completed(kind: str, typed: str, name: str) -> None:
    complete = completes(kind)
    assert complete is not None
    assert name in complete(typed)
    assert all(found.startswith(typed) for found in complete(typed))


@pytest.mark.slow
@pytest.mark.parametrize("model", list_names("models"))
def test_a_run_of_any_model_takes_sixty_lines_at_most(model: str) -> None:
    for width in (80, 100):
        lines = transcript(f"run {model} --no-functional", width).splitlines()
        assert len(lines) <= LINES
        assert max(map(len, lines)) <= width


if __name__ == "__main__":
    for name, command in COMMANDS.items():
        for width in WIDTHS:
            (FOLDER / f"{name}-{width}.txt").write_text(transcript(command, width))

# SPDX-License-Identifier: Apache-2.0
"""How commands show what came out: one JSON object, or tables and the paths of files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from configs.errors import PulptrainError, WrongNumbersError
from pulptrain.process.progress import Teller
from pulptrain.running.session import RunOutcome
from pulptrain.running.update_summary import update_line
from traces.files.json_text import json_text
from traces.report import Detail, report_lines
from traces.text_table import counted, labelled

if TYPE_CHECKING:
    from traces.pictures.drawing import Paper

UNDECIDED = {
    "not_decidable": "not decidable: rounding errors are large enough to hide a defect",
    "without_truth": "not compared with any reference",
}
"""Verdicts that leave open whether the numbers are right, and what a warning says of them."""

PIPED_WIDTH = 100
"""Columns of tables that go to a file or a pipe."""


def table_width(piped: int = PIPED_WIDTH) -> int:
    """Columns of the terminal; `piped` where there is none. The variable COLUMNS goes first."""
    return get_terminal_size((piped, 50)).columns if sys.stdout.isatty() else _columns(piped)


def _columns(piped: int) -> int:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 10_000 else piped


def print_result(
    result: Any,
    lines: Callable[[int], Iterable[str]],
    *,
    as_json: bool,
    quiet: bool,
    written: Iterable[Path] = (),
) -> None:
    """Print what came out: its JSON object; or its lines, which are given a width, and the files written."""
    if as_json:
        typer.echo(json_text(result))
    elif not quiet:
        typer.echo("\n".join(lines(table_width())))
        for path in written:
            typer.echo(f"  {path}")


def end_interrupted(what: str) -> NoReturn:
    """Say on standard error what Ctrl-C has left, and end with exit code 130."""
    print(f"pulptrain: interrupted{what}", file=sys.stderr)
    raise typer.Exit(130)


def run_folder(out: str) -> Path:
    """The folder for the files of a run, made. Raises `InputError`."""
    from pulptrain.running.outputs import RUN_FILES
    from traces.files.result_folder import prepare_folder

    return prepare_folder(out, RUN_FILES)


def outcome_of(run: Callable[[], RunOutcome]) -> RunOutcome:
    """The outcome of a run, that of one with wrong numbers as well, which `finish_run` raises in the end."""
    try:
        return run()
    except WrongNumbersError as error:
        outcome: RunOutcome = error.outcome
        return outcome


def finish_run(
    outcome: RunOutcome,
    folder: Path | None,
    *,
    as_json: bool,
    quiet: bool,
    detail: Detail,
    teller: Teller,
    paper: Paper | None = None,
) -> None:
    """Write the files of a run, if it has a folder, and print its JSON object or its report.

    Pictures are drawn on `paper`. The report is printed even if the files cannot be written. Then raises
    what prevented them, or `WrongNumbersError` if the run has a wrong tensor.
    """
    written: list[Path] = []
    unwritten: PulptrainError | None = None
    if folder is not None:
        from pulptrain.running.outputs import write_outputs

        teller.stage(f"writing files and pictures to {folder}")
        try:
            written = write_outputs(outcome, folder, paper)
        except PulptrainError as error:
            unwritten = error
    teller.end()

    def lines(width: int) -> list[str]:
        told = report_lines(outcome.summary, width, detail)
        if "update" in outcome.summary:
            told += ["", *labelled("update", update_line(outcome.summary["update"]), width)]
        return told

    print_result(outcome.summary, lines, as_json=as_json, quiet=quiet, written=written)
    functional = outcome.summary["functional"]
    if functional is not None and functional["passed"] is None:
        for verdict, what in UNDECIDED.items():
            names = [item["name"] for item in functional["tensors"] if item["verdict"] == verdict]
            if names:
                text = f"{counted(len(names), 'tensor')} {what}: {', '.join(names)}"
                print(f"pulptrain: warning: {text}", file=sys.stderr)
    if unwritten is not None:
        raise unwritten
    outcome.refuse_wrong_numbers()

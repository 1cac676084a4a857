# SPDX-License-Identifier: Apache-2.0
"""How commands show what came out: one JSON object, or tables and the paths of files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import typer
from rich.console import Console

from configs.errors import WrongNumbersError
from pulptrain.json_text import json_text
from pulptrain.outputs import write_outputs
from pulptrain.session import RunOutcome
from pulptrain.update_summary import update_line
from traces.report import View, report_lines


def table_console(width: int = 110) -> Console:
    """Standard output, as wide as the terminal; `width` characters where it is none."""
    return Console(width=None if sys.stdout.isatty() else width)


def print_paths(paths: Iterable[Path | str], console: Console) -> None:
    """Name files that were written, one a line and never broken."""
    for path in paths:
        console.print(f"  {path}", highlight=False, soft_wrap=True)


def told(run: Callable[[], RunOutcome]) -> RunOutcome:
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
    view: View | None = None,
) -> None:
    """Write the files of a run, if it has a folder, and print its JSON object or its report.

    Then raises `WrongNumbersError` if the run has a wrong tensor.
    """
    written = write_outputs(outcome, folder) if folder is not None else []
    if as_json:
        typer.echo(json_text(outcome.summary))
    elif not quiet:
        console = table_console()
        typer.echo("\n".join(report_lines(outcome.summary, console.width, view)))
        if "update" in outcome.summary:
            text = update_line(outcome.summary["update"])
            console.print(f"[bold]{'update':<13}[/bold] {text}", highlight=False)
        print_paths(written, console)
    functional = outcome.summary["functional"]
    if functional is not None and functional["passed"] is None:
        names = [item["name"] for item in functional["tensors"] if item["verdict"] == "not_decidable"]
        print(
            f"pulptrain: warning: {len(names)} tensors are not decidable, a defect could hide in their "
            f"rounding: {', '.join(names)}",
            file=sys.stderr,
        )
    outcome.refuse_wrong_numbers()

# SPDX-License-Identifier: Apache-2.0
"""`pulptrain compare A B [C ...]`: what changed between runs of one model, by op and by cause."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.errors import InputError
from pulptrain.commands import options as common
from pulptrain.process.progress import telling
from traces.files.json_text import json_text

WORSE = 5
"""Exit code where the last run takes more cycles than `--fail-above` allows."""


def command(
    folders: Annotated[
        list[str], typer.Argument(metavar="RUN RUN...", help="Folders written by `pulptrain run --out`.")
    ],
    fail_above: Annotated[
        str | None,
        common.option(
            "--fail-above",
            "PERCENT",
            "Exit with 5 if the last run takes so much more than the first, e.g. 2%.",
        ),
    ] = None,
    top: common.Top = 10,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Compare runs of one model: the first with the last, op by op and cause by cause."""
    with telling("reading runs", show=not (quiet or as_json)):
        from pulptrain.commands.printing import table_width
        from pulptrain.running.stored_run import read_summary
        from traces.comparison import compared
        from traces.report import Detail

        most_percent = None if fail_above is None else parse_percent(fail_above)
        detail = Detail(top)
        found = compared([read_summary(Path(folder)) for folder in folders], _names(folders))
    if as_json:
        typer.echo(json_text(found.as_dict()))
    elif not quiet:
        typer.echo("\n".join(found.lines(table_width(), detail.top)))
    if (
        most_percent is not None
        and 100 * (found.cycles[-1] - found.cycles[0]) > most_percent * found.cycles[0]
    ):
        raise typer.Exit(WORSE)


def parse_percent(text: str) -> float:
    """``2%`` or ``2``; raises `InputError` for anything that is no number of at least 0."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(f"cannot read {text!r}", where="--fail-above", cure="a percentage, e.g. 2%")
    return value


def _names(folders: list[str]) -> list[str]:
    """Last parts of the paths where they differ, else the paths."""
    names = [Path(folder).name for folder in folders]
    return names if len(set(names)) == len(names) else folders

# SPDX-License-Identifier: Apache-2.0
"""`pulptrain validate KIND CASES.csv`: predicted against measured cycles."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from pulptrain.commands import options
from pulptrain.commands.printing import table_console
from pulptrain.json_text import json_text
from pulptrain.validation_summary import validation_summary
from scheduler.validation.cases import Selection, parse_selection
from scheduler.validation.kinds import KINDS
from scheduler.validation.runner import Refused, Validation
from scheduler.validation.runner import validate as run_validation
from scheduler.validation.statistics import farthest_off, figures, grouped

WORST_ROWS = 10
"""Rows named under the table."""

FIGURES = {
    "cases": "rows",
    "mape_percent": "mean",
    "p95_percent": "p95",
    "max_percent": "max",
    "bias_percent": "bias",
    "noise_percent": "noise",
    "instructions_mape_percent": "instr.",
    "top1_regret_percent": "regret",
}
"""Figures of the table and their column heads, in order; with four columns of groups they fit 100."""

HEADS = {"bank_conflicts": "conflicts"}
"""Shorter heads of group columns."""


def command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help=f"What was measured: {', '.join(KINDS)}.",
            autocompletion=lambda incomplete: [name for name in KINDS if name.startswith(incomplete)],
        ),
    ],
    cases: Annotated[str, typer.Argument(metavar="CASES.csv", help="Measured rows, .csv or .csv.gz.")],
    group_by: Annotated[
        str | None,
        typer.Option("--group-by", metavar="COLUMN[,COLUMN]", help="The figures for each group of rows."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="COLUMN=VALUE[,VALUE]", help="Predict only these rows."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", help="Processes; the result is the same.")
    ] = None,
    keep_going: Annotated[
        bool,
        typer.Option(
            "--keep-going",
            help="List the rows that cannot be predicted and count the others; still exit code 2.",
        ),
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Predict the cycles of measured cases and print how far off the predictions are.

    Errors are (predicted - measured) / measured. A row with several measured times (icache: cold, warm;
    overlap: kernel, transfers) is as many cases, named ID:MEASURE and told apart by the column "measure".
    Exit code 2 names file and line of a row that cannot be read or predicted; 130 after Ctrl-C, with the
    figures of the rows done so far.
    """
    selections = [parse_selection(text) for text in where or ()]
    columns = tuple(column.strip() for column in group_by.split(",")) if group_by else ()
    done = _run(
        kind,
        cases,
        show_progress=not (quiet or as_json),
        workers=workers,
        selections=selections,
        group_by=columns,
        keep_going=keep_going,
    )
    if as_json:
        typer.echo(json_text(validation_summary(done, columns)))
    elif not quiet:
        console = table_console(160)
        _print_tables(console, done, columns or done.kind.groups)
    if done.interrupted:
        print(
            f"pulptrain: interrupted; the figures count {len(done.results)} of {done.asked} rows",
            file=sys.stderr,
        )
        raise typer.Exit(130)
    if done.refused:
        _list_refused(done.refused)
        missed = f"{len(done.refused)} of {done.asked} rows are not predicted"
        print(f"pulptrain: {missed}; the figures count the others", file=sys.stderr)
        raise typer.Exit(2)


def _list_refused(refused: Sequence[Refused]) -> None:
    """A line per row; the same cure once only."""
    cures: set[str] = set()
    for row in refused:
        print(f"pulptrain: {row.error.where}: {row.error.message}", file=sys.stderr)
        cure = row.error.cure
        if cure is not None and cure not in cures:
            print(f"  try: {cure}", file=sys.stderr)
            cures.add(cure)


def _run(
    kind: str,
    cases: str,
    *,
    show_progress: bool,
    workers: int | None,
    selections: Sequence[Selection],
    group_by: Sequence[str],
    keep_going: bool,
) -> Validation:
    call = functools.partial(
        run_validation,
        kind,
        cases,
        workers=workers,
        selections=selections,
        group_by=group_by,
        keep_going=keep_going,
    )
    if not show_progress:
        return call()
    bars = (TextColumn("predicting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*bars, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("rows", total=None)

        def advance(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        return call(progress=advance)


def _print_tables(console: Console, done: Validation, columns: Sequence[str]) -> None:
    kind = done.kind.name
    groups = grouped(done.results, columns)
    shown = [name for name in FIGURES if name in figures((), kind)]
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for column in columns:
        table.add_column(HEADS.get(column, column))
    for name in shown:
        table.add_column(FIGURES[name], justify="right")
    for key in sorted(groups, key=_natural):
        numbers = figures(groups[key], kind)
        table.add_row(*(text or "-" for text in key), *(_cell(numbers[name]) for name in shown))
    total = figures(done.results, kind)
    table.add_section()
    table.add_row("all", *[""] * (len(columns) - 1), *(_cell(total[name]) for name in shown))
    console.print(table)
    console.print(
        "Errors in percent of the measured cycles. All rows: median error "
        f"{_cell(total['median_percent'])} %, rank correlation {_cell(total['rank_correlation'], 4)}."
    )
    console.print(f"\nfarthest off of {len(done.results)} rows:")
    worst = Table(box=None, pad_edge=False)
    for head in ("row", "measured", "predicted", "error %"):
        worst.add_column(head, justify="left" if head == "row" else "right", overflow="fold")
    for result in farthest_off(done.results, WORST_ROWS):
        worst.add_row(
            result.case.id,
            f"{result.measured:,}",
            f"{result.prediction.cycles:,}",
            f"{result.error_percent:+.2f}",
        )
    console.print(worst)


def _natural(key: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Numbers in numeric order, before texts."""
    return tuple((int(text), "") if text.isdigit() else (-1, text) for text in key)


def _cell(value: float | None, decimals: int = 2) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{decimals}f}"

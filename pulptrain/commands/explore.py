# SPDX-License-Identifier: Apache-2.0
"""`pulptrain explore SPEC.yaml`: sweep parameters of SoC, schedule and model, and find the Pareto front."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pulptrain.commands import options, search_options
from pulptrain.commands.printing import print_paths, table_console
from pulptrain.exploration import explore, write_exploration
from pulptrain.explore_spec import load_spec
from pulptrain.json_text import json_text
from pulptrain.outputs import EXPLORATION_FILES, prepare_folder
from pulptrain.result_cache import open_cache
from scheduler.tuner.progress import meter
from scheduler.tuner.workers import open_workers


def command(
    spec: Annotated[str, typer.Argument(metavar="SPEC.yaml", help="File that says what is varied.")],
    workers: search_options.WorkerCount = None,
    executor: search_options.ExecutorAddress = None,
    cache: search_options.CacheFile = None,
    no_cache: search_options.NoCache = False,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Write points.csv, points.json and the picture."),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Simulate every point of SPEC.yaml and say which are worth having."""
    read = load_spec(spec)
    folder = prepare_folder(out, EXPLORATION_FILES) if out is not None else None
    show = not (quiet or as_json)
    with (
        # The first of all: workers are copies of this process as it is here.
        open_workers(workers if workers is not None else os.cpu_count() or 1, executor) as pool,
        open_cache(cache, no_cache) as kept,
        meter("exploring", "points", show=show) as progress,
    ):
        result = explore(read, pool, kept, progress)
    written = write_exploration(result.summary, folder) if folder is not None else []
    if as_json:
        typer.echo(json_text(result.summary))
    elif not quiet:
        console = table_console()
        _print(result.summary, console)
        print_paths(written, console)
    if result.interrupted:
        done, asked = len(result.summary["points"]), result.summary["asked"]
        print(f"pulptrain: interrupted after {done} of {asked} points; they are kept", file=sys.stderr)
        raise typer.Exit(130)


def _print(summary: dict[str, Any], console: Console) -> None:
    rows = summary["points"]
    console.print(f"{summary['name']}: {summary['model']}, {len(rows)} points", highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in (*summary["axes"], *summary["objectives"]):
        table.add_column(name, justify="right")
    table.add_column("front")
    for row in rows:
        values = [str(row["values"].get(axis, "")) for axis in summary["axes"]]
        if row["why"] is None:
            figures = [_number(row[name]) for name in summary["objectives"]]
            table.add_row(*values, *figures, "*" if row["on_front"] else "")
        else:
            table.add_row(
                *values, *("-" for _ in summary["objectives"]), "does not fit" if row["short_bytes"] else "-"
            )
    console.print(table)
    for row in rows:
        if row["why"] is not None:
            text = ", ".join(f"{key}={value}" for key, value in row["values"].items())
            console.print(f"  {text}: {row['why']}", highlight=False, soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"

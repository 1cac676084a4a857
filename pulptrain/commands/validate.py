# SPDX-License-Identifier: Apache-2.0
"""`pulptrain validate KIND CASES.csv`: predicted against measured cycles."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pulptrain.commands import options as common
from pulptrain.process.progress import telling
from traces.files.json_text import json_text

KINDS = (
    "mm",
    "loop",
    "layer",
    "tiled",
    "tiled-layers",
    "dma",
    "overlap",
    "dma-contention",
    "dma-contention-rtl",
    "icache",
    "icache-rtl",
    "refill",
    "sequence",
    "steps",
    "micro",
)
"""Kinds of measured files (`scheduler.validation.rows.kinds`), for the help text."""


def command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="What CASES.csv measures, e.g. mm (matrix products), layer (whole layers), dma (transfers) "
            f"or steps (training steps). docs/validation.md explains all: {', '.join(KINDS)}.",
            autocompletion=lambda incomplete: [name for name in KINDS if name.startswith(incomplete)],
        ),
    ],
    cases: Annotated[
        str,
        typer.Argument(
            metavar="CASES.csv", help="CSV file of measured cycles, one run per row (.csv or .csv.gz)."
        ),
    ],
    group_by: Annotated[
        str | None,
        common.option(
            "--group-by",
            "COLUMN[,COLUMN]",
            "Also print the prediction errors for each value of these columns of CASES.csv, e.g. cores.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        common.option(
            "--where",
            "COLUMN=VALUE[,VALUE]",
            "Predict only the rows of CASES.csv with these values in a column, e.g. cores=1,8.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        common.option(
            "--workers",
            "N",
            "Number of worker processes (default: one per CPU); results do not depend on the number.",
        ),
    ] = None,
    keep_going: Annotated[
        bool,
        common.option(
            "--keep-going",
            "",
            "If a row of CASES.csv cannot be predicted, list it and go on; the exit code is still 2.",
        ),
    ] = False,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Predict the cycles of measured cases and print the prediction errors.

    Errors are (predicted - measured) / measured. A row with several measured times (icache: cold, warm;
    overlap: kernel, transfers) gives several cases, named ID:MEASURE.
    Exit code 2: a row cannot be read or predicted; the message names file and line. 130: Ctrl-C; the figures
    cover the rows done so far.
    """
    with telling(f"reading {cases}", show=not (quiet or as_json)) as teller:
        from pulptrain.commands.printing import end_interrupted, table_width
        from pulptrain.inputs.source_kind import refuse_others
        from pulptrain.show.validation_report import list_refused, print_tables, validation_summary
        from scheduler.validation.rows.cases import parse_selection
        from scheduler.validation.runner import validate

        refuse_others(kind, "rows", "validate")
        columns = tuple(column.strip() for column in group_by.split(",")) if group_by else ()
        selections = [parse_selection(text) for text in where or ()]
        teller.stage("predicting")
        teller.alone()
        done = validate(
            kind,
            cases,
            workers=workers,
            selections=selections,
            group_by=columns,
            keep_going=keep_going,
            progress=lambda rows, total: teller.count(rows, total, " rows"),
        )
        teller.end()
        if as_json:
            typer.echo(json_text(validation_summary(done, columns)))
        elif not quiet:
            print_tables(table_width(160), done, columns or done.kind.groups)
    if done.interrupted:
        end_interrupted(f"; the figures cover {len(done.results)} of {done.asked} rows")
    if done.refused:
        list_refused(done.refused)
        missed = f"{len(done.refused)} of {done.asked} rows cannot be predicted"
        print(f"pulptrain: {missed}; the figures cover the others", file=sys.stderr)
        raise typer.Exit(2)

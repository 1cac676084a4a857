# SPDX-License-Identifier: Apache-2.0
"""`pulptrain why RUN`: what a finished run and its ops are bound by, and what to try first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pulptrain.commands import options as common
from pulptrain.process.progress import telling
from traces.files.json_text import json_text


def command(
    folder: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Folder of a run, written by `pulptrain run MODEL --out DIR`."),
    ],
    critical: Annotated[
        bool,
        common.option(
            "--critical-path",
            "",
            "Show the critical path: the chain of work that sets the total time, and the slack of "
            "other work.",
        ),
    ] = False,
    top: common.Top = 10,
    as_json: common.Json = False,
) -> None:
    """Show what limits each op of a run and what to try first, or the critical path of the run."""
    with telling(f"reading {folder}", show=not as_json):
        from pulptrain.commands.printing import table_width
        from pulptrain.running.stored_run import read_summary
        from traces.report import Detail

        detail = Detail(top)
        summary = read_summary(Path(folder))
        if critical:
            from pulptrain.running.critical import path_of
            from traces.critical.path import path_json, path_lines
            from traces.files.tables import read_table

            path = path_of(read_table(Path(folder)), summary, folder)
            reasons = path_json(path, summary) if as_json else path_lines(path, detail.top, table_width())
        else:
            from traces.why import why_json, why_lines

            reasons = why_json(summary) if as_json else why_lines(summary, detail.top, table_width())
    typer.echo(json_text(reasons) if isinstance(reasons, dict) else "\n".join(reasons))

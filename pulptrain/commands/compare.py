# SPDX-License-Identifier: Apache-2.0
"""`pulptrain compare A B [C ...]`: what changed between runs of one model; `compare RUN LOG`: what is off.

What is a folder is a run, what is a file is a log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.errors import InputError
from pulptrain.commands import options as common
from pulptrain.process.progress import telling

WORSE = 5
"""Exit code where the last run takes more cycles than `--fail-above` allows."""


@common.draws
def command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN RUN...|LOG",
            help="Two or more run folders (`pulptrain run MODEL --out DIR`), or one run folder and a file "
            "of measured cycles (LOG, docs/measured-logs.md).",
        ),
    ],
    fail_above: Annotated[
        str | None,
        common.option(
            "--fail-above",
            "PERCENT",
            "Exit with code 5 if the last run is slower than the first by more than this, e.g. 2%, or if "
            "simulated and measured total cycles differ by more than this.",
        ),
    ] = None,
    in_l1: Annotated[
        bool,
        common.option(
            "--in-l1",
            "",
            "Leave out simulated DMA waits, to compare with cycles that were measured with all data in L1.",
        ),
    ] = False,
    out: Annotated[
        str | None,
        common.option(
            "--out",
            "FILE.png|svg|pdf",
            "Picture file to write: all runs on one time axis.",
            common.OUTPUT,
        ),
    ] = None,
    paper: common.Paper | None = None,
    top: common.Top = 10,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Compare the first and the last of several runs of a model, or a run with measured cycles."""
    with telling("reading runs", show=not (quiet or as_json)):
        from pulptrain.commands.printing import print_result
        from pulptrain.running.compared_runs import compare_runs
        from traces.compared.strips import draw_strips
        from traces.pictures.drawing import picture_file
        from traces.report import Detail

        most_percent = None if fail_above is None else parse_percent(fail_above)
        detail = Detail(top)
        picture = None if out is None else picture_file(out, "--out")
        comparison = compare_runs([Path(run) for run in runs], _names(runs), in_l1=in_l1)
        if picture is not None:
            draw_strips(comparison.strips(), comparison.model, picture, paper)
    print_result(
        comparison.as_dict(),
        lambda width: [*comparison.lines(width, detail.top), *([str(picture)] if picture else [])],
        as_json=as_json,
        quiet=quiet,
    )
    if most_percent is not None and comparison.is_above(most_percent):
        raise typer.Exit(WORSE)


def parse_percent(text: str) -> float:
    """``2%`` or ``2``; raises `InputError` for anything that is no number of at least 0."""
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise InputError(
            f"{text!r} is not a percentage of 0 or more",
            where="--fail-above",
            cure="write a percentage, e.g. 2%",
        )
    return value


def _names(folders: list[str]) -> list[str]:
    """Last parts of the paths where they differ, else the paths."""
    names = [Path(folder).name for folder in folders]
    return names if len(set(names)) == len(names) else folders

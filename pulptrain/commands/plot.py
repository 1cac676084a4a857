# SPDX-License-Identifier: Apache-2.0
"""`pulptrain plot OUT_DIR`: draw the pictures of a finished run again, or a part of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.errors import InputError
from pulptrain.commands import options as common
from pulptrain.process.progress import telling
from traces.files.json_text import json_text


def command(
    folder: Annotated[
        str, typer.Argument(metavar="OUT_DIR", help="Folder written by `pulptrain run --out`.")
    ],
    window: Annotated[
        str | None, common.option("--window", "START:END", "Draw only these cycles, e.g. 0:20000.")
    ] = None,
    what: Annotated[
        str,
        common.option(
            "--what", "all|gantt|gantt-stalls|breakdown|memory", "Which picture to draw; all by default."
        ),
    ] = "all",
    out: Annotated[
        str | None, common.option("--out", "DIR", "Write the pictures here (default: OUT_DIR).")
    ] = None,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Draw the Gantt charts, the breakdown of cycles and the memory map of the run in OUT_DIR."""
    with telling(f"drawing {folder}", show=not (quiet or as_json)):
        from configs.suggest import suggestion
        from pulptrain.running.outputs import PICTURE_FILES, PICTURES, draw_pictures
        from pulptrain.running.stored_run import read_summary
        from traces.errors import TraceError
        from traces.files.result_folder import prepare_folder
        from traces.files.tables import read_table

        if what not in ("all", *PICTURES):
            raise InputError(
                f"no picture {what!r}", where="--what", cure=suggestion(what, ("all", *PICTURES))
            )
        source = Path(folder)
        summary = read_summary(source)
        interval = (
            parse_window(window, int(summary.get("trace_cycles", summary["cycles"])))
            if window is not None
            else None
        )
        target = prepare_folder(out if out is not None else folder, PICTURE_FILES)
        slices = read_table(source)
        try:
            drawn = draw_pictures(slices, summary, target, source=source, window=interval, what=what)
        except TraceError as error:
            # Of a run it would be a defect; what was read from a file, somebody has changed.
            raise InputError(str(error), where=str(source), cure="run the simulation again") from None
    paths = [str(path) for path in drawn]
    if as_json:
        typer.echo(json_text({"pictures": paths}))
    elif not quiet:
        typer.echo("\n".join(paths))


def parse_window(text: str, makespan_cycles: int) -> tuple[int, int]:
    """``START:END`` in cycles; either may be left out. Raises `InputError` for anything else."""
    first, separator, last = text.partition(":")
    try:
        start, end = int(first[:20] or 0), int(last[:20] or makespan_cycles)
    except ValueError:
        separator = ""
        start = end = 0
    if not separator or not 0 <= start < end:
        raise InputError(
            f"cannot read {text!r}",
            where="--window",
            cure=f"START:END with 0 <= START < END <= {makespan_cycles}",
        )
    return start, min(end, makespan_cycles)

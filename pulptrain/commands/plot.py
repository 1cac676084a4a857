# SPDX-License-Identifier: Apache-2.0
"""`pulptrain plot OUT_DIR`: draw the pictures of a finished run again, or a part of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from configs.errors import InputError
from configs.limits import JSON_BYTES_PER_BYTE, check_file_size
from configs.suggest import suggestion
from pulptrain.commands import options
from pulptrain.json_text import json_text
from pulptrain.outputs import PICTURE_FILES, PICTURES, check_format, draw_pictures, prepare_folder
from traces.csv_file import LARGEST
from traces.errors import TraceError
from traces.tables import read_table

_NEEDED = ("model", "soc", "cycles", "cluster_hz")
_NUMBERS = ("cycles", "cluster_hz", "trace_cycles")
_AGAIN = "run `pulptrain run MODEL --out DIR` again"


def command(
    folder: Annotated[
        str, typer.Argument(metavar="OUT_DIR", help="Folder written by `pulptrain run --out`.")
    ],
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="START:END", help="Draw only these cycles, e.g. 0:20000."),
    ] = None,
    what: Annotated[
        str,
        typer.Option(
            "--what", metavar="|".join(("all", *PICTURES)), help="Which picture to draw; all by default."
        ),
    ] = "all",
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="Write the pictures here (default: OUT_DIR).")
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw the Gantt charts, the breakdown of cycles and the memory map of the run in OUT_DIR."""
    if what not in ("all", *PICTURES):
        raise InputError(f"no picture {what!r}", where="--what", cure=suggestion(what, ("all", *PICTURES)))
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


def read_summary(folder: Path) -> dict[str, Any]:
    """`summary.json` of a run. Raises `InputError` if it is missing, not JSON or lacks what pictures need."""
    path = folder / "summary.json"
    check_file_size(path, JSON_BYTES_PER_BYTE)
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}",
            cure="a folder written by `pulptrain run MODEL --out DIR`",
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=str(path), cure=_AGAIN) from error
    if not isinstance(summary, dict):
        raise InputError("not an object", where=str(path), cure=_AGAIN)
    check_format(summary, path)
    missing = [key for key in _NEEDED if key not in summary]
    if missing:
        raise InputError(f"no {', '.join(missing)} in it", where=str(path), cure=_AGAIN)
    for key in _NUMBERS:
        value = summary.get(key, 1)
        if type(value) is not int or not 0 < value <= LARGEST:
            raise _wrong(key, f"a whole number from 1 to {LARGEST}", path)
    sizes = summary.get("capacity_bytes", {})
    if not isinstance(sizes, dict) or not all(
        type(size) is int and 0 <= size <= LARGEST for size in sizes.values()
    ):
        raise _wrong("capacity_bytes", "a whole number of bytes per memory", path)
    return {**summary, "model": str(summary["model"])[:200], "soc": str(summary["soc"])[:200]}


def _wrong(key: str, wanted: str, path: Path) -> InputError:
    return InputError(f"'{key}' is not {wanted}", where=str(path), cure=_AGAIN)


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

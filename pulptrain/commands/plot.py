"""`pulptrain plot OUT_DIR`: draw the pictures of a finished run again, or a part of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from configs.errors import InputError
from configs.suggest import suggestion
from pulptrain.commands import options
from pulptrain.outputs import PICTURE_FILES, PICTURES, check_format, draw_pictures, prepare_folder
from traces.tables import LARGEST_CYCLE, read_table

_NEEDED = ("model", "soc", "cycles", "cluster_hz")
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
    paths = [
        str(path)
        for path in draw_pictures(slices, summary, target, source=source, window=interval, what=what)
    ]
    if as_json:
        typer.echo(json.dumps({"pictures": paths}, indent=2))
    elif not quiet:
        typer.echo("\n".join(paths))


def read_summary(folder: Path) -> dict[str, Any]:
    """`summary.json` of a run. Raises `InputError` if it is missing, not JSON or lacks what pictures need."""
    path = folder / "summary.json"
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
    for key in ("cycles", "cluster_hz", "trace_cycles"):
        if key in summary and not _is_count(summary[key]):
            raise InputError(f"{key!r} is no number of cycles", where=str(path), cure=_AGAIN)
    capacity_bytes = summary.get("capacity_bytes", {})
    if not isinstance(capacity_bytes, dict) or not all(
        value == 0 or _is_count(value) for value in capacity_bytes.values()
    ):
        raise InputError("'capacity_bytes' are no sizes", where=str(path), cure=_AGAIN)
    return summary


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_CYCLE


def parse_window(text: str, makespan_cycles: int) -> tuple[int, int]:
    """``START:END`` in cycles; either may be left out. Raises `InputError` for anything else."""
    first, separator, last = text.partition(":")
    try:
        start, end = int(first or 0), int(last or makespan_cycles)
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

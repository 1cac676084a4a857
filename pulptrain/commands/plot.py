# SPDX-License-Identifier: Apache-2.0
"""`pulptrain plot RUN`: draw the pictures of a finished run, or a part of them; or a speed-up of several."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.errors import InputError
from pulptrain.commands import options as common
from pulptrain.process.progress import telling
from traces.files.json_text import json_text

if TYPE_CHECKING:
    from traces.pictures.drawing import Paper

SPEED_UP = "speed-up"
TOP = 10
"""Ops in the table of a speed-up."""


@common.draws
def command(
    folders: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Folder of a run, written by `pulptrain run MODEL --out DIR`."),
    ],
    window: Annotated[
        str | None,
        common.option(
            "--window",
            "OP|START:END",
            "Draw only one op, e.g. conv1.IG, or a range of cluster cycles, e.g. 0:20000.",
        ),
    ] = None,
    what: Annotated[
        str,
        common.option(
            "--what",
            "all|gantt|gantt-stalls|breakdown|memory|causes|roofline|bandwidth|bytes|energy|speed-up",
            "Picture to draw; docs/pictures.md shows each. gantt: work of cores and DMA over time; "
            "breakdown: cycles per layer; causes: lost cycles per op; bytes: live bytes over time; "
            "speed-up: runs with different --cores.",
        ),
    ] = "all",
    out: Annotated[
        str | None,
        common.option(
            "--out",
            "DIR|FILE",
            "Folder for the pictures, or a .png, .svg or .pdf file for one picture (default: the run "
            "folder).",
        ),
    ] = None,
    paper: common.Paper | None = None,
    as_json: common.Json = False,
    quiet: common.Quiet = False,
) -> None:
    """Draw pictures of a run: Gantt charts, breakdown, memory map, roofline and more."""
    table: list[str] = []
    with telling(f"drawing {' '.join(folders)}", show=not (quiet or as_json)):
        from configs.suggest import check_known
        from pulptrain.running.pictures import PICTURES

        choices = ("all", *PICTURES, SPEED_UP)
        check_known(what, choices, f"unknown picture {what!r}", "--what")
        if what == SPEED_UP:
            drawn, result, table = _speed_up(folders, out, window, paper)
        elif len(folders) > 1:
            strips = shlex.join(["pulptrain", "compare", *folders, "--out", "strips.png"])
            raise InputError(
                "the picture shows one run, but several are named",
                where="plot",
                cure=f"name one run, use --what {SPEED_UP}, or draw all on one axis: `{strips}`",
            )
        else:
            drawn, result = _pictures(folders[0], out, window, what, paper), {}
    paths = [str(path) for path in drawn]
    if as_json:
        typer.echo(json_text({"pictures": paths, **result}))
    elif not quiet:
        typer.echo("\n".join([*table, *([""] if table else []), *paths]))


def _pictures(folder: str, out: str | None, window: str | None, what: str, paper: Paper | None) -> list[Path]:
    """Draw pictures of one run and return their files."""
    from configs.files import together
    from pulptrain.running.pictures import RunPictures, file_names, window_of
    from pulptrain.running.stored_run import read_summary
    from traces.csv_file import AGAIN
    from traces.events import TraceError
    from traces.files.tables import read_table
    from traces.memory_table import read_blocks
    from traces.recorder import sorted_slices

    source = Path(folder)
    summary = read_summary(source)
    try:
        slices = sorted_slices(read_table(source))
        if not slices:
            raise InputError("the trace of the run is empty", where=folder, cure=AGAIN)
        run = RunPictures(slices, summary, lambda _: read_blocks(source), paper=paper)
        if window is not None:
            run = run.within(window_of(window, run.ops, run.cycles))
        names = run.drawable() if what == "all" else (what,)
        files = _targets(
            folder if out is None else out, names, [file_names(name, run.window) for name in names]
        )
        with together():
            for name, paths in files.items():
                run.draw(name, *paths)
    except TraceError as error:
        # Of a run it would be a defect; what was read from a file, somebody has changed.
        raise InputError(error.message, where=str(source), cure=AGAIN) from None
    return [path for paths in files.values() for path in paths]


def _speed_up(
    folders: list[str], out: str | None, window: str | None, paper: Paper | None
) -> tuple[list[Path], dict[str, Any], list[str]]:
    """Draw the speed-up of several runs; its files, what ``--json`` says of it, and its tables."""
    from pulptrain.commands.printing import table_width
    from pulptrain.running.pictures import file_names
    from pulptrain.running.stored_run import read_summary
    from traces.pictures.speed_up import draw_speed_up
    from traces.speed_up import speed_up_of

    if window is not None:
        raise InputError(
            "a speed-up compares whole runs, so --window does not apply",
            where="--window",
            cure="remove the option",
        )
    speed = speed_up_of([read_summary(Path(folder)) for folder in folders], folders)
    paths = _targets(folders[0] if out is None else out, (SPEED_UP,), [file_names(SPEED_UP)])[SPEED_UP]
    draw_speed_up(speed, *paths, paper=paper)
    return paths, speed.as_dict(), speed.lines(table_width(), TOP)


def _targets(out: str, names: Sequence[str], files: Sequence[Sequence[str]]) -> dict[str, list[Path]]:
    """The files of every picture: its own in a folder, or the one file that is asked for.

    Raises `InputError` before anything is drawn if one of them may not be written.
    """
    from configs.files import FILE_ENDINGS, check_file
    from traces.files.result_folder import prepare_folder
    from traces.pictures.drawing import ENDINGS, is_our_picture, picture_file

    if Path(out).suffix.lower() in FILE_ENDINGS and not Path(out).is_dir():
        picture_file(out, "--out")
    if Path(out).suffix.lower()[1:] not in ENDINGS or Path(out).is_dir():
        folder = prepare_folder(out, [file for of_picture in files for file in of_picture])
        return {
            name: [folder / file for file in of_picture]
            for name, of_picture in zip(names, files, strict=True)
        }
    if len(names) > 1:
        raise InputError(
            f"{len(names)} pictures cannot share the one file of --out",
            where="--out",
            cure="choose one picture by --what, or use a folder",
        )
    return {names[0]: [check_file(out, "--out", is_our_picture)]}

# SPDX-License-Identifier: Apache-2.0
"""`pulptrain example NAME`: examples, notebooks and measured data, written where you are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from configs.errors import InputError
from configs.files import check_folder, replacing, together
from pulptrain.commands import options as common
from pulptrain.show.shipped import FOLDERS, shipped_files
from traces.files.json_text import json_text


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Folder (examples, notebooks or measured) or file to copy; without NAME, all are listed.",
        ),
    ] = None,
    out: Annotated[
        str, common.option("--out", "DIR", "Folder to write the examples to.", common.OUTPUT)
    ] = ".",
    as_json: common.Json = False,
) -> None:
    """Copy examples, notebooks or measured data to the current folder; without a name, list them."""
    if name is None:
        shown = {folder: sorted(shipped_files(folder)) for folder in FOLDERS}
        lines = [f"{folder}: {about}" for folder, about in FOLDERS.items()]
        listed = [
            text
            for line, places in zip(lines, shown.values(), strict=True)
            for text in (line, *(f"  {place}" for place in places))
        ]
        typer.echo(json_text({"files": shown}) if as_json else "\n".join(listed))
        return
    files = shipped_files(name)
    targets = {place: Path(out) / place for place in files}
    for place, target in targets.items():
        if target.exists() and (not target.is_file() or target.read_bytes() != files[place].read_bytes()):
            raise InputError(
                f"{target} already exists with other content",
                where="example",
                cure="use another folder: --out DIR",
            )
    with together():
        for place, target in targets.items():
            check_folder(str(target.parent), "--out")
            if not target.exists():
                with replacing(target) as temporary:
                    temporary.write_bytes(files[place].read_bytes())
    written = [str(target) for target in targets.values()]
    typer.echo(json_text({"written_files": written}) if as_json else "\n".join(written))

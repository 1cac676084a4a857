# SPDX-License-Identifier: Apache-2.0
"""`pulptrain new FILE`: a file to begin with, every key explained."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from configs.errors import InputError
from configs.files import check_file, write_text
from configs.suggest import suggestion
from pulptrain.commands import options as common

KINDS = ("model", "soc", "explore")
"""Kinds of files there is a template for (``configs/templates``) and a JSON Schema (``configs/schemas``)."""


def command(
    file: Annotated[
        str, typer.Argument(metavar="FILE.yaml", help="The file to write; never one that is there.")
    ],
    kind: Annotated[
        str, common.option("--kind", "|".join(KINDS), "What it describes.", common.RUN)
    ] = "model",
    quiet: common.Quiet = False,
) -> None:
    """Write a commented template: a model, a SoC or an exploration, that runs as it is."""
    from configs.library import SUFFIXES  # reads YAML, which is slow to import

    if kind not in KINDS:
        raise InputError(f"there is no template {kind!r}", where="--kind", cure=suggestion(kind, KINDS))
    if not file.endswith(SUFFIXES):
        raise InputError(f"{file!r} would not be read as a file", where="new", cure=f"{file}.yaml")
    if Path(file).exists():
        raise InputError(f"{file!r} is there already", where="new", cure="another name")
    target = check_file(file, "new", lambda there: False)
    write_text(target, template(kind, target))
    if not quiet:
        typer.echo(f"wrote {file}; {_NEXT[kind].format(file=file)}")


_NEXT = {
    "model": "run it: pulptrain run {file}",
    "soc": "use it: pulptrain run tutorial-cnn --soc {file}",
    "explore": "run it: pulptrain explore {file}",
}


def template(kind: str, target: Path) -> str:
    """The text of a new file: named after it, and with the place of the schema for editors."""
    text = files("configs").joinpath("templates", f"{kind}.yaml").read_text(encoding="utf-8")
    name = re.sub(r"^[^A-Za-z0-9]+|[^A-Za-z0-9_.-]", "", target.stem) or "mine"
    return text.replace("$schema=SCHEMA", f"$schema={schema_path(kind)}").replace("NAME", name)


def schema_path(kind: str) -> str:
    """Where the JSON Schema of a kind of file is installed."""
    return str(files("configs").joinpath("schemas", f"{kind}.json"))

# SPDX-License-Identifier: Apache-2.0
"""`pulptrain show NAME`: what a model, SoC, kernel, primitive or stall word is, with its options."""

from __future__ import annotations

import shutil
import sys
from typing import Annotated

import typer

from pulptrain.commands import options as common
from pulptrain.commands.completion import completes
from pulptrain.json_text import json_text
from pulptrain.progress import telling

PIPED_WIDTH = 100
"""Columns of the text where standard output is no terminal."""


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="Model, SoC, kernel, primitive or stall word; or a model or SoC file.",
            autocompletion=completes("shown"),
        ),
    ],
    part: Annotated[
        str | None, typer.Argument(metavar="[PART]", help="Of a SoC: a group of its parameters, e.g. dma.")
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="model|soc|primitive|kernel|stall",
            help="Where a name stands for several.",
            rich_help_panel=common.RUN,
        ),
    ] = None,
    codegen: Annotated[
        str | None,
        typer.Option(
            "--codegen",
            metavar="NAME",
            help="Of a kernel: the compiler profile.",
            rich_help_panel=common.RUN,
            autocompletion=completes("codegens"),
        ),
    ] = None,
    as_file: Annotated[
        bool,
        typer.Option(
            "--file", help="Print the file itself, to be copied and changed.", rich_help_panel=common.OUTPUT
        ),
    ] = False,
    as_json: common.Json = False,
) -> None:
    """Show what a name means: its options with their defaults, its parameters, its layers."""
    with telling(f"reading {name}", show=not (as_json or as_file)):
        from pulptrain.description_text import description_lines, file_of
        from pulptrain.descriptions import describe

        found = describe(name, kind, codegen=codegen)
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_WIDTH
        if as_json:
            text = json_text({"found": found}) + "\n"
        elif as_file:
            text = file_of(found, name)
        else:
            text = "\n\n".join("\n".join(description_lines(item, part, width)) for item in found) + "\n"
    typer.echo(text, nl=False)

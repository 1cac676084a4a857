# SPDX-License-Identifier: Apache-2.0
"""`pulptrain show NAME`: what a model, SoC, kernel, primitive or stall word is, with its options."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulptrain.commands import options as common
from pulptrain.commands.completion import completes
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import NetworkOptions
from pulptrain.process.progress import telling
from traces.files.json_text import json_text


@takes(NetworkOptions, soc=False, only_given=True)
def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="Name of a model, SoC, kernel, primitive or stall (cause of lost cycles); or model.yaml, "
            "soc.yaml, model.onnx, net.py:Net.",
            autocompletion=completes("everything"),
        ),
    ],
    part: Annotated[
        str | None,
        typer.Argument(
            metavar="[PART]", help="Group of SoC parameters to show, with the source of each value, e.g. dma."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        common.option(
            "--kind", "model|soc|kernel|primitive|stall", "Kind of thing to show, if several have this name."
        ),
    ] = None,
    codegen: Annotated[
        str | None,
        common.option(
            "--codegen",
            "NAME",
            "Compiler whose kernel code to show, e.g. clang-xpulp; `pulptrain list kernels` lists all.",
        ),
    ] = None,
    as_file: Annotated[
        bool,
        common.option(
            "--file", "", "Print the YAML file of the model or SoC, so that you can copy and change it."
        ),
    ] = False,
    as_json: common.Json = False,
    **options: Any,
) -> None:
    """Explain a name: its options with defaults, parameters or layers."""
    with telling(f"looking up {name}", show=not (as_json or as_file)):
        from pulptrain.commands.printing import table_width
        from pulptrain.show.descriptions import describe
        from pulptrain.show.show_text import file_of, lines_of

        described = describe(name, kind, codegen=codegen, of_model=options)
    if as_json:
        typer.echo(json_text({"found": described}))
    elif as_file:
        typer.echo(file_of(described, name), nl=False)
    else:
        width = table_width()
        typer.echo("\n\n".join("\n".join(lines_of(item, part, width)) for item in described))

# SPDX-License-Identifier: Apache-2.0
"""`pulptrain list KIND`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from pulptrain.commands import options as common
from pulptrain.commands.completion import completes
from pulptrain.process.progress import telling
from traces.files.json_text import json_text


def command(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="socs|models|kernels|primitives",
            help="What to list; primitives are layer types, losses, optimizers and internal ops.",
            autocompletion=completes("lists"),
        ),
    ],
    timing: Annotated[
        str,
        common.option(
            "--timing",
            "rtl|gvsoc",
            "With `list socs`: parameter values of the hardware (rtl) or of the GVSoC simulator (gvsoc).",
            common.RUN,
        ),
    ] = "rtl",
    as_json: common.Json = False,
) -> None:
    """List the SoC presets, models, kernels of each codegen, or primitives.

    --timing applies to `list socs` only.
    """
    with telling(f"reading {kind}", show=not as_json):
        from pulptrain.commands.printing import table_width
        from pulptrain.show.listings import PIPED_WIDTH, listing_of, rows_lines

        listing = listing_of(kind, timing)
    if as_json:
        typer.echo(json_text({kind: list(listing.rows)}))
        return
    typer.echo("\n".join(rows_lines([listing.cells(row) for row in listing.rows], table_width(PIPED_WIDTH))))

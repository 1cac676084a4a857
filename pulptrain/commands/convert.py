# SPDX-License-Identifier: Apache-2.0
"""`pulptrain convert IN OUT`: a model as a model file of ours, weights beside it, or as an ONNX file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulptrain.commands import options as common
from pulptrain.commands.parameters import takes
from pulptrain.inputs.option import NetworkOptions
from pulptrain.process.progress import telling


@takes(NetworkOptions, soc=False)
def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="Network to convert: model.onnx, net.py:Net (a PyTorch module), model.yaml, or a name "
            "(`pulptrain list models`).",
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="OUT", help="Output file: NAME.yaml (weights go to NAME.npz) or NAME.onnx."),
    ],
    seed: common.Seed = 0,
    quiet: common.Quiet = False,
    **options: Any,
) -> None:
    """Convert a network to a model file or ONNX; cycles and numbers stay the same."""
    with telling(f"converting {source}", show=not quiet):
        from pulptrain.foreign.conversion import convert
        from pulptrain.inputs.settings import Settings

        written = convert(source, target, Settings(**options, seed=seed))
    if quiet:
        return
    for path in written.files:
        typer.echo(f"  {path}")
    typer.echo(f"run it with: pulptrain run {written.run}")
    for note in written.notes:
        typer.echo(f"  {note}")

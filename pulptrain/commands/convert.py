# SPDX-License-Identifier: Apache-2.0
"""`pulptrain convert IN OUT`: a model as a model file of ours, weights beside it, or as an ONNX file."""

from __future__ import annotations

from typing import Annotated

import typer

from pulptrain.commands import options
from pulptrain.process.progress import telling


def command(
    source: Annotated[
        str, typer.Argument(metavar="IN", help="A network: model.onnx, net.py:Net, a model file or name.")
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="OUT", help="NAME.yaml, a model file, its weights in NAME.npz; or NAME.onnx."),
    ],
    values: Annotated[
        str | None,
        options.option("--values", "FILE.npz", "Weights of a model file, by tensor, in place of drawn ones."),
    ] = None,
    model_input: options.ModelInput = None,
    loss: options.ModelLoss = None,
    optimizer: options.ModelOptimizer = None,
    batch: Annotated[int | None, options.option("--batch", "N", "Samples of a mini-batch.")] = None,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Convert a network: what runs the result gives the same cycles and numbers."""
    with telling(f"converting {source}", show=not quiet):
        from pulptrain.foreign.conversion import convert
        from pulptrain.foreign.foreign_model import ModelOptions
        from pulptrain.given.settings import Settings

        settings = Settings(batch=batch, seed=seed)
        written = convert(source, target, settings, ModelOptions(model_input, loss, optimizer), values)
    if quiet:
        return
    for path in written.files:
        typer.echo(f"  {path}")
    typer.echo(f"run it with: pulptrain run {written.run}")
    for note in written.notes:
        typer.echo(f"  {note}")

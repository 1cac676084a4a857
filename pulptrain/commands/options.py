# SPDX-License-Identifier: Apache-2.0
"""Parameters that several commands share and that are about the command, not about what is simulated.

What is simulated is declared in `pulptrain.given.option`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pulptrain.commands.completion import completes
from pulptrain.given.option import SEARCH
from pulptrain.running.result_cache import CACHE_VARIABLE, NO_CACHE_VARIABLE

OUTPUT, RUN = "Output", "Run"
"""Groups of options in help texts, beside those of `pulptrain.given.option`."""

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model name (see `pulptrain list models`) or file.",
        autocompletion=completes("models"),
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", metavar="N", help="Seed of weights, data and sample order.", rich_help_panel=RUN),
]
Values = Annotated[
    str | None,
    typer.Option(
        "--values",
        metavar="FILE.npz",
        help="Weights, states, input or label by tensor name, in place of drawn ones; an input or label is "
        "that of every iteration. Takes what --save-values writes.",
        rich_help_panel=RUN,
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Write summary, trace, Perfetto file, memory map and pictures.",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object for machines.", rich_help_panel=OUTPUT)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no tables.", rich_help_panel=OUTPUT)]
Top = Annotated[
    int, typer.Option("--top", metavar="N", help="Rows of a table that are shown.", rich_help_panel=OUTPUT)
]
By = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="layer|step|kernel",
        help="Add the ops up by this; by step and by layer if not given.",
        rich_help_panel=OUTPUT,
    ),
]
Full = Annotated[
    bool, typer.Option("--full", help="Every row in order, and every note.", rich_help_panel=OUTPUT)
]
WorkerCount = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Processes; as many as the machine has CPUs if not given.",
        rich_help_panel=SEARCH,
    ),
]
ExecutorAddress = Annotated[
    str | None,
    typer.Option(
        "--executor",
        metavar="dask://HOST:PORT",
        help="Use the workers of a Dask cluster.",
        rich_help_panel=SEARCH,
    ),
]
CacheFile = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="FILE",
        envvar=CACHE_VARIABLE,
        help="Where results are kept; the user's cache folder if not given.",
        rich_help_panel=RUN,
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        envvar=NO_CACHE_VARIABLE,
        help="Compute everything anew, keep nothing.",
        rich_help_panel=RUN,
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        metavar="RATE",
        min=0.0,
        help="Of a training graph that says none; 0.001 if this says none either.",
    ),
]
ModelInput = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="[int:]N,...",
        help="Shape of the input of net.py:Net or model.onnx, the batch first, e.g. 1,3,32,32; int:1,16 for "
        "words.",
    ),
]
ModelLoss = Annotated[
    str | None,
    typer.Option(
        "--loss",
        metavar="'NAME [KEY=VALUE ...]'",
        help="Loss of net.py:Net or model.onnx; default cross_entropy for outputs [batch, classes], else "
        "mse.",
    ),
]
ModelOptimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="'NAME KEY=VALUE ...'",
        help="Optimizer of net.py:Net or model.onnx, e.g. 'adam lr=0.001'; default 'sgd lr=0.01'.",
    ),
]

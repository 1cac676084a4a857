# SPDX-License-Identifier: Apache-2.0
"""Parameters that several commands share and that are about the command, not about what is simulated.

What is simulated is declared in `pulptrain.given.option`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulptrain.commands.completion import completes
from pulptrain.given.option import SEARCH
from pulptrain.running.result_cache import CACHE_VARIABLE, NO_CACHE_VARIABLE

OUTPUT, RUN = "Output", "Run"
"""Groups of options in help texts, beside those of `pulptrain.given.option`."""


def option(flag: str, metavar: str, text: str, group: str | None = None, **more: Any) -> Any:
    """An option: its flag (or several), what it takes, what it does, and its group in help texts."""
    return typer.Option(*flag.split(), metavar=metavar or None, help=text, rich_help_panel=group, **more)


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A name (`pulptrain list models`), model.yaml, model.onnx, or net.py:Net.",
        autocompletion=completes("models"),
    ),
]
Seed = Annotated[int, option("--seed", "N", "Seed of weights, data and sample order.", RUN)]
Accumulation = Annotated[
    str,
    option("--accumulation", "reference|kernel", "Sums in fp32, or rounded as the kernel does.", RUN),
]
Out = Annotated[
    str | None,
    option("--out", "DIR", "Write summary, trace, Perfetto file, memory map and pictures.", OUTPUT),
]
Json = Annotated[bool, option("--json", "", "Print one JSON object for machines.", OUTPUT)]
Quiet = Annotated[bool, option("--quiet -q", "", "No progress, no tables.", OUTPUT)]
Top = Annotated[int, option("--top", "N", "Rows of a table that are shown.", OUTPUT)]
By = Annotated[
    str | None,
    option("--by", "layer|step|kernel", "Add the ops up by this; by step and by layer if not given.", OUTPUT),
]
Full = Annotated[bool, option("--full", "", "Every row in order, and every note.", OUTPUT)]
Why = Annotated[
    bool, option("--why", "", "What the ops with most cycles are bound by, in place of totals.", OUTPUT)
]
Evidence = Annotated[
    bool, option("--evidence", "", "Which shares of the cycles rest on measurements, too.", OUTPUT)
]
WorkerCount = Annotated[
    int | None, option("--workers", "N", "Processes; as many as the machine has CPUs if not given.", SEARCH)
]
ExecutorAddress = Annotated[
    str | None, option("--executor", "dask://HOST:PORT", "Use the workers of a Dask cluster.", SEARCH)
]
CacheFile = Annotated[
    str | None,
    option(
        "--cache",
        "FILE",
        "Where results are kept; the user's cache folder if not given.",
        RUN,
        envvar=CACHE_VARIABLE,
    ),
]
NoCache = Annotated[
    bool, option("--no-cache", "", "Compute everything anew, keep nothing.", RUN, envvar=NO_CACHE_VARIABLE)
]
LearningRate = Annotated[
    float | None,
    option(
        "--learning-rate",
        "RATE",
        "Of a training graph that says none; 0.001 if this says none either.",
        min=0.0,
    ),
]

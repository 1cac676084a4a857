# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that simulate many things, or the same again: workers and the cache of results."""

from __future__ import annotations

from typing import Annotated

import typer

from pulptrain.result_cache import CACHE_VARIABLE, NO_CACHE_VARIABLE

WorkerCount = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", help="Processes; as many as the machine has CPUs if not given."),
]
ExecutorAddress = Annotated[
    str | None,
    typer.Option("--executor", metavar="dask://HOST:PORT", help="Use the workers of a Dask cluster."),
]
CacheFile = Annotated[
    str | None,
    typer.Option(
        "--cache",
        metavar="FILE",
        envvar=CACHE_VARIABLE,
        help="Where results are kept; the user's cache folder if not given.",
    ),
]
NoCache = Annotated[
    bool, typer.Option("--no-cache", envvar=NO_CACHE_VARIABLE, help="Compute everything anew, keep nothing.")
]

# SPDX-License-Identifier: Apache-2.0
"""Options of the commands that simulate many things, or the same again: workers and the cache of results."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from configs.errors import InputError
from scheduler.tuner.cache import ResultCache, default_cache_file, warn_on_stderr

WorkerCount = Annotated[
    int | None,
    typer.Option("--workers", metavar="N", help="Processes; as many as the machine has CPUs if not given."),
]
ExecutorAddress = Annotated[
    str | None,
    typer.Option("--executor", metavar="dask://HOST:PORT", help="Use the workers of a Dask cluster."),
]
CACHE_VARIABLE = "PULPTRAIN_CACHE"
NO_CACHE_VARIABLE = "PULPTRAIN_NO_CACHE"

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


@contextmanager
def open_cache(file: str | None, no_cache: bool) -> Iterator[ResultCache | None]:
    """The cache the options ask for, closed at the end of the ``with``.

    A file the user names must be usable. The one in the user's cache folder need not be (it may be read-only
    there): then there is a warning and no cache. What the variables say gives way to the options.
    """
    named = file is not None and file != os.environ.get(CACHE_VARIABLE)
    if no_cache and named and not os.environ.get(NO_CACHE_VARIABLE):
        raise InputError("--cache and --no-cache exclude each other", where="--no-cache")
    cache = None if no_cache and not named else _opened(file)
    try:
        yield cache
    finally:
        if cache is not None:
            cache.close()


def _opened(file: str | None) -> ResultCache | None:
    if file is not None:
        return ResultCache(Path(file))
    try:
        return ResultCache(default_cache_file(), own_place=True)
    except InputError as error:
        warn_on_stderr(f"{error.message}; results are not kept")
        return None

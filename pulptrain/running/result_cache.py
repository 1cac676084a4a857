# SPDX-License-Identifier: Apache-2.0
"""The file results are kept in from call to call: which one, and when there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from configs.errors import InputError

if TYPE_CHECKING:
    from scheduler.search.cache import ResultCache

CACHE_VARIABLE = "PULPTRAIN_CACHE"
NO_CACHE_VARIABLE = "PULPTRAIN_NO_CACHE"


@contextmanager
def open_cache(file: str | None, no_cache: bool) -> Iterator[ResultCache | None]:
    """The cache the options ask for, closed at the end of the ``with``.

    A file the user names must be usable. The one in the user's cache folder need not be (it may be read-only
    there): then there is a warning and no cache. What the variables say gives way to the options.
    """
    named = file is not None and file != os.environ.get(CACHE_VARIABLE)
    if no_cache and named and not os.environ.get(NO_CACHE_VARIABLE):
        what = "the option cannot be used together with --cache"
        raise InputError(what, where="--no-cache", cure="remove one of the two")
    cache = None if no_cache and not named else _opened(file)
    try:
        yield cache
    finally:
        if cache is not None:
            cache.close()


@contextmanager
def cache_of(wanted: bool | str | os.PathLike[str]) -> Iterator[ResultCache | None]:
    """The cache a call of Python asks for: True, that of the environment or the user; False, none; a file."""
    if isinstance(wanted, bool):
        no_cache = not wanted or bool(os.environ.get(NO_CACHE_VARIABLE))
        with open_cache(None if no_cache else os.environ.get(CACHE_VARIABLE), no_cache) as cache:
            yield cache
    else:
        with open_cache(os.fspath(wanted), False) as cache:
            yield cache


def _opened(file: str | None) -> ResultCache | None:
    from scheduler.search.cache import ResultCache, default_cache_file, warn_on_stderr

    if file is not None:
        return ResultCache(Path(file))
    try:
        return ResultCache(default_cache_file(), own_place=True)
    except InputError as error:
        warn_on_stderr(f"{error.message}; results are not cached")
        return None

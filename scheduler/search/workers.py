# SPDX-License-Identifier: Apache-2.0
"""Where evaluations run: in this process, in processes of this machine, or on a Dask cluster.

All three are a `concurrent.futures.Executor`. Callers put results in order themselves, so that they do not
depend on who computed what, or when.
"""

from __future__ import annotations

import ast
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Generic, TypeVar

from configs import collector
from configs.errors import InputError, install_cure
from configs.values import Struct
from scheduler.search.fingerprint import model_version

_Key = TypeVar("_Key")
_Made = TypeVar("_Made")

DASK_TIMEOUT_SECONDS = 10
"""How long to wait for a Dask scheduler to answer, and for its first worker."""


class Workers(Struct, frozen=True):
    """An executor, and how many evaluations it runs at a time.

    Where it answers at once (`near`) nothing has to wait at a worker, so that one gets what is like the last.
    """

    executor: Executor
    count: int
    near: bool = False


class InlineExecutor(Executor):
    """Runs every call at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done already. A `KeyboardInterrupt` passes through."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class LazyProcesses(Executor):
    """A pool of processes that are spawned with the first call: a run that finds all in the cache needs none.

    They ignore Ctrl-C, which is the caller's business, and end when the caller dies, however it dies.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run `fn`, which must be importable, with arguments that can be pickled."""
        if self._pool is None:
            self._pool = _processes(self._count, "spawn")
        with without_interrupts():
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes, if there are any, after the calls under way."""
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)


ONE_WORKER = (
    "one worker: more workers would run this script again from its first line. Put its code under `if "
    "__name__ == '__main__':` to use all workers (docs/python-api.md), or pass workers=1"
)
"""Warning of a script without a guard where processes cannot be copies of this one."""


def script_would_run_again() -> bool:
    """Whether a spawned process, which imports the script that runs, would come to where it is now.

    It would unless that is under a condition on ``__name__``, or the script is the main module of a package.
    An interactive session is no script; one without a source that can be read has no guard that can be seen.
    """
    main = sys.modules["__main__"]
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if file is None or (spec is not None and spec.name.endswith(".__main__")):
        return False
    try:
        statements = ast.parse(Path(file).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return True
    guards = [
        range(part.lineno, (part.end_lineno or part.lineno) + 1)
        for part in statements
        if isinstance(part, ast.If) and "__name__" in ast.dump(part.test)
    ]
    for frame, line in traceback.walk_stack(None):
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            return not any(line in lines for lines in guards)
    return not guards  # in a thread


def _level_of_script() -> int:
    """Which `stacklevel` of our caller is the nearest line of the script that runs."""
    names = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_stack(sys._getframe(1))]
    return names.index("__main__") + 1 if "__main__" in names else len(names)


@contextmanager
def open_workers(count: int | None = None, executor: str | None = None) -> Iterator[Workers]:
    """Workers for the length of a ``with``; calls not begun at its end are dropped.

    `count` processes of this machine, as many as it has CPUs if not given; none but this one for 1, and where
    they would run the user's script again, with a warning. Or, with `executor` ``dask://HOST:PORT``, the
    workers of that cluster. Raises `InputError` for a count below
    1, an executor that cannot be understood, a scheduler that cannot be reached, and cluster workers with
    another version of the simulator.
    """
    if executor is not None:
        with _dask(executor) as workers:
            yield workers
        return
    count = os.cpu_count() or 1 if count is None else count
    if count < 1:
        raise InputError(
            f"the number of workers is {count}, but must be 1 or more",
            where="--workers",
            cure="use --workers 1 or more",
        )
    forks = count > 1 and _may_fork()
    if count > 1 and not forks and script_would_run_again():
        warnings.warn(ONE_WORKER, stacklevel=_level_of_script())
        count = 1
    several = _processes(count, "fork") if forks else LazyProcesses(count)
    pool = several if count > 1 else InlineExecutor()
    try:
        if forks:
            # Now, while no other thread runs: a copy of this process has imported everything already, which
            # takes a spawned one a second, and it costs milliseconds if all is in the cache.
            with without_interrupts():
                pool.submit(_nothing)
        yield Workers(pool, count, near=count > 1)
    finally:
        pool.shutdown(cancel_futures=True)


def _processes(count: int, method: str) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, multiprocessing.get_context(method), initializer=begin_worker)


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Ctrl-C waits for the end of the ``with``; processes and threads begun in it never see one.

    A worker that were interrupted before it could ignore Ctrl-C would print a traceback, and nobody would end
    the thread of a pool that were interrupted while it starts. SIGALRM brings a Ctrl-C that had to wait
    (`pulptrain.process.interrupts`).
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _may_fork() -> bool:
    """Whether a copy of this process can be trusted: no lock is held by a thread that it does not have."""
    return sys.platform == "linux" and threading.active_count() == 1


def _nothing() -> None:
    """The call that starts a pool."""


def begin_worker() -> None:
    """What every worker process does first: it ignores Ctrl-C and ends with its parent, however that ends."""
    collector.rarely()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


class PerThread(threading.local, Generic[_Key, _Made]):
    """What `make` makes of the last `kept` arguments, for each thread by itself: no two use one at a time."""

    def __init__(self, make: Callable[[_Key], _Made], kept: int) -> None:
        self.of: Callable[[_Key], _Made] = lru_cache(kept)(make)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _dask(address: str) -> Iterator[Workers]:
    match = re.fullmatch(r"dask://([^\s/:]+|\[[0-9a-fA-F:]+\]):(\d{1,5})", address)
    if match is None:
        raise InputError(f"unknown executor {address!r}", where="--executor", cure="use dask://HOST:PORT")
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "the Python package Dask is not installed",
            where="--executor",
            cure=install_cure("cluster"),
        ) from None
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client: Any = Client(  # type: ignore[no-untyped-call]
            f"tcp://{match[1]}:{match[2]}", timeout=DASK_TIMEOUT_SECONDS, set_as_default=False
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"no Dask scheduler answers at {match[1]}:{match[2]}: {error or type(error).__name__}",
            where="--executor",
            cure="start a scheduler (`dask scheduler`), or remove --executor",
        ) from None
    with client:
        yield Workers(client.get_executor(), _dask_workers(client, address))


def _dask_workers(client: Any, address: str) -> int:
    """Threads of all workers; `InputError` if there are none or some run other code than ours."""
    try:
        client.wait_for_workers(1, timeout=DASK_TIMEOUT_SECONDS)
        versions = client.run(model_version)
    except TimeoutError:
        raise InputError(
            f"the Dask scheduler at {address} has no workers",
            where="--executor",
            cure="start workers (`dask worker`)",
        ) from None
    except ImportError as error:
        raise InputError(
            f"a Dask worker cannot import pulptrain: {error}",
            where="--executor",
            cure="install pulptrain on the machine of the worker",
        ) from None
    foreign = sorted(worker for worker, version in versions.items() if version != model_version())
    if foreign:
        raise InputError(
            f"{len(foreign)} Dask workers have another version of pulptrain, e.g. {foreign[0]}",
            where="--executor",
            cure="install the same version everywhere",
        )
    threads: int = sum(client.nthreads().values())
    return max(1, threads)

# SPDX-License-Identifier: Apache-2.0
"""Runs many searches at once over the same workers, each of them in steps that depend on itself only."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from typing import Any

from configs.errors import PulptrainError
from configs.values import Struct
from scheduler.search.workers import Workers

QUEUED_PER_WORKER = 3
"""Calls submitted per worker that is far: one under way and some waiting, so that none is idle."""


class Job(Struct, frozen=True):
    """One call for a worker. `arrived` gets its result at once, before the search sees it."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    arrived: Callable[[Any], None] = lambda result: None


Search = Generator[Sequence[Job], Sequence[Any], None]
"""Yields jobs and is sent their results, in the order of the jobs.

Nothing else may reach it, so what it does next does not depend on workers, times or other searches.
"""


def drive(searches: Sequence[Search], workers: Workers) -> None:
    """Run all searches to their end. An exception of a job, and Ctrl-C, end all of them and pass through.

    The workers serve the first searches that have something to do, so that early ends leave whole results;
    near ones one search each, as the candidates of an op share most of their prices.
    Raises `PulptrainError` if a worker process dies.
    """
    waiting: list[deque[tuple[_Round, int]]] = [deque() for _ in searches]
    running: dict[Future[Any], tuple[_Round, int]] = {}
    busy: Counter[int] = Counter()
    limit = workers.count * (1 if workers.near else QUEUED_PER_WORKER)

    def enqueue(step: _Round | None) -> None:
        if step is not None:
            waiting[step.rank].extend((step, number) for number in range(len(step.jobs)))

    def submit(last: int | None = None) -> Future[Any] | None:
        """Begin the next job, of the search `last` if it has one."""
        ranks = [rank for rank, jobs in enumerate(waiting) if jobs]
        if not ranks or len(running) >= limit:
            return None
        rank = last if last in ranks else min(ranks, key=lambda each: (workers.near and busy[each] > 0, each))
        step, number = waiting[rank].popleft()
        future = workers.executor.submit(step.jobs[number].function, *step.jobs[number].arguments)
        running[future] = (step, number)
        busy[rank] += 1
        return future

    for rank, search in enumerate(searches):
        enqueue(_Round.advance(rank, search, None))
    try:
        while any(waiting) or running:
            while (future := submit()) is not None:
                if future.done():
                    break  # it was computed here and now: what follows from it may come first
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                step, number = running.pop(future)
                busy[step.rank] -= 1
                result = future.result()
                if workers.near:
                    submit(step.rank)  # the worker that is free now has just priced the like
                enqueue(step.take(number, result))
    except BrokenExecutor:
        raise PulptrainError(
            "a worker process died, perhaps because memory ran out",
            cure="use fewer --workers; the cache holds the results so far",
        ) from None
    finally:
        for future in running:
            future.cancel()


class _Round:
    """The jobs a search waits for, and their results so far; searches of lower rank go first."""

    def __init__(self, rank: int, search: Search, jobs: Sequence[Job]) -> None:
        self.rank = rank
        self.search = search
        self.jobs = jobs
        self.results: dict[int, Any] = {}

    @staticmethod
    def advance(rank: int, search: Search, results: Sequence[Any] | None) -> _Round | None:
        """Send results to a search until it asks for something; None when it ends."""
        try:
            jobs = next(search) if results is None else search.send(results)
            while not jobs:
                jobs = search.send([])
        except StopIteration:
            return None
        return _Round(rank, search, jobs)

    def take(self, number: int, result: Any) -> _Round | None:
        """Note one result; with the last of them, what the search asks for next."""
        self.jobs[number].arrived(result)
        self.results[number] = result
        if len(self.results) < len(self.jobs):
            return None
        return self.advance(self.rank, self.search, [self.results[each] for each in range(len(self.jobs))])

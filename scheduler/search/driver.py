# SPDX-License-Identifier: Apache-2.0
"""Runs many searches at once over the same workers, each of them in steps that depend on itself only."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any

from configs.errors import PulptrainError
from scheduler.search.workers import Workers

QUEUED_PER_WORKER = 3
"""Calls submitted per worker: one under way and some waiting, so that none is idle between two."""


@dataclass(frozen=True, slots=True)
class Job:
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

    The workers serve the first search that has something to do, so that early ends leave whole results.
    Raises `PulptrainError` if a worker process dies.
    """
    ready: list[tuple[int, int, _Round, int]] = []
    running: dict[Future[Any], tuple[_Round, int]] = {}
    sequence = count()

    def enqueue(step: _Round | None) -> None:
        if step is not None:
            for number in range(len(step.jobs)):
                heappush(ready, (step.rank, next(sequence), step, number))

    for rank, search in enumerate(searches):
        enqueue(_Round.advance(rank, search, None))
    try:
        while ready or running:
            while ready and len(running) < QUEUED_PER_WORKER * workers.count:
                _, _, step, number = heappop(ready)
                job = step.jobs[number]
                future = workers.executor.submit(job.function, *job.arguments)
                running[future] = (step, number)
                if future.done():
                    break  # it was computed here and now: what follows from it may come first
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                step, number = running.pop(future)
                enqueue(step.take(number, future.result()))
    except BrokenExecutor:
        raise PulptrainError(
            "a worker process died (out of memory?)", cure="fewer --workers; what was done is in the cache"
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

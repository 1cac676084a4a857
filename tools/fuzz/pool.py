"""Processes that run inputs, with a limit of time, and new ones for those that die of it."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tools.fuzz.subjects import Subject
from tools.fuzz.worker import Outcome, serve

CPU_SECONDS = 20.0
"""Processor time an input may take: unlike time on the clock it does not depend on what else runs here."""

CLOCK_SECONDS = 240.0
"""An input that waits for something that does not come is ended after this."""

INPUTS_PER_PROCESS = 400
"""A process is replaced after so many inputs, so that what one leaves behind does not add up."""


class Worker:
    """One process, and the input it is at."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.connection: Connection
        self.item: tuple[int, Subject] | None = None
        self.started = self.started_cpu = 0.0
        self._begin()

    def _begin(self) -> None:
        # Forked: a copy of this process has imported everything already.
        context = multiprocessing.get_context("fork")
        self.connection, theirs = context.Pipe()
        log = self._folder.with_suffix(".log")
        self._process = context.Process(target=serve, args=(theirs, self._folder, log), daemon=True)
        self._process.start()
        theirs.close()
        self._served = 0

    def give(self, number: int, item: Subject) -> None:
        """Hand an input over."""
        if self._served >= INPUTS_PER_PROCESS:
            self.end()
            self._begin()
        self.item = number, item
        self._served += 1
        self.started, self.started_cpu = time.monotonic(), self._cpu()
        self.connection.send(item)

    def outcome(self) -> Outcome | None:
        """What became of the input, if that is known; a process that takes too long is ended."""
        if self.connection.poll():
            try:
                return self.connection.recv()
            except (EOFError, OSError):
                return self._replaced("process died")
        if not self._process.is_alive():
            return self._replaced(f"process died, exit code {self._process.exitcode}")
        if self._cpu() - self.started_cpu > CPU_SECONDS:
            return self._replaced(f"more than {CPU_SECONDS:.0f} s")
        if time.monotonic() - self.started > CLOCK_SECONDS:
            return self._replaced("waits for ever")
        return None

    def _cpu(self) -> float:
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def _replaced(self, why: str) -> Outcome:
        self.end()
        self._begin()
        return Outcome(-1, why)

    def end(self) -> None:
        """End the process, whatever it is at."""
        self._process.kill()
        self._process.join()
        self.connection.close()


class Pool:
    """Several workers, each with a folder of its own below `folder`."""

    def __init__(self, count: int, folder: Path) -> None:
        self.workers = [Worker(folder / f"worker{number}") for number in range(count)]

    def outcomes(self, items: Iterable[tuple[int, Subject]]) -> Iterator[tuple[int, Subject, Outcome]]:
        """What became of every input, as they end."""
        waiting = iter(items)
        idle = list(self.workers)
        while True:
            for worker in list(idle):
                item = next(waiting, None)
                if item is None:
                    break
                idle.remove(worker)
                worker.give(*item)
            busy = [worker for worker in self.workers if worker not in idle]
            if not busy:
                return
            wait([worker.connection for worker in busy], timeout=1.0)
            for worker in busy:
                outcome = worker.outcome()
                if outcome is not None:
                    assert worker.item is not None
                    idle.append(worker)
                    yield (*worker.item, outcome)

    def outcome(self, item: Subject) -> Outcome:
        """What becomes of one input."""
        return next(outcome for _, _, outcome in self.outcomes([(0, item)]))

    def end(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.end()


def minimised(item: Subject, fails: Callable[[Subject], bool], most: int = 120) -> Subject:
    """The input with as many lines of its files and words of its command left out as still fail alike."""
    tries = [most]

    def still(candidate: Subject) -> bool:
        tries[0] -= 1
        return tries[0] >= 0 and fails(candidate)

    for name in item.files:
        lines = _fewest(
            item.files[name].split(b"\n"),
            lambda kept, name=name, item=item: still(_with_file(item, name, b"\n".join(kept))),
        )
        item = _with_file(item, name, b"\n".join(lines))
    words = (
        _fewest(
            list(item.arguments[1:]),
            lambda kept, item=item: still(Subject(item.kind, (item.arguments[0], *kept), item.files)),
        )
        if item.arguments
        else []
    )
    return Subject(item.kind, (*item.arguments[:1], *words), item.files)


def _with_file(item: Subject, name: str, data: bytes) -> Subject:
    return Subject(item.kind, item.arguments, {**item.files, name: data})


def _fewest(parts: list[Any], fails: Callable[[list[Any]], bool]) -> list[Any]:
    """Parts left out in halves, quarters ... as long as what is left fails (delta debugging)."""
    size = max(1, len(parts) // 2)
    while parts:
        place = 0
        while place < len(parts):
            fewer = parts[:place] + parts[place + size :]
            if fails(fewer):
                parts = fewer
            else:
                place += size
        if size == 1:
            break
        size //= 2
    return parts

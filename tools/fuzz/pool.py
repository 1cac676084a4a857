# SPDX-License-Identifier: Apache-2.0
"""Processes that run inputs, with a limit of time, and new ones for those that die of it."""

from __future__ import annotations

import io
import multiprocessing
import os
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeVar

from configs.values import replace
from tools.fuzz.subject import Subject
from tools.fuzz.worker import Outcome, serve

CPU_SECONDS = 20.0
"""Processor time an input may take, with that of its processes that have ended.

Unlike time on the clock it does not depend on what else runs here.
"""

CLOCK_SECONDS = 300.0
"""Time on the clock after which an input waits for something that does not come, and is ended.

So much more than `CPU_SECONDS` that an input that works gets its 20 s of processor time on a busy computer.
"""

_T = TypeVar("_T")

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
                outcome: Outcome = self.connection.recv()
                return outcome
            except (EOFError, OSError):
                return self._replaced("process died")
        if not self._process.is_alive():
            return self._replaced(f"process died, exit code {self._process.exitcode}")
        if self._cpu() - self.started_cpu > CPU_SECONDS:
            return self._replaced(f"more than {CPU_SECONDS:.0f} s", self._cpu() - self.started_cpu)
        if time.monotonic() - self.started > CLOCK_SECONDS:
            return self._replaced("waits for ever")
        return None

    def _cpu(self) -> float:
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
            return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # of children that ended as well
        return 0.0

    def _replaced(self, why: str, cpu_seconds: float = 0.0) -> Outcome:
        self.end()
        self._begin()
        return Outcome(-1, why, cpu_seconds=cpu_seconds)

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
    """The input with as much of its files and words of its command left out as still fails alike.

    Of an archive members are left out, of any other file lines.
    """
    tries = [most]

    def still(candidate: Subject) -> bool:
        tries[0] -= 1
        return tries[0] >= 0 and fails(candidate)

    for name in item.files:
        item = _smaller_file(item, name, still)
    words = list(item.arguments[1:])
    kept = _fewest(words, lambda fewer: still(replace(item, arguments=(*item.arguments[:1], *fewer))))
    return replace(item, arguments=(*item.arguments[:1], *kept))


def _smaller_file(item: Subject, name: str, still: Callable[[Subject], bool]) -> Subject:
    def with_data(data: bytes) -> Subject:
        return replace(item, files={**item.files, name: data})

    members = _members(item.files[name])
    if members:
        kept = _fewest(members, lambda fewer: still(with_data(_archive(fewer))))
        return with_data(_archive(kept)) if len(kept) < len(members) else item
    lines = _fewest(item.files[name].split(b"\n"), lambda fewer: still(with_data(b"\n".join(fewer))))
    return with_data(b"\n".join(lines))


def _members(data: bytes) -> list[tuple[str, bytes]]:
    """Names and contents of an archive that is sound; none of anything else."""
    with suppress(Exception), zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(member.filename, archive.read(member)) for member in archive.infolist()]
    return []


def _archive(members: Sequence[tuple[str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return buffer.getvalue()


def _fewest(parts: list[_T], fails: Callable[[list[_T]], bool]) -> list[_T]:
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

# SPDX-License-Identifier: Apache-2.0
"""The event unit: barriers, mutexes, and the dispatch FIFO that forks a team."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import simpy

from arch.spec.program import Command
from arch.spec.timing import EventUnitTiming
from arch.systemc.module import Body, Call, Module, Notification, Thread
from configs.errors import PulptrainError
from traces.events import Work


class Barrier:
    """A barrier of `size` cores: all resume `wake_cycles` after the last arrival."""

    def __init__(self, env: simpy.Environment, size: int, wake_cycles: int) -> None:
        self.released = Notification(env)
        self._missing = size
        self._wake_cycles = wake_cycles

    def arrive(self) -> Notification:
        """A core arrives now; returns the event of its release."""
        self._missing -= 1
        if self._missing == 0:
            self.released.notify(self._wake_cycles)
        return self.released


@dataclass(slots=True)
class TeamJob:
    """What the master pushes into the dispatch FIFO: the DMA `commands` each core of a team programs, and the
    barrier that joins it."""

    work: Work
    pushed_cycles: int
    barrier: Barrier
    commands: tuple[tuple[Command, ...], ...] = ()


class Mutex:
    """A hardware mutex: of the cores that wait, the one with the lowest number gets it next."""

    def __init__(self, env: simpy.Environment, timing: EventUnitTiming) -> None:
        self._env = env
        self._timing = timing
        self._owner: int | None = None
        self._waiting: dict[int, Notification] = {}

    def lock(self, core: int, thread: Thread) -> Body:
        """One event load: returns when `core` holds the mutex, after sleeping while another does."""
        if self._owner is None:
            self._owner = core
            yield self._env.timeout(self._timing.event_load_cycles)
            return
        thread.waits_for = f"the mutex, which core {self._owner} holds"
        self._waiting[core] = Notification(self._env)
        yield self._waiting[core]

    def unlock(self, core: int) -> Body:
        """One store. Raises `PulptrainError` when `core` does not hold the mutex."""
        if self._owner != core:
            raise PulptrainError(f"core {core} frees a mutex that it does not hold")
        yield self._env.timeout(self._timing.event_store_cycles)
        self._owner = min(self._waiting, default=None)
        if self._owner is not None:
            self._waiting.pop(self._owner).notify(self._timing.event_wake_cycles)


class EventUnit(Module):
    """Barriers, the mutex that the SDK uses, and the dispatch FIFO.

    A FIFO entry is a job for a set of cores; it leaves when the last of them has taken it.
    """

    def __init__(self, parent: Module, name: str, timing: EventUnitTiming) -> None:
        super().__init__(parent, name)
        self.timing = timing

    def reset(self) -> None:
        """Empty FIFO, mutex free, nobody waiting."""
        self._entries: deque[tuple[TeamJob, set[int]]] = deque()
        self._pushed: Notification | None = None
        self.mutex = Mutex(self.env, self.timing)

    def barrier(self, size: int) -> Barrier:
        """A fresh barrier of `size` cores."""
        return Barrier(self.env, size, self.timing.barrier_wake_cycles)

    def push(self, job: TeamJob, cores: Iterable[int]) -> None:
        """Offer `job` to `cores`; who pushes joins them before the next, so the FIFO has always room."""
        self._entries.append((job, set(cores)))
        if self._pushed is not None:
            self._pushed.notify()
            self._pushed = None

    def pop(self, core: int, thread: Thread) -> Call[TeamJob]:
        """Take the oldest job offered to `core`, waiting for one; returns the job."""
        while True:
            for entry in self._entries:
                job, cores = entry
                if core in cores:
                    cores.discard(core)
                    if not cores:
                        self._entries.remove(entry)
                    return job
            thread.waits_for = "a task from the dispatch FIFO"
            self._pushed = self._pushed or Notification(self.env)
            yield self._pushed

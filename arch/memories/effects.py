# SPDX-License-Identifier: Apache-2.0
"""The numbers of a run: what DMA commands and kernels do to the bytes, in order, and the record of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from arch.memories.memory import Storage, move_views, poison_view
from arch.memories.races import Access, RaceDetector
from arch.spec.program import Array, Effect, Move, Release
from configs.errors import InputError
from traces.events import Work, constructor_of

Probe = Callable[[Release, Sequence[Array]], None]
"""Called at the end of some work with the arrays at its `results`: views, to be copied if they are kept."""


class Instant(Enum):
    """An instant at which bytes are read or written."""

    DMA_SAMPLE = "sample"
    """A command starts: its source is sampled, its destination poisoned."""
    DMA_COMPLETE = "complete"
    """A command ends: the sampled bytes appear at the destination."""
    KERNEL_READ = "read"
    """A kernel starts: the arrays it reads are sampled."""
    KERNEL_COMMIT = "commit"
    """A kernel ends: its results appear."""
    RELEASE = "release"
    """Buffers end their life and are poisoned."""


class LogEntry(NamedTuple):
    """One step of the log. `key` pairs the start of an access with its end."""

    step: Instant
    key: int
    subject: Move | Effect | Release


class EffectLog:
    """Everything a run did to the memories, in order; `Soc.replay` does it again without simulating time."""

    def __init__(self, entries: Sequence[LogEntry] | None = None) -> None:
        self.happened: list[Move | Effect | Release | int] = []
        """What began, and of what ended the place of its beginning in this list."""
        if entries is not None:
            self.entries = entries

    @cached_property
    def entries(self) -> Sequence[LogEntry]:
        """What happened, step by step."""
        found: list[LogEntry] = []
        for position, subject in enumerate(self.happened):
            if isinstance(subject, int):
                begun = found[subject]
                found.append(LogEntry(_END_OF[begun.step], subject, begun.subject))
            else:
                found.append(LogEntry(_beginning(subject), position, subject))
        return found


_END_OF = {Instant.DMA_SAMPLE: Instant.DMA_COMPLETE, Instant.KERNEL_READ: Instant.KERNEL_COMMIT}


def _beginning(subject: Move | Effect | Release) -> Instant:
    if isinstance(subject, Release):
        return Instant.RELEASE
    return Instant.KERNEL_READ if isinstance(subject, Effect) else Instant.DMA_SAMPLE


class OpenAccess(NamedTuple):
    """An access under way: where its beginning stands in the log, and what was sampled then."""

    key: int
    samples: Sequence[Array]


_make_open = constructor_of(OpenAccess)


class Effects:
    """Moves and computes bytes at the instants the timing model names, logs them, and looks for races.

    Without bytes that move the log may still be kept and races are found, because both follow from addresses
    alone.
    """

    def __init__(
        self, storages: Mapping[str, Storage], now: Callable[[], int], *, detect_races: bool
    ) -> None:
        self.storages = storages
        self.probe: Probe | None = None
        self.log = EffectLog()
        self._now = now
        self._enabled = self._logged = True
        self._begun = 0
        self._races = RaceDetector() if detect_races else None
        self.catch_up: Callable[[], None] | None = None
        """Called before anything happens, where somebody is late with what happened before."""

    def begin_run(self, *, enabled: bool, logged: bool) -> None:
        """Start a new log; `enabled` says whether bytes move, `logged` whether it is kept."""
        self.log = EffectLog()
        self._enabled, self._logged = enabled, logged
        self._begun = 0
        self.catch_up = None
        if self._races is not None:
            self._races.clear()

    def storage(self, level: str) -> Storage:
        """The memory called `level`. Raises `InputError` when there is none."""
        if level not in self.storages:
            raise InputError(f"unknown memory level {level!r}", cure=f"use one of {', '.join(self.storages)}")
        return self.storages[level]

    @property
    def bare_log(self) -> list[Move | Effect | Release | int] | None:
        """What happened, to add what nobody sees to: no byte moves, no access is under way."""
        if self._enabled or (self._races is not None and self._races.any_live):
            return None
        return self.log.happened if self._logged else []

    def dma_begin(self, command: Move, work: Work) -> OpenAccess:
        """A command of the DMA or of the uDMA starts. Raises `RaceError`."""
        if self.catch_up is not None:
            self.catch_up()
        return self.dma_began(command, work, self._now())

    def dma_began(self, command: Move, work: Work, start_cycles: int) -> OpenAccess:
        """The same, by somebody who is late, but has kept the order."""
        key = self._noted(command)
        if self._races is not None:
            self._races.begin(key, Access(command, work, start_cycles))
        if not self._enabled:
            return _make_open((key, ()))
        source_view, destination_view = move_views(command, self.storages)
        samples = [source_view.copy()]
        poison_view(destination_view)
        return _make_open((key, samples))

    def dma_end(self, command: Move, under_way: OpenAccess) -> None:
        """A command of the DMA or of the uDMA ends."""
        if self.catch_up is not None:
            self.catch_up()
        self.dma_ended(command, under_way)

    def dma_ended(self, command: Move, under_way: OpenAccess) -> None:
        """The same, by somebody who is late, but has kept the order."""
        self._close(under_way)
        if self._enabled:
            move_views(command, self.storages)[1][...] = under_way.samples[0]

    def kernel_begin(self, kernel: str, effect: Effect, work: Work) -> OpenAccess:
        """A kernel starts. Raises `RaceError`."""
        key = self._note(effect)
        if self._races is not None:
            self._races.begin(key, Access(effect, work, self._now(), kernel))
        samples = [self.storage(place.level).read(place) for place in effect.reads] if self._enabled else ()
        return _make_open((key, samples))

    def kernel_alone(self, kernel: str, effect: Effect, work: Work) -> None:
        """A kernel starts and ends, and nobody touches a byte meanwhile."""
        happened = self.bare_log
        if happened is None:
            self.kernel_end(effect, self.kernel_begin(kernel, effect, work))
        else:
            happened.append(effect)
            happened.append(len(happened) - 1)

    def kernel_end(self, effect: Effect, under_way: OpenAccess) -> None:
        """A kernel ends. Raises `ShapeError` or `InputError` when its results do not fill its places."""
        self._close(under_way)
        if self._enabled:
            commit(effect, effect.function(under_way.samples), self.storages)

    def release(self, action: Release) -> None:
        """Work ends, and the life of some buffers. Raises `RaceError` when somebody still uses them."""
        key = self._note(action)
        if self._races is not None:
            self._races.begin(key, Access(action, action.work, self._now()))
            self._races.end(key)
        if self._enabled:
            if self.probe is not None:
                self.probe(action, [self.storage(place.level).view(place) for place in action.results])
            for place in action.places:
                self.storage(place.level).poison(place)

    def _note(self, subject: Effect | Release) -> int:
        """Something begins; returns its place in the log, without one its number."""
        if self.catch_up is not None:
            self.catch_up()
        return self._noted(subject)

    def _noted(self, subject: Move | Effect | Release) -> int:
        if not self._logged:
            self._begun += 1
            return self._begun
        happened = self.log.happened
        happened.append(subject)
        return len(happened) - 1

    def _close(self, under_way: OpenAccess) -> None:
        key = under_way[0]
        if self._logged:
            self.log.happened.append(key)
        if self._races is not None:
            self._races.end(key)


def commit(effect: Effect, results: Sequence[Array], storages: Mapping[str, Storage]) -> None:
    """Write the results of a kernel to its places, in order.

    Raises `InputError` when their number differs and `ShapeError` when a shape does.
    """
    if len(results) != len(effect.writes):
        names = ", ".join(place.name or "?" for place in effect.writes)
        raise InputError(f"a kernel returned {len(results)} arrays: return {len(effect.writes)} ({names})")
    for place, array in zip(effect.writes, results, strict=True):
        storages[place.level].write(place, array)

# SPDX-License-Identifier: Apache-2.0
"""The numbers of a run: what DMA commands and kernels do to the bytes, in order, and the record of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from arch.memories.memory import Storage, move_views, poison_view
from arch.memories.races import Access, RaceDetector, Span, make_access, move_spans, place_span
from arch.spec.program import Array, Command, Effect, Move, Release
from configs.errors import InputError
from traces.events import Work, made_by

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


_make_entry = made_by(LogEntry)


@dataclass(slots=True)
class EffectLog:
    """Everything a run did to the memories, in order; `Soc.replay` does it again without simulating time."""

    entries: list[LogEntry] = field(default_factory=list)


@dataclass(slots=True)
class OpenAccess:
    """An access under way: what to finish, and what was sampled at its start."""

    key: int
    access: Access | None
    samples: Sequence[Array] = ()


class Effects:
    """Moves and computes bytes at the instants the timing model names, logs them, and looks for races.

    With `enabled` False no byte moves, but the log is kept and races are still found, because both follow
    from addresses alone.
    """

    def __init__(
        self, storages: Mapping[str, Storage], now: Callable[[], int], *, detect_races: bool
    ) -> None:
        self.storages = storages
        self.probe: Probe | None = None
        self.log = EffectLog()
        self._now = now
        self._enabled = True
        self._races = RaceDetector() if detect_races else None

    def begin_run(self, *, enabled: bool) -> None:
        """Start a new log; `enabled` says whether bytes move."""
        self.log = EffectLog()
        self._enabled = enabled
        if self._races:
            self._races.clear()

    def storage(self, level: str) -> Storage:
        """The memory called `level`. Raises `InputError` when there is none."""
        if level not in self.storages:
            raise InputError(f"no memory level {level!r}", cure=f"use one of {', '.join(self.storages)}")
        return self.storages[level]

    def dma_begin(self, command: Move, work: Work) -> OpenAccess:
        """A command of the DMA or of the uDMA starts. Raises `RaceError`."""
        if isinstance(command, Command):
            party = "DMA in" if command.to_l1 else "DMA out"
        else:
            party = "uDMA in" if command.to_l2 else "uDMA out"
        under_way = self._open(Instant.DMA_SAMPLE, command, party, work)
        if self._enabled:
            source, destination = move_views(command, self.storages)
            under_way.samples = [source.copy()]
            poison_view(destination)
        return under_way

    def dma_end(self, command: Move, under_way: OpenAccess) -> None:
        """A command of the DMA or of the uDMA ends."""
        self._close(Instant.DMA_COMPLETE, command, under_way)
        if self._enabled:
            move_views(command, self.storages)[1][...] = under_way.samples[0]

    def kernel_begin(self, kernel: str, effect: Effect, work: Work) -> OpenAccess:
        """A kernel starts. Raises `RaceError`."""
        under_way = self._open(Instant.KERNEL_READ, effect, f"kernel {kernel}", work)
        if self._enabled:
            under_way.samples = [self.storage(place.level).read(place) for place in effect.reads]
        return under_way

    def kernel_end(self, effect: Effect, under_way: OpenAccess) -> None:
        """A kernel ends. Raises `ShapeError` or `InputError` when its results do not fill its places."""
        self._close(Instant.KERNEL_COMMIT, effect, under_way)
        if self._enabled:
            commit(effect, effect.function(under_way.samples), self.storages)

    def release(self, action: Release) -> None:
        """Work ends, and the life of some buffers. Raises `RaceError` when somebody still uses them."""
        key = len(self.log.entries)
        self.log.entries.append(LogEntry(Instant.RELEASE, key, action))
        if self._races:
            spans = tuple(place_span(place) for place in action.places)
            access = Access("the release of buffers", action.work, (), spans, self._now())
            self._races.begin(access)
            self._races.end(access)
        if self._enabled:
            if self.probe is not None:
                self.probe(action, [self.storage(place.level).view(place) for place in action.results])
            for place in action.places:
                self.storage(place.level).poison(place)

    def _open(
        self,
        step: Instant,
        subject: Move | Effect,
        party: str,
        work: Work,
    ) -> OpenAccess:
        entries, races = self.log.entries, self._races
        key = len(entries)
        entries.append(_make_entry((step, key, subject)))
        if races is None:
            return OpenAccess(key, None)
        if isinstance(subject, Effect):
            reads: tuple[Span, ...] = tuple([place_span(place) for place in subject.reads])
            writes: tuple[Span, ...] = tuple([place_span(place) for place in subject.writes])
        else:
            source, destination = move_spans(subject)
            reads, writes = (source,), (destination,)
        access = make_access((party, work, reads, writes, self._now()))
        races.begin(access)
        return OpenAccess(key, access)

    def _close(self, step: Instant, subject: Move | Effect, under_way: OpenAccess) -> None:
        self.log.entries.append(_make_entry((step, under_way.key, subject)))
        if self._races and under_way.access:
            self._races.end(under_way.access)


def commit(effect: Effect, results: Sequence[Array], storages: Mapping[str, Storage]) -> None:
    """Write the results of a kernel to its places, in order.

    Raises `InputError` when their number differs and `ShapeError` when a shape does.
    """
    if len(results) != len(effect.writes):
        names = ", ".join(place.name or "?" for place in effect.writes)
        raise InputError(f"a kernel returned {len(results)} arrays for {len(effect.writes)} places ({names})")
    for place, array in zip(effect.writes, results, strict=True):
        storages[place.level].write(place, array)

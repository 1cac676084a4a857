# SPDX-License-Identifier: Apache-2.0
"""Repeats the recorded effects of a run without simulating time, with every view resolved once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from arch.memories.effects import EffectLog, Instant, LogEntry, Probe, commit
from arch.memories.memory import Storage, move_views, poison_view
from arch.memories.races import Span, move_spans, place_span
from arch.spec.program import Array, Command, Effect, Place, Release, UdmaCommand
from configs.errors import InputError, ShapeError
from configs.values import Struct

Act = Callable[[], None]

REMEMBERED = 4096
"""Entries of the log whose footprint is not worked out anew, the ones asked for last."""


class _Footprint(Struct, frozen=True):
    """Bytes one entry of the log reads and writes at its instant (a sample poisons its destination)."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]


class ReplayPlan:
    """A log compiled to a list of moves.

    A copy sampled at the start of an access and stored at its end collapses into one direct copy at the end
    when nothing wrote its source and nothing touched its destination in between; the same for the arrays a
    kernel reads. Where something did (a race, or deliberate reuse), the sample and the poison are kept, so
    that the memories end up as in the simulated run. `probe` is that of `arch.memories.effects.Effects`.

    Compiling takes as long as repeating the log some times step by step, so that is done the first time.
    """

    def __init__(self, log: EffectLog, storages: Mapping[str, Storage]) -> None:
        self.probe: Probe | None = None
        self._storages = storages
        self._log = log
        self._moves: list[Act] | None = None
        self._entries: Sequence[LogEntry] = ()
        self._ended: dict[int, int] = {}
        self._footprints: dict[int, _Footprint] = {}
        self._pending: dict[int, list[Array]] = {}

    def run(self) -> None:
        """Apply all effects once, in order."""
        if self._moves is None:
            self._moves = []
            self._step_by_step()
            return
        for move in self._moves or self._compiled():
            move()

    def _step_by_step(self) -> None:
        """As the run did: what an access reads is sampled when it starts, and appears when it ends."""
        storages = self._storages
        copies: dict[int, tuple[Array, Array]] = {}
        arguments: dict[int, list[Array]] = {}
        for step, key, subject in self._log.entries:
            if isinstance(subject, Release):
                self._probed(subject)()
                for place in subject.places:
                    storages[place.level].poison(place)
            elif isinstance(subject, Effect):
                if step is Instant.KERNEL_READ:
                    arguments[key] = [storages[place.level].read(place) for place in subject.reads]
                else:
                    commit(subject, subject.function(arguments.pop(key)), storages)
            elif step is Instant.DMA_SAMPLE:
                source, destination = move_views(subject, storages)
                copies[key] = destination, source.copy()
                poison_view(destination)
            else:
                destination, held = copies.pop(key)
                destination[...] = held

    def _compiled(self) -> list[Act]:
        self._moves = moves = []
        self._entries = self._log.entries
        ends = Instant.DMA_COMPLETE, Instant.KERNEL_COMMIT
        self._ended = {entry.key: index for index, entry in enumerate(self._entries) if entry.step in ends}
        for index, entry in enumerate(self._entries):
            moves.extend(self._compile(index, entry))
        self._entries, self._ended, self._footprints = (), {}, {}
        return moves

    def _compile(self, index: int, entry: LogEntry) -> list[Act]:
        subject = entry.subject
        if isinstance(subject, (Command, UdmaCommand)):
            source, destination = move_views(subject, self._storages)
            if entry.step is Instant.DMA_SAMPLE:
                return self._sample_command(index, entry.key, source, destination)
            held = self._pending.pop(entry.key)[0]
            return [_copy(destination, held)]
        if isinstance(subject, Effect):
            if entry.step is Instant.KERNEL_READ:
                return self._sample_kernel(index, entry.key, subject)
            writes = [self._storages[place.level].view(place) for place in subject.writes]
            return [_kernel(subject, self._pending.pop(entry.key), writes)]
        probed = [self._probed(subject)] if subject.results else []
        return [*probed, *(self._poison(place) for place in subject.places)]

    def _footprint(self, index: int) -> _Footprint:
        """That of an entry; those asked for last are remembered, those of all take more than the moves."""
        footprint = self._footprints.pop(index, None) or _footprint(self._entries[index])
        self._footprints[index] = footprint
        if len(self._footprints) > REMEMBERED:
            del self._footprints[next(iter(self._footprints))]
        return footprint

    def _until_end(self, index: int, key: int) -> tuple[list[_Footprint], _Footprint]:
        """Footprints of what lies between the start of an access and its end, and of the end."""
        end = self._ended.get(key, len(self._entries))
        between = [self._footprint(other) for other in range(index + 1, end)]
        return between, self._footprint(end) if end < len(self._entries) else _Footprint((), ())

    def _sample_command(self, index: int, key: int, source: Array, destination: Array) -> list[Act]:
        own, (between, _) = self._footprint(index), self._until_end(index, key)
        read, written = own.reads, own.writes
        moves: list[Act] = []
        if any(_touch(read, other.writes) for other in between) or _touch(read, written):
            held = np.empty_like(source)
            moves.append(_copy(held, source))
        else:
            held = source
        if key not in self._ended or any(
            _touch(written, other.writes) or _touch(written, other.reads) for other in between
        ):
            moves.append(_poisoner(destination))
        self._pending[key] = [held]
        return moves

    def _sample_kernel(self, index: int, key: int, effect: Effect) -> list[Act]:
        between, at_end = self._until_end(index, key)
        moves: list[Act] = []
        samples: list[Array] = []
        for place in effect.reads:
            view = self._storages[place.level].view(place)
            span = (place_span(place),)
            # Results may be views of the arguments, so an in-place kernel must not read what it overwrites.
            if _touch(span, at_end.writes) or any(_touch(span, other.writes) for other in between):
                held = np.empty_like(view)
                moves.append(_copy(held, view))
                view = held
            samples.append(view)
        self._pending[key] = samples
        return moves

    def _probed(self, ended: Release) -> Act:
        views = [self._storages[place.level].view(place) for place in ended.results]

        def move() -> None:
            if self.probe is not None:
                self.probe(ended, views)

        return move

    def _poison(self, place: Place) -> Act:
        storage = self._storages[place.level]
        storage.check(place.address, place.size_bytes, place.name)
        return _poisoner(storage.bytes[place.address : place.address + place.size_bytes])


def _footprint(entry: LogEntry) -> _Footprint:
    subject = entry.subject
    if isinstance(subject, (Command, UdmaCommand)):
        read, written = move_spans(subject)
        return _Footprint((read,) if entry.step is Instant.DMA_SAMPLE else (), (written,))
    if isinstance(subject, Effect):
        if entry.step is Instant.KERNEL_READ:
            return _Footprint(tuple(place_span(place) for place in subject.reads), ())
        return _Footprint((), tuple(place_span(place) for place in subject.writes))
    return _Footprint((), tuple(place_span(place) for place in subject.places))


def _touch(ours: tuple[Span, ...], theirs: tuple[Span, ...]) -> bool:
    return any(span.overlaps(other) for span in ours for other in theirs)


def _copy(destination: Array, source: Array) -> Act:
    def move() -> None:
        np.copyto(destination, source)

    return move


def _poisoner(view: Array) -> Act:
    def move() -> None:
        poison_view(view)

    return move


def _kernel(effect: Effect, samples: list[Array], writes: Sequence[Array]) -> Act:
    function = effect.function

    def move() -> None:
        results = function(samples)
        if len(results) != len(writes):
            raise InputError(f"a kernel returned {len(results)} arrays: return {len(writes)}")
        for view, result in zip(writes, results, strict=True):
            if view.shape != result.shape:
                raise ShapeError(f"a kernel returned shape {result.shape}: return {view.shape}")
            view[...] = result

    return move

# SPDX-License-Identifier: Apache-2.0
"""A tracer that keeps what it is told, and hands it out in one fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import Any

from configs.values import Struct
from traces.events import STALLS, Slice, TeamKernel, TraceError
from traces.tracks import INWARD, OUTWARD, track_name

_STALLS = frozenset(STALLS)
_AT_A_TIME = 4096

Record = Slice | TeamKernel
"""What is kept of a run. Of both the third field is the end, the second the start, of a kernel the push."""


class CounterSample(Struct, frozen=True):
    """New value of a counter from `time_cycles` (cluster cycles) on."""

    track: str
    name: str
    time_cycles: int
    value: float


class Recorder:
    """Keeps slices and counters of one run (a `traces.events.Tracer`).

    The order of what it returns depends only on what happened, not on the order of the calls: DMA before
    cores before the rest, by index, then by time. Raises TraceError for a slice that ends before it starts.
    With `count` nothing is kept: it takes what was told, some thousand records at a time, `flush` the rest.
    """

    def __init__(self, count: Callable[[Sequence[Record]], None] | None = None) -> None:
        self._count = count
        self.records: list[Record] = []
        """What has been told, in that order."""
        self._ordered: SortedSlices | None = None
        self._samples: dict[tuple[str, str], tuple[list[int], list[int]]] = {}

    def slice(self, event: Slice) -> None:
        """Keep one finished interval; a wait of no cycles is no event and is dropped."""
        start_cycles, end_cycles = event[1], event[2]  # by number, which is faster: there are very many
        if start_cycles >= end_cycles or start_cycles < 0:
            kind = event.kind
            if end_cycles < start_cycles or start_cycles < 0:
                raise TraceError(
                    f"a slice ({kind}) starts at cycle {start_cycles} and ends at cycle {end_cycles}",
                    track=event.track,
                )
            if kind in _STALLS:
                return
        self._keep(event)

    def team(self, kernel: TeamKernel) -> None:
        """Keep what the cores of a team did in one kernel."""
        self._keep(kernel)

    def _keep(self, record: Record) -> None:
        records = self.records
        records.append(record)
        self._ordered = None
        if self._count is not None and len(records) >= _AT_A_TIME:
            self.flush()

    def flush(self) -> None:
        """Let be counted what has not been."""
        if self._count is not None:
            self._count(self.records)
            self.records.clear()

    def counter(self, track: str, name: str, time_cycles: int, value: int) -> None:
        """Keep the value of a counter; within one cycle the last value counts."""
        if self._count is not None:
            return
        samples = self._samples.get((track, name))
        if samples is None:
            samples = self._samples[track, name] = [], []
        samples[0].append(time_cycles)
        samples[1].append(value)

    @property
    def slices(self) -> SortedSlices:
        """All slices, in the fixed order."""
        if self._ordered is None:
            self._ordered = SortedSlices(event for track in self.tracks.values() for event in track)
            self.records = list(self._ordered)
        return self._ordered

    @property
    def tracks(self) -> Mapping[str, Sequence[Slice]]:
        """The slices by track, in the same order."""
        return _Tracks(self.records)

    @property
    def counters(self) -> tuple[CounterSample, ...]:
        """All counter values, by track, counter and time."""
        by_track = sorted(self._samples, key=lambda key: (track_name(key[0]).order, key[1]))
        return tuple(
            CounterSample(*key, time_cycles, value)
            for key in by_track
            for time_cycles, value in sorted(dict(zip(*self._samples[key], strict=True)).items())
        )

    def __iter__(self) -> Iterator[Slice]:
        return iter(self.slices)

    # No __len__: an empty recorder would be falsy, and `tracer or NullTracer()` would drop it.


class SortedSlices(tuple[Slice, ...]):
    """Slices that `sorted_slices` has brought into order, so that nobody has to do it again."""

    __slots__ = ()


class LateSlices(Sequence[Slice]):
    """Slices in order that are made when somebody reads one: figures need not all of them at once."""

    def __init__(self, make: Callable[[], SortedSlices]) -> None:
        self._make = make

    @cached_property
    def sorted(self) -> SortedSlices:
        """All of them."""
        return self._make()

    def __len__(self) -> int:
        return len(self.sorted)

    def __getitem__(self, index: Any) -> Any:
        return self.sorted[index]

    def __iter__(self) -> Iterator[Slice]:
        return iter(self.sorted)


class _Tracks(Mapping[str, Sequence[Slice]]):
    """The slices of each track, made of what was recorded whenever they are asked for, and kept by nobody.

    In the order of `TrackName.order`; those of a track by start, end and content.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        by_track: dict[str, list[Slice]] = {}
        teams: list[TeamKernel] = []
        for record in records:
            if isinstance(record, TeamKernel):
                teams.append(record)
                for track in record.tracks:
                    by_track.setdefault(track, [])
                continue
            events = by_track.get(record[0])
            if events is None:
                events = by_track[record[0]] = []
            events.append(record)
        self._found = {
            track: by_track[track] for track in sorted(by_track, key=lambda path: track_name(path).order)
        }
        self._teams = teams

    def __getitem__(self, track: str) -> Sequence[Slice]:
        events = [*self._found[track], *(event for kernel in self._teams for event in kernel.slices(track))]
        # Starts mostly say all; keys of everything would take more memory than the slices.
        events.sort(key=_START)
        if any(event[1] == following[1] for event, following in pairwise(events)):
            events.sort(key=_within_track)
        return events

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


_START = itemgetter(1)
_END_AND_START = itemgetter(2, 1)


def sorted_records(slices: Iterable[Slice] | Recorder) -> list[Record]:
    """Slices, or what a recorder keeps, by their ends and starts: those of every track in order of time."""
    records: Iterable[Record] = slices.records if isinstance(slices, Recorder) else sorted_slices(slices)
    return sorted(records, key=_END_AND_START)


def sorted_slices(slices: Iterable[Slice]) -> SortedSlices:
    """Slices by track (DMA, cores, rest), then start, end and content, so that equal runs are equal files."""
    if isinstance(slices, LateSlices):
        return slices.sorted
    if isinstance(slices, SortedSlices):
        return slices
    return SortedSlices(event for track in _Tracks(slices).values() for event in track)


def _within_track(event: Slice) -> tuple[object, ...]:
    work = event.work
    return (
        event.start_cycles,
        event.end_cycles,
        event.kind,
        work.op,
        work.step,
        work.tile,
        work.what,
        event.bytes,
    )


def transfer_direction(event: Slice) -> str:
    """`INWARD`, `OUTWARD` or empty for a transfer: from its track, else the first word of `work.what`."""
    direction = track_name(event.track).direction
    if direction:
        return direction
    first = event.work.what.split(" ", 1)[0].rstrip(":")
    return first if first in (INWARD, OUTWARD) else ""

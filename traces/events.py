# SPDX-License-Identifier: Apache-2.0
"""What a simulation tells its observers: slices on tracks, counters, and the words for lost time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from configs.errors import PulptrainError
from configs.values import Struct
from traces.stall_words import MEANINGS

_T = TypeVar("_T", bound=tuple[object, ...])

STALLS = tuple(MEANINGS)
"""Every reason a core's cycle can be lost for. On every core track busy + stalls = makespan."""


class TraceError(PulptrainError):
    """Slices overlap on a track, end before they start, or do not account for every cycle of a core.

    Such a trace is a fault of the simulator, not of its user, so the exit code is that of an internal error.
    `track` is where.
    """

    def __init__(self, message: str, *, track: str = "") -> None:
        super().__init__(
            f"{track}: {message}" if track else message,
            where="trace",
            cure="if the trace comes from a file, run `pulptrain run MODEL --out DIR` again; if not, report "
            "this as a defect, with your command",
        )


COMPUTE = "compute"
"""Kind of a slice in which a core issues instructions; its inner stalls are in `Slice.stalls`."""

TRANSFER = "transfer"
"""Kind of a slice in which a DMA channel or memory port moves bytes."""


class Work(Struct, frozen=True):
    """What the schedule was doing: op name, step (FW, IG, WG, UPD, LOSS), tile index, kernel or buffer."""

    op: str = ""
    step: str = ""
    tile: int = -1
    what: str = ""


NO_WORK = Work()


class Slice(NamedTuple):
    """One interval [start_cycles, end_cycles) on one track, in cluster clock cycles.

    `track` is the hierarchical name of a module (``soc.cluster.core3``) or of one of its ports or channels.
    `kind` is `COMPUTE`, `TRANSFER` or one word of `STALLS`. `stalls` holds (word, cycles) lost inside a
    compute slice, so busy = duration - sum of them. `bytes` is what a transfer moved, `instructions` what a
    core issued.
    """

    track: str
    start_cycles: int
    end_cycles: int
    kind: str
    work: Work = NO_WORK
    stalls: tuple[tuple[str, int], ...] = ()
    bytes: int = 0
    instructions: int = 0

    @property
    def duration_cycles(self) -> int:
        """Length of the interval."""
        return self.end_cycles - self.start_cycles

    @property
    def busy_cycles(self) -> int:
        """Cycles in which an instruction was issued (0 for a stall slice)."""
        if self.kind != COMPUTE:
            return 0
        return self.end_cycles - self.start_cycles - sum([cycles for _, cycles in self.stalls])


def constructor_of(kind: type[_T]) -> Callable[[tuple[object, ...]], _T]:
    """A constructor of a named tuple from a tuple of all its fields, in half the time of its own.

    For what a run makes a hundred thousand times.
    """
    return partial(tuple.__new__, kind)


make_slice = constructor_of(Slice)


WorkerShare = tuple[str, int, int, tuple[tuple[str, int], ...], int]
"""What `TeamKernel.workers` has of one."""


class TeamKernel(NamedTuple):
    """A kernel as the cores of a team saw it, one record: the slices of each are made when they are read.

    A worker waits until the job is pushed, takes it, computes, and waits until the join is released. Each of
    `workers` has its track, start and end of its share from the push on, the stalls and the instructions in
    it; many kernels have the same. `spent_cycles` has for each the cycle up to which it is accounted for. So
    has `master`, where it is told of: it forks from `begun_cycles` on and goes on after the join at
    `ended_cycles`.
    """

    work: Work
    pushed_cycles: int
    released_cycles: int
    spent_cycles: tuple[int, ...]
    workers: tuple[WorkerShare, ...]
    master: WorkerShare | None = None
    begun_cycles: int = 0
    ended_cycles: int = 0

    @property
    def tracks(self) -> list[str]:
        """Those of all its cores."""
        return [share[0] for share in (*self.workers, *([self.master] if self.master else ()))]

    def master_slices(self) -> list[Slice]:
        """What the master did, without what took no time."""
        work, pushed, released, _, _, master, begun, ended = self
        events: list[Slice] = []
        if master is not None:
            track, start, end, stalls, instructions = master
            if pushed + start > begun:
                events.append(make_slice((track, begun, pushed + start, "fork", work, (), 0, 0)))
            if end > start:
                events.append(
                    make_slice((track, pushed + start, pushed + end, COMPUTE, work, stalls, 0, instructions))
                )
            if released > pushed + end:
                events.append(make_slice((track, pushed + end, released, "barrier", work, (), 0, 0)))
            if ended > released:
                events.append(make_slice((track, released, ended, "fork", work, (), 0, 0)))
        return events

    def slices(self, of_track: str | None = None) -> Iterator[Slice]:
        """What each core did, or the one of this track, without what took no time."""
        if self.master is not None and of_track in (None, self.master[0]):
            yield from self.master_slices()
        yield from self.worker_slices(of_track)

    def worker_slices(self, of_track: str | None = None) -> Iterator[Slice]:
        """What each worker did, or the one of this track."""
        work, pushed, released, accounted, workers, _, _, _ = self
        for spent, (track, start, end, stalls, instructions) in zip(accounted, workers, strict=True):
            if of_track is not None and track != of_track:
                continue
            if pushed > spent:
                yield make_slice((track, spent, pushed, "idle", NO_WORK, (), 0, 0))
            if start > 0:
                yield make_slice((track, pushed, pushed + start, "fork", work, (), 0, 0))
            if end > start:
                yield make_slice(
                    (track, pushed + start, pushed + end, COMPUTE, work, stalls, 0, instructions)
                )
            if released > pushed + end:
                yield make_slice((track, pushed + end, released, "barrier", work, (), 0, 0))


make_team_kernel = constructor_of(TeamKernel)


class Tracer(Protocol):
    """Observer called at the ports of the modules (SystemC: sc_trace)."""

    def slice(self, event: Slice) -> None:
        """Take one finished interval."""

    def team(self, kernel: TeamKernel) -> None:
        """Take what the cores of a team did in one kernel."""

    def counter(self, track: str, name: str, time_cycles: int, value: int) -> None:
        """Take a new value of a counter, e.g. commands in a DMA queue."""


class NullTracer:
    """A tracer that keeps nothing; used while searching."""

    def slice(self, event: Slice) -> None:
        """Drop the slice."""

    def team(self, kernel: TeamKernel) -> None:
        """Drop the slices."""

    def counter(self, track: str, name: str, time_cycles: int, value: int) -> None:
        """Drop the value."""

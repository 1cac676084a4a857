# SPDX-License-Identifier: Apache-2.0
"""The sums of a run, counted from what a tracer is told, record by record, and the records not kept.

Cores that do the same are counted once: sums are kept by the cores that have them in common, those of team
kernels by the shares they have in common. What a worker did is counted when it is decided whose the master's
cycles are (`traces.master_line`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from traces.causes import SPLIT
from traces.events import COMPUTE, STALLS, TRANSFER, Slice, TeamKernel, TraceError, Work, WorkerShare
from traces.master_line import EITHER, Cause, MasterLine, Moves, Piece, direction_of
from traces.parts import BUSY, overlap, share_out, slice_parts
from traces.recorder import Record, transfer_direction
from traces.tracks import CORE, DMA, UDMA, op_label, track_name

MOST_DIFFERENT = 1024
"""Shares of kernels and stalls of slices that are told apart before they are added up."""

Stalls = tuple[tuple[str, int], ...]
Who = tuple[str, ...]
"""Tracks of cores that have a sum in common."""

Shares = tuple[WorkerShare, ...]

_STALLS = frozenset(STALLS)


class _Team(NamedTuple):
    """What workers did in kernels alike: their tracks, the latest end of a share, whether any has one."""

    shares: Shares
    who: Who
    latest_cycles: int
    computes: bool


class Tally:
    """Counts slices and team kernels; those of a track come in order of time.

    `cores` are the tracks of all cores, the master first; `directions` says what waits are for, see
    `directions_of`. `add` raises TraceError for a slice whose inner stalls exceed its duration, `check` for
    whatever else contradicts itself. Sums are complete after `close`.
    """

    def __init__(self, cores: Sequence[str], directions: Mapping[Work, str]) -> None:
        self._moves = Moves(directions)
        self._waits: dict[tuple[str, Who, Cause], int] = defaultdict(int)
        self.line = MasterLine(self._moves)
        self.master_times: dict[tuple[str, str], list[int]] = {}
        """By kind and name cycles and slices."""
        self.tiles: dict[str, set[int]] = defaultdict(set)
        self.moved_bytes: dict[tuple[str, str], int] = {}
        """By op and direction."""
        self.cycles: dict[tuple[str, Who, str], int] = defaultdict(int)
        """Of each core of some by op and word."""
        self.waits: dict[tuple[str, Who, str], int] = defaultdict(int)
        """The same by what waits are for, of `SPLIT` cycles."""
        self.issued: dict[tuple[str, Who], int] = defaultdict(int)
        """Instructions of each by the op that slices name."""
        self.steps: dict[str, str] = {}
        """Of the ops that slices name."""
        self.last_cycles = dict.fromkeys(cores, 0)
        """By track the end of what was told last."""
        self._cores = tuple(cores)
        self._master: Who = self._cores[:1]
        self._last_kind: dict[str, str] = {}
        self._fault: TraceError | None = None
        self._pending: list[Record] = []
        self._computed: dict[tuple[str, Who, Stalls], list[int]] = {}
        self._kernels: dict[tuple[str, str, int], tuple[_Team, list[int]]] = {}
        self._teams: dict[int, tuple[Shares, _Team]] = {}
        self._alike: dict[Shares, _Team] = {}
        self._labels: dict[tuple[str, str], str] = {}
        self._spells = np.empty((2, 0), np.int64)

    @property
    def cores(self) -> tuple[str, ...]:
        """The tracks of cores of which anything was told, in order."""
        return tuple(core for core in self._cores if core in self._last_kind)

    def add(self, records: Iterable[Record]) -> None:
        """Count them; the caller need not keep them."""
        masters: list[Slice] = []
        spells: list[tuple[int, int]] = []
        last, kinds, cores = self.last_cycles, self._last_kind, set(self._cores)
        master = self._cores[0] if cores else ""
        for record in records:
            if isinstance(record, TeamKernel):
                for track, spent in zip(self._team(record).who, record[3], strict=True):
                    if spent < last[track]:
                        self._fault = self._fault or self._overlap(next(record.slices(track)))
                    last[track] = record[2]
                self._pending.append(record)
                events: Sequence[Slice] = record.master_slices()
            else:
                events = (record,)
            for event in events:
                track, start, end, kind, _, _, _, _ = event
                if end < start or start < last.get(track, 0):
                    self._fault = self._fault or self._overlap(event)
                last[track] = end
                kinds[track] = kind
                if track == master:
                    masters.append(event)
                elif track in cores:
                    self._pending.append(event)
                elif kind == TRANSFER:
                    self._move(event, spells)
        self._merge(spells)
        self._go_on(masters, over=False)

    def close(self) -> None:
        """Nothing more is told."""
        self._go_on([], over=True)
        self._settle()
        for (op, who, cause), cycles in self._waits.items():
            self.waits[op, who, self._moves.name_of(cause)] += cycles

    def check(self, makespan_cycles: int) -> None:
        """Raise TraceError if slices of a track overlap, or busy + stalls are not the makespan on a core."""
        if self._fault is not None:
            raise self._fault
        sums = dict.fromkeys(self.cores, 0)
        for (_, who, word), cycles in self.cycles.items():
            if word not in _STALLS and word != BUSY:
                raise TraceError(f"unknown kind of stall {word!r}", track=who[0])
            for track in who:
                sums[track] = sums.get(track, 0) + cycles
        for track, cycles in sums.items():
            end_cycles = self.last_cycles[track]
            if end_cycles > makespan_cycles:
                raise TraceError(
                    f"a slice ({self._last_kind.get(track, 'barrier')}) ends at cycle {end_cycles}, after "
                    f"the end of the run (makespan {makespan_cycles})",
                    track=track,
                )
            if cycles != makespan_cycles:
                raise TraceError(
                    f"busy and stall cycles add up to {cycles}, but must equal the makespan, "
                    f"{makespan_cycles}",
                    track=track,
                )

    def covered_cycles(self, makespan_cycles: int) -> int:
        """Cycles of the makespan in which at least one transfer of the DMA is under way."""
        starts, ends = np.minimum(self._spells, makespan_cycles)
        return int((ends - starts).sum())

    def _overlap(self, event: Slice) -> TraceError:
        return overlap(self._last_kind.get(event.track, "barrier"), self.last_cycles[event.track], event)

    def _label(self, work: Work) -> str:
        label = self._labels.get((work.op, work.step))
        if label is None:
            label = self._labels[work.op, work.step] = op_label(work.op, work.step) if work.op else ""
            if label:
                self.steps.setdefault(label, work.step)
        return label

    def _team(self, kernel: TeamKernel) -> _Team:
        """The workers of a kernel. Raises TraceError if the stalls of one exceed its share."""
        shares = kernel.workers
        team = self._teams.get(id(shares))
        if team is None:
            alike = self._alike.get(shares)
            if alike is None:
                for track, start, end, stalls, _ in shares:
                    if start < end < start + sum([cycles for _, cycles in stalls]):
                        slice_parts(Slice(track, start, end, COMPUTE, kernel.work, stalls))  # says what
                who = tuple([track for track, *_ in shares])
                latest_cycles = max([end for _, _, end, *_ in shares], default=0)
                computes = any(end > start for _, start, end, *_ in shares)
                alike = self._alike[shares] = _Team(shares, who, latest_cycles, computes)
                for track in who:
                    self._last_kind.setdefault(track, "barrier")
            team = self._teams[id(shares)] = shares, alike  # kept alive, as others might take its identity
        return team[1]

    def _move(self, event: Slice, spells: list[tuple[int, int]]) -> None:
        track, start, end, _, work, _, size_bytes, _ = event
        name = track_name(track)
        if name.family in (DMA, UDMA):
            self._moves.add(event, name)
        if name.family == DMA:
            spells.append((start, end))
            key = self._label(work), name.direction or transfer_direction(event)
            self.moved_bytes[key] = self.moved_bytes.get(key, 0) + size_bytes

    def _merge(self, spells: Sequence[tuple[int, int]]) -> None:
        """Add times with a transfer under way; of all that is kept is when there was one."""
        if not spells:
            return
        starts, ends = np.concatenate([self._spells, np.array(spells, np.int64).T], axis=1)
        order = np.argsort(starts, kind="stable")
        starts, reached = starts[order], np.maximum.accumulate(ends[order])
        begins = np.flatnonzero(np.append(True, starts[1:] > reached[:-1]))
        self._spells = np.stack([starts[begins], reached[np.append(begins[1:], len(reached)) - 1]])

    def _go_on(self, masters: Sequence[Slice], *, over: bool) -> None:
        """Count the master, and of the workers what it has decided."""
        line = self.line
        for event, piece in line.extend(masters, over=over):
            self._count_master(event, piece)
        waiting: list[Record] = []
        for record in self._pending:
            if record[2] > line.until_cycles and not over:
                waiting.append(record)
            elif isinstance(record, TeamKernel):
                self._count_team(record)
            else:
                self._count_worker(record)
        self._pending = waiting
        begun = [self.last_cycles[core] for core in self._cores[1:]]
        for record in waiting:
            begun += record[3] if isinstance(record, TeamKernel) else (record[1],)
        line.forget(min(begun, default=line.until_cycles))
        if len(self._teams) > MOST_DIFFERENT or len(self._computed) > MOST_DIFFERENT:
            self._settle()

    def _count_master(self, event: Slice, piece: Piece) -> None:
        _, start, end, kind, work, _, _, _ = event
        who, op = self._master, piece.op
        account = self.master_times.get((kind, work.what))
        if account is None:
            account = self.master_times[kind, work.what] = [0, 0]
        account[0] += end - start
        account[1] += 1
        if kind == COMPUTE:
            self._compute(op, who, event)
        else:
            self.cycles[op, who, kind] += end - start
            if kind in SPLIT:
                self._waits[piece.waiting_op, who, piece.cause] += end - start

    def _compute(self, op: str, who: Who, event: Slice) -> None:
        """A slice in which instructions are issued and all cycles are of one op."""
        _, start, end, _, _, stalls, _, _ = event
        alike = self._computed.get((op, who, stalls))
        if alike is None:
            alike = self._computed[op, who, stalls] = [0, 0, sum([cycles for _, cycles in stalls])]
        if end - start < alike[2]:
            slice_parts(event)  # says what is wrong
        alike[0] += 1
        alike[1] += end - start
        self._issue(who, event)

    def _issue(self, who: Who, event: Slice) -> None:
        label = self._label(event[4])
        self.issued[label, who] += event[7]
        self.tiles[label].add(event[4].tile)

    def _count_worker(self, event: Slice) -> None:
        track, start, end, kind, _, _, _, _ = event
        who = (track,)
        if kind in SPLIT:
            cause = self._moves.cause(event) if kind == "dma_wait" else ""
            self._wait(who, kind, start, end, cause)
            return
        parts = self.line.pieces(start, end)
        if kind != COMPUTE:
            for piece, cycles in parts:
                self.cycles[piece.op, who, kind] += cycles
        elif len({piece.op for piece, _ in parts}) == 1:
            self._compute(parts[0][0].op, who, event)
        else:
            self._cut(who, event, parts)

    def _wait(self, who: Who, kind: str, start_cycles: int, end_cycles: int, cause: Cause) -> None:
        """Cycles that stand for several causes; without a `cause` it is what the master does meanwhile."""
        for piece, cycles in self.line.pieces(start_cycles, end_cycles):
            self.cycles[piece.op, who, kind] += cycles
            if piece.cause:
                self._waits[piece.waiting_op, who, cause or piece.cause] += cycles

    def _cut(self, who: Who, event: Slice, parts: Sequence[tuple[Piece, int]]) -> None:
        """A slice during which the op changes: busy cycles and stalls are shared out in whole cycles."""
        runs: list[tuple[str, int]] = []
        for piece, cycles in parts:
            before_cycles = runs.pop()[1] if runs and runs[-1][0] == piece.op else 0
            runs.append((piece.op, before_cycles + cycles))
        left = slice_parts(event)
        for op, cycles in runs:
            if op:
                taken = share_out(cycles, [count for _, count in left])
                for (word, _), part in zip(left, taken, strict=True):
                    self.cycles[op, who, word] += part
                left = tuple((word, count - part) for (word, count), part in zip(left, taken, strict=True))
        for word, count in left:
            self.cycles["", who, word] += count
        self._issue(who, event)

    def _count_team(self, kernel: TeamKernel) -> None:
        """A kernel; mostly all workers have waited for it equally long, and the op stays the same."""
        work, pushed, released, accounted, _, _, _, _ = kernel
        team = self._team(kernel)
        who = team.who
        op = self.line.op_of(pushed, released)
        if op is None or pushed < max(accounted, default=0) or released < pushed + team.latest_cycles:
            for event in kernel.worker_slices():
                self._count_worker(event)
            return
        if len(set(accounted)) == 1:
            self._wait(who, "idle", accounted[0], pushed, "")
        else:
            for track, spent in zip(who, accounted, strict=True):
                self._wait((track,), "idle", spent, pushed, "")
        label = self._label(work)
        alike = self._kernels.get((op, label, id(team)))
        if alike is None:
            alike = self._kernels[op, label, id(team)] = team, [0, 0]
        alike[1][0] += 1
        alike[1][1] += released - pushed
        if team.computes:
            self.tiles[label].add(work.tile)

    def _settle(self) -> None:
        """Add up what was told apart by shares and stalls."""
        for (op, label, _), (team, (times, cycles)) in self._kernels.items():
            for track, start, end, stalls, instructions in team.shares:
                who: Who = (track,)
                self.cycles[op, who, "fork"] += times * start
                self.cycles[op, who, "barrier"] += cycles - times * end
                if end > start:
                    self._add_parts(op, who, times * (end - start), times, stalls)
                    self.issued[label, who] += times * instructions
        for (op, who, stalls), (times, cycles, _) in self._computed.items():
            self._add_parts(op, who, cycles, times, stalls)
        self._kernels, self._computed, self._teams, self._alike = {}, {}, {}, {}

    def _add_parts(self, op: str, who: Who, cycles: int, times: int, stalls: Stalls) -> None:
        for word, lost in stalls:
            self.cycles[op, who, word] += times * lost
            cycles -= times * lost
        self.cycles[op, who, BUSY] += cycles


def directions_of(transfers: Iterable[Slice]) -> dict[Work, str]:
    """What waits are for, from all transfers of a run."""
    names = [(event.work, track_name(event.track)) for event in transfers]
    moved = ((work, direction_of(name)) for work, name in names if name.family == DMA)
    return one_or_either(moved, {work for work, name in names if name.family == UDMA})


def one_or_either(moved: Iterable[tuple[Work, str]], off_chip: Set[Work]) -> dict[Work, str]:
    """By work the direction in which it is `moved`; `EITHER` of both, and of what the uDMA moves as well."""
    by_work: dict[Work, str] = {}
    for work, direction in moved:
        if by_work.setdefault(work, direction) != direction:
            by_work[work] = EITHER
    return by_work | dict.fromkeys(off_chip & by_work.keys(), EITHER)


def cores_of(tracks: Iterable[str]) -> list[str]:
    """The tracks of cores, in order of their numbers."""
    names = [track_name(track) for track in set(tracks)]
    return [name.path for name in sorted(names, key=lambda name: name.order) if name.family == CORE]

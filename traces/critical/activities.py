# SPDX-License-Identifier: Apache-2.0
"""The executed program as a graph: what core 0, the teams and the DMA did, and what each had to wait for.

An activity begins when the last of those it comes after ends, so that delays are activities themselves: the
start-up of a transfer, the wake-up of a core. The graph is read from the slices of a run:

- core 0 does one thing after the other; a kernel forks to every core of its team, each computes its share,
  and core 0 goes on a wake-up after the last;
- a transfer follows what programs it, and the transfer before it on its channel;
- a wait goes on when its call is over and the transfer has ended; core 0 that finds the queue of the DMA
  full goes on when the transfer under way has come so far.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from configs.values import Struct
from traces.events import COMPUTE, TRANSFER, Slice, Work
from traces.recorder import sorted_slices
from traces.tracks import CORE, DMA, UDMA, track_name

START_UP = "start_up"
"""Kind of what passes between the last word of a command and its first request."""


FABRIC = "fabric controller"
"""The resource of what core 0 waits for at both ends of a run."""


class Activity(NamedTuple):
    """What a resource (core, channel, bus) does from `start_cycles` to `end_cycles`, and after which others.

    `kind` is that of a slice, or `START_UP`; `after` are numbers of activities, all before its own. `stalls`
    are those inside of it. `transfer` is the number of a transfer in the order of its channel, else -1.
    """

    resource: str
    kind: str
    work: Work
    start_cycles: int
    end_cycles: int
    after: tuple[int, ...]
    stalls: tuple[tuple[str, int], ...] = ()
    transfer: int = -1

    @property
    def cycles(self) -> int:
        """How long it takes."""
        return self.end_cycles - self.start_cycles


class WaitLags(Struct, frozen=True):
    """A wait for a transfer: `check_cycles` after its call core 0 sees whether it has ended. If so the wait
    takes `done_cycles`, else at least `sleep_cycles`, and until `wake_cycles` after the end."""

    check_cycles: int
    done_cycles: int
    sleep_cycles: int
    wake_cycles: int

    def of(self, over_cycles: int) -> tuple[int, int]:
        """(cycles of the call, cycles of the wake-up) of a wait for what ends so long after it began."""
        if over_cycles <= self.check_cycles:
            return self.done_cycles, self.done_cycles - self.check_cycles
        return self.sleep_cycles, self.wake_cycles


class Lags(Struct, frozen=True):
    """What takes time and has no slice of its own, in cluster cycles; a trace tells only the sums.

    `next_command_cycles` are those of core 0 for each further command of a transfer, `start_up_cycles` those
    from the last word of a command to its request; `order_cycles` those of core 0 for an order of the uDMA,
    of which `queued_orders` may wait.
    """

    next_command_cycles: int
    start_up_cycles: int
    order_cycles: int
    queued_orders: int
    dma_wait: WaitLags
    udma_wait: WaitLags


class Wait(NamedTuple):
    """What belongs to the call of a wait: its wake-up, the (last part of the) transfer, and the rule."""

    wake: int
    transfer: int
    lags: WaitLags


class Graph(Struct, frozen=True):
    """Activities in an order in which each comes after those it waits for; the last one ends the run.

    `waits` by the number of their call; `teams` are the shares of each kernel that was forked.
    """

    activities: tuple[Activity, ...]
    waits: dict[int, Wait]
    teams: tuple[tuple[int, ...], ...]

    @property
    def cycles(self) -> int:
        """When the last activity ends."""
        return self.activities[-1].end_cycles if self.activities else 0


def durations(graph: Graph) -> list[int]:
    """What every activity took."""
    return [activity.cycles for activity in graph.activities]


def retimed(graph: Graph, cycles: Sequence[int]) -> list[int]:
    """The end of every activity, if each takes `cycles` and begins when those it comes after have ended.

    Whether a wait finds its transfer over is decided anew, by the rule of the machine. With the cycles of
    the run itself these are the ends of the run.
    """
    ends: list[int] = []
    woken: dict[int, int] = {}
    for number, activity in enumerate(graph.activities):
        start = max([ends[other] for other in activity.after], default=0)
        wait = graph.waits.get(number)
        if wait is not None:
            called, woken[wait.wake] = wait.lags.of(ends[wait.transfer] - start)
            ends.append(start + called)
        else:
            ends.append(start + woken.pop(number, cycles[number]))
    return ends


def graph_of(slices: Iterable[Slice], lags: Lags) -> Graph:
    """The graph of a run from its slices. Where `lags` are not those of the run, sums stay exact: what the
    trace shows goes before."""
    return _Builder(sorted_slices(slices), lags).graph()


@dataclass(slots=True)
class _Moved:
    """A transfer: its slice, its number on its channel, where it is cut, and the activities of its parts."""

    event: Slice
    channel: list[_Moved]
    number: int
    is_udma: bool
    cuts: set[int] = field(default_factory=set)
    parts: dict[int, int] = field(default_factory=dict)
    """End of a part -> number of its activity."""


class _Builder:
    """Walks along core 0 and emits what it does, and what this makes others do."""

    def __init__(self, slices: Sequence[Slice], lags: Lags) -> None:
        self._lags = lags
        cores: dict[int, list[Slice]] = {}
        channels: dict[str, list[_Moved]] = {}
        self._moved: dict[Work, list[_Moved]] = {}
        for event in slices:
            name = track_name(event.track)
            if name.family == CORE:
                cores.setdefault(name.index, []).append(event)
            elif name.family in (DMA, UDMA) and event.kind == TRANSFER:
                channel = channels.setdefault(event.track, [])
                channel.append(_Moved(event, channel, len(channel), name.family == UDMA))
                self._moved.setdefault(event.work, []).append(channel[-1])
        for moved in self._moved.values():
            moved.sort(key=_start_of)
        self._channels = list(channels.values())
        self._master = cores[min(cores)] if cores else []
        self._shares = {
            track_name(run[0].track).label: [event for event in reversed(run) if event.kind == COMPUTE]
            for index, run in sorted(cores.items())
            if index != min(cores)
        }
        """Kernels of the other cores, the next one last."""
        self._core = track_name(self._master[0].track).label if self._master else ""
        self._activities: list[Activity] = []
        self._waits: dict[int, Wait] = {}
        self._teams: list[tuple[int, ...]] = []
        self._heads: tuple[int, ...] = ()
        """What core 0 comes after now."""
        self._programs = self._programmed()
        self._ended = {work: sorted(moved, key=_end_of) for work, moved in self._moved.items()}
        self._staged: dict[str, list[_Moved]] = {}
        """What is copied between L3 and L2 for one op and waited for by another."""
        for item in (item for channel in self._channels for item in channel if item.is_udma):
            self._staged.setdefault(item.event.work.what, []).append(item)
        self._blocks = dict(self._blocked())

    def graph(self) -> Graph:
        """Emit everything."""
        at = 0
        while at < len(self._master):
            at = self._emit(at)
        return Graph(tuple(self._activities), self._waits, tuple(self._teams))

    # What belongs to what.

    def _programmed(self) -> dict[int, list[_Moved]]:
        """By slice of core 0 that programs transfers those it programs: a channel takes them in order."""
        programs: dict[int, list[tuple[Work, list[int]]]] = {}
        for number, event in enumerate(self._master):
            moved = self._moved.get(event.work, []) if event.kind == "dma_program" else []
            first = bisect_left(moved, event.start_cycles, key=_start_of)
            if first < len(moved):
                of_channel = programs.setdefault(id(moved[first].channel), [])
                if not of_channel or of_channel[-1][0] != event.work:
                    of_channel.append((event.work, []))
                of_channel[-1][1].append(number)
        by_cycle: dict[int, list[_Moved]] = {}
        for channel in self._channels:
            runs = iter(programs.get(id(channel), ()))
            for work, group in groupby(channel, key=lambda item: item.event.work):
                items = list(group)
                numbers = next((numbers for of, numbers in runs if of == work), [])
                for place, item in enumerate(items):
                    if numbers:
                        at = numbers[place * len(numbers) // len(items)]
                        by_cycle.setdefault(at, []).append(item)
        return by_cycle

    def _blocked(self) -> Iterator[tuple[int, tuple[_Moved, int]]]:
        """Of slices of core 0 that wait for room in a queue: the transfer in the way, which is cut there.

        In the way of a command is the one before it, in whatever direction, until its channel takes it.
        """
        pushed: list[_Moved] = []
        for at, programs in sorted(self._programs.items()):
            pushed += programs
            event = self._master[min(at + 1, len(self._master) - 1)]
            is_wait = event.kind == "dma_wait" and event.work == programs[-1].event.work
            if is_wait and programs[-1].event.start_cycles >= event.end_cycles:
                for item in (*pushed[-2:-1], pushed[-1]):
                    before = bisect_left(item.channel, event.end_cycles, key=_start_of) - 1
                    if before >= 0 and _end_of(item.channel[before]) >= event.end_cycles:
                        item.channel[before].cuts.add(event.end_cycles)
                        yield at + 1, (item.channel[before], event.end_cycles)
                        break

    def _awaited(self, event: Slice) -> _Moved | None:
        """The transfer that a wait was for: the last of its work that had ended."""
        named = self._ended.get(event.work) or self._staged.get(event.work.what, [])
        ended = [item for item in named if item.parts]
        until = event.end_cycles
        number = bisect_right(ended, until, key=_end_of)
        woken = [
            item
            for item in ended[max(0, number - 3) : number]
            if _end_of(item) == until - self._wait_lags(item).wake_cycles
        ]
        return [*ended[:number][-1:], *woken][-1] if number else None

    # What is emitted.

    def _add(
        self,
        resource: str,
        kind: str,
        work: Work,
        span: tuple[int, int],
        after: Iterable[int],
        stalls: tuple[tuple[str, int], ...] = (),
        transfer: int = -1,
    ) -> int:
        """Append an activity; returns its number."""
        self._activities.append(Activity(resource, kind, work, *span, tuple(after), stalls, transfer))
        return len(self._activities) - 1

    def _emit(self, at: int) -> int:
        """Emit what begins with slice `at` of core 0; returns the number of the slice behind it."""
        event = self._master[at]
        if event.kind == "dma_program":
            return self._emit_program(at)
        if at in self._blocks:
            self._wait_for_room(event, *self._blocks[at])
        elif event.kind == "dma_wait" and (awaited := self._awaited(event)):
            self._emit_wait(event, awaited)
        elif event.kind == "fork" and (size := self._fork_size(at)):
            self._emit_kernel(self._master[at : at + size])
            return at + size
        else:
            self._step(event, event.start_cycles, event.end_cycles)
        return at + 1

    def _step(self, event: Slice, start_cycles: int, end_cycles: int) -> None:
        """Core 0 does a part of a slice that depends on nobody."""
        if start_cycles < end_cycles:
            resource = FABRIC if event.kind == "offload" else self._core
            span = start_cycles, end_cycles
            self._heads = (self._add(resource, event.kind, event.work, span, self._heads, event.stalls),)

    def _now(self) -> int:
        """When core 0 goes on."""
        return max((self._activities[number].end_cycles for number in self._heads), default=0)

    def _wait_for_room(self, event: Slice, item: _Moved, cut: int) -> None:
        """Core 0 goes on when a transfer has come to `cut`."""
        part = item.parts.get(cut)
        if part is not None:
            self._heads = (*self._heads, part)
        else:
            self._step(event, event.start_cycles, event.end_cycles)

    def _wait_lags(self, item: _Moved) -> WaitLags:
        return self._lags.udma_wait if item.is_udma else self._lags.dma_wait

    def _emit_wait(self, event: Slice, awaited: _Moved) -> None:
        """The call of a wait, and the wake-up behind the transfer."""
        start, end, over = event.start_cycles, event.end_cycles, awaited.event.end_cycles
        lags = self._wait_lags(awaited)
        call_cycles, wake_cycles = lags.of(over - start)
        called, woken = min(end, start + call_cycles), min(end, over + wake_cycles)
        if max(called, woken) < end:  # lags of another machine: the trace goes before
            called, woken = (end, woken) if over <= start + lags.check_cycles else (called, end)
        call = self._add(self._core, "dma_wait", event.work, (start, called), self._heads)
        transfer = awaited.parts[over]
        wake = self._add(self._core, "dma_wait", event.work, (over, max(over, woken)), [transfer])
        self._waits[call] = Wait(wake, transfer, lags)
        self._heads = (call, wake)

    def _fork_size(self, at: int) -> int:
        """Slices of core 0 from the fork of a kernel to its join; 0 if it is the way back from one."""
        event = self._master[at]
        same = [item.kind for item in self._master[at + 1 : at + 3] if item.work == event.work]
        if same[:1] == [COMPUTE]:
            return 3 if same[1:] == ["barrier"] else 2
        return 2 if same[:1] == ["barrier"] else 0

    def _emit_kernel(self, group: Sequence[Slice]) -> None:
        """Fork, a share on every core of the team, and the wake-up behind the last."""
        fork, last = group[0], group[-1]
        shares = [(self._core, item) for item in group if item.kind == COMPUTE]
        for label, run in self._shares.items():
            while run and run[-1].start_cycles < last.end_cycles:
                shares.append((label, run.pop()))
        ends = []
        for label, share in shares:
            span = fork.start_cycles, share.start_cycles
            forked = self._add(label, "fork", fork.work, span, self._heads)
            span = share.start_cycles, share.end_cycles
            ends.append(self._add(label, COMPUTE, share.work, span, [forked], share.stalls))
        self._teams.append(tuple(ends))
        if not shares or shares[0][0] != self._core:
            span = fork.start_cycles, fork.end_cycles
            ends.append(self._add(self._core, "fork", fork.work, span, self._heads))
        self._heads = tuple(ends)
        if (over := self._now()) < last.end_cycles:
            self._heads = (self._add(self._core, "barrier", fork.work, (over, last.end_cycles), ends),)

    def _emit_program(self, at: int) -> int:
        """Core 0 programs a transfer, command by command, and each begins; returns the next slice."""
        event = self._master[at]
        moved = self._programs.get(at, [])
        begin, following = event.start_cycles, at + 1
        for number, (pushed, item) in enumerate(zip(self._pushes(event, moved), moved, strict=True)):
            free = begin + self._lags.order_cycles if item.is_udma else pushed
            self._step(event, begin, min(free, pushed))
            if free < pushed and not self._waits_for_bus(item, pushed):
                self._step(event, free, pushed)
            if number == len(moved) - 1 and following in self._blocks:
                self._wait_for_room(self._master[following], *self._blocks[following])
                following += 1
            self._emit_moved(item)
            begin = pushed
        self._step(event, begin, event.end_cycles)
        return following

    def _pushes(self, event: Slice, moved: Sequence[_Moved]) -> list[int]:
        """When core 0 has programmed each command, the last at the end of the slice."""
        pushes = []
        until, left = event.start_cycles, len(moved)
        for item in moved:
            left -= 1
            if item.is_udma:
                # One of the orders before it has to leave the queue first.
                ahead = item.number - self._lags.queued_orders
                room = item.channel[ahead].event.start_cycles if ahead >= 0 else 0
                until = max(until + self._lags.order_cycles, room)
            else:
                until = event.end_cycles - left * self._lags.next_command_cycles
            pushes.append(max(event.start_cycles, min(until, event.end_cycles, item.event.start_cycles)))
        return [*pushes[:-1], event.end_cycles] if pushes else []

    def _waits_for_bus(self, item: _Moved, pushed: int) -> bool:
        """Whether core 0 could push an order only when one before it had ended; it then comes after that."""
        ahead = item.number - self._lags.queued_orders - 1
        part = item.channel[ahead].parts.get(pushed) if ahead >= 0 else None
        if part is not None:
            self._heads = (*self._heads, part)
        return part is not None

    def _emit_moved(self, item: _Moved) -> None:
        """A transfer behind its start-up and the one before it on its channel."""
        event, pushed, label = item.event, self._now(), track_name(item.event.track).label
        start = event.start_cycles
        before = item.channel[item.number - 1] if item.number else None
        queued = list(before.parts.values())[-1:] if before is not None else []
        free = before.event.end_cycles if before is not None else 0
        up = min(start, pushed + (0 if item.is_udma else self._lags.start_up_cycles))
        if max(up, free) < start:
            up = start
        after = list(self._heads)
        if pushed < up:
            after = [self._add(label, START_UP, event.work, (pushed, up), after)]
        after += queued
        for end in sorted({*item.cuts, event.end_cycles}):
            span = start, end
            number = self._add(label, TRANSFER, event.work, span, after, transfer=item.number)
            item.parts[end] = number
            start, after = end, [number]


def _start_of(item: _Moved) -> int:
    return item.event.start_cycles


def _end_of(item: _Moved) -> int:
    return item.event.end_cycles

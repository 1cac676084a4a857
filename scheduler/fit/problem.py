# SPDX-License-Identifier: Apache-2.0
"""A graph of tasks with sizes and prices, and what decisions about its buffers come to: bytes, cycles, cost.

Three decisions: a group of forward tasks is done *again* for the tasks behind it, as
`trainlib.training.recompute` does it; a buffer is *moved*: it lives in L3, is copied to L2 before a task
that uses it and back behind one that writes it, as `scheduler.memory.l2_staging` does it; and a task
*streams* some of its buffers that are moved, as `scheduler.memory.offchip_streaming` does it: in their place
slots lie in L2. A copy is hidden behind the neighbouring task, in which it lies in L2 too, or, if that has no
room, or streams the buffer itself, *exposed*: the cluster waits.

What a group is made again from may be moved: what is done again then has a copy of its own, which the
cluster waits for, unless one lies in L2 from task to task there. Between two tasks with only one, or two,
between them a copy that is hidden on all sides stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from configs.values import Struct

NO_GROUP = NEVER = -1

Copy = tuple[int, int]
"""A copy of a buffer beside a task that uses it: (buffer, task)."""

WHOLE = -1
"""The way of a task that streams nothing."""

MOST_FORCED = 2
"""Of the tasks that have to stream something, those for which it is chosen one by one if a buffer is it."""


class Buffer(Struct, frozen=True):
    """`size_bytes` of one storage. `given` lives from the start, `kept` to the end of the iteration.

    `copy_cycles` is one transfer between L3 and L2, which costs `copy_cost` beside its time; `movable` says
    whether it may live in L3.
    """

    name: str
    size_bytes: int
    given: bool = False
    kept: bool = False
    copy_cycles: int = 0
    copy_cost: int = 0
    movable: bool = True


class Stream(Struct, frozen=True):
    """A way to do a task: these buffers, which live in L3, are moved in parts through `slot_bytes` of L2.

    The transfers take `bus_cycles` of its cycles.
    """

    buffers: frozenset[int]
    slot_bytes: int
    cycles: int
    cost: int = 0
    bus_cycles: int = 0

    @property
    def free_cycles(self) -> int:
        """For how long a copy beside it may have the bus."""
        return max(0, self.cycles - self.bus_cycles)


class Task(Struct, frozen=True):
    """One op: numbers of the buffers it reads and writes; of `group` >= 0 it may be done again.

    `redirects`: it reads what was made again. `takes` are buffers whose bytes its only result may take over
    if they end here. `scratch_bytes` are needed when it is done again. `cost` is what it costs beside its
    time. `streams` are other ways to do it than with all its buffers in L2.
    """

    name: str
    cycles: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    group: int = NO_GROUP
    redirects: bool = False
    takes: tuple[int, ...] = ()
    scratch_bytes: int = 0
    cost: int = 0
    streams: tuple[Stream, ...] = ()

    def way(self, number: int) -> Stream:
        """One of `streams`, or it as a whole."""
        return self.streams[number] if number != WHOLE else Stream(frozenset(), 0, self.cycles, self.cost)

    @property
    def uses(self) -> tuple[int, ...]:
        """Buffers it reads or writes, each once."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))


class Run(Struct, frozen=True):
    """Tasks `first` to `last` all use a buffer, which stays in L2 meanwhile; `wrote` is the last to write."""

    first: int
    last: int
    wrote: int


class Visits(Struct, frozen=True):
    """When a moved buffer has to be in L2 as a whole: not for the tasks that are `streaming` it.

    `given`, `kept`: it is in L3 before the first of the runs, and has to be behind the last.
    """

    runs: tuple[Run, ...]
    given: bool
    kept: bool
    streaming: frozenset[int]

    def may_arrive(self, run: Run) -> bool:
        """Whether a copy for a run may arrive during the task before."""
        return run.first > 0 and run.first - 1 not in self.streaming

    def may_leave(self, run: Run, wrote: int) -> bool:
        """Whether what was last written by a task may leave during the task behind a run."""
        return wrote == run.last and run.last + 1 not in self.streaming


@dataclass(frozen=True)
class Problem:
    """Tasks in order, and the bytes of L2 and L3 there are; `groups` are named by number.

    What is to be small is `cycle_cost` for each cycle, and what tasks and copies cost beside their time: the
    cycles, as it stands. `most_cycles` is the deadline, `set_up_cycles` what the cluster waits for of a copy
    that is hidden.
    """

    tasks: tuple[Task, ...]
    buffers: tuple[Buffer, ...]
    groups: tuple[str, ...]
    l2_bytes: int
    l3_bytes: int
    cycle_cost: int = 1
    most_cycles: int | None = None
    set_up_cycles: int = 0

    def hidden_cycles(self, buffer: Buffer) -> int:
        """Of a copy, what a task beside it may hide."""
        return max(0, buffer.copy_cycles - self.set_up_cycles)

    @cached_property
    def makers(self) -> Mapping[int, int]:
        """Buffer -> the task that makes it and may be done again."""
        return {
            buffer: number
            for number, task in enumerate(self.tasks)
            if task.group != NO_GROUP
            for buffer in task.writes
            if not self.buffers[buffer].given
        }

    @cached_property
    def uses(self) -> Mapping[int, tuple[int, ...]]:
        """Buffer -> tasks that use it, in order."""
        found: dict[int, list[int]] = {}
        for number, task in enumerate(self.tasks):
            for buffer in task.uses:
                found.setdefault(buffer, []).append(number)
        return {buffer: tuple(numbers) for buffer, numbers in found.items()}

    @property
    def cycles(self) -> int:
        """Of all tasks, each once."""
        return sum(task.cycles for task in self.tasks)

    @property
    def cost(self) -> int:
        """Of all tasks, each once."""
        return self.cycle_cost * self.cycles + sum(task.cost for task in self.tasks)

    @cached_property
    def _visits(self) -> dict[tuple[int, frozenset[int]], Visits]:
        return {}

    def visits(self, buffer: int, streaming: frozenset[int] = frozenset()) -> Visits:
        """Of a buffer that is moved, and that these tasks stream."""
        key = buffer, streaming
        if key not in self._visits:
            self._visits[key] = self._visits_of(*key)
        return self._visits[key]

    def _visits_of(self, buffer: int, streaming: frozenset[int]) -> Visits:
        runs: list[Run] = []
        for use in self.uses.get(buffer, ()):
            if use in streaming:
                continue
            wrote = use if buffer in self.tasks[use].writes else NEVER
            if runs and runs[-1].last == use - 1:
                runs[-1] = Run(runs[-1].first, use, max(runs[-1].wrote, wrote))
            else:
                runs.append(Run(use, use, wrote))
        item = self.buffers[buffer]
        return Visits(
            tuple(runs),
            item.given or any(runs and number < runs[0].first for number in streaming),
            item.kept or any(runs and number > runs[-1].last for number in streaming),
            streaming,
        )

    def patterns(self, buffer: int) -> tuple[frozenset[int], ...]:
        """The sets of tasks that may stream a buffer if it is moved.

        None, all that can, or all that have no room for their buffers as a whole; of few of them any.
        """
        able = frozenset(
            number
            for number in self.uses.get(buffer, ())
            if any(buffer in stream.buffers for stream in self.tasks[number].streams)
        )
        forced = sorted(number for number in able if self._whole_bytes(number) > self.l2_bytes)
        counts = range(1, len(forced)) if len(forced) <= MOST_FORCED else ()
        some = [frozenset(one) for count in counts for one in combinations(forced, count)]
        return tuple(dict.fromkeys((frozenset[int](), *some, frozenset(forced), able)))

    def _whole_bytes(self, task: int) -> int:
        return sum(self.buffers[buffer].size_bytes for buffer in self.tasks[task].uses)


class Decisions(Struct, frozen=True):
    """Groups done again, buffers moved, and copies that are not hidden, before (`late`) or behind a task.

    `streams` are (task, number of the way) of those that are not done as a whole.
    """

    again: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()
    late: frozenset[Copy] = frozenset()
    """Copies to L2 that arrive between the task before and the one that needs them."""
    early: frozenset[Copy] = frozenset()
    """Copies to L3 that leave between the task that wrote them and the next one."""
    streams: frozenset[tuple[int, int]] = frozenset()

    def streaming(self, problem: Problem, buffer: int) -> frozenset[int]:
        """The tasks that stream a buffer."""
        return frozenset(
            task for task, number in self.streams if buffer in problem.tasks[task].way(number).buffers
        )


class Entry(Struct, frozen=True):
    """A task in its turn: for the first time or `again`; buffers of second versions are numbered from behind.

    The second version of buffer b is ``~b``.
    """

    task: int
    again: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What decisions come to: bytes of L2 at each turn, bytes of L3, cycles and cost of the iteration."""

    entries: tuple[Entry, ...]
    live_bytes: tuple[int, ...]
    l3_bytes: int
    cycles: int
    cost: int

    @property
    def peak_bytes(self) -> int:
        """Most bytes of L2 at one time."""
        return max(self.live_bytes, default=0)

    def keeps(self, problem: Problem) -> bool:
        """Whether it is within L2, L3 and the deadline of a problem."""
        in_time = problem.most_cycles is None or self.cycles <= problem.most_cycles
        return in_time and self.peak_bytes <= problem.l2_bytes and self.l3_bytes <= problem.l3_bytes


class NotAllowedError(Exception):
    """Decisions that contradict each other.

    What is made again is moved, or is read but no longer in L3; or what is streamed is not moved.
    """


def timeline(problem: Problem, again: Collection[int]) -> list[Entry]:
    """All tasks in order, those done again directly before the first that needs them, their sources first."""
    entries: list[Entry] = []
    second: set[int] = set()
    makers = {buffer: task for buffer, task in problem.makers.items() if problem.tasks[task].group in again}

    def version(buffer: int) -> int:
        if buffer in makers and buffer not in second:
            task = problem.tasks[makers[buffer]]
            reads = tuple(version(source) for source in task.reads)
            made = tuple(made for made in task.writes if not problem.buffers[made].given)
            second.update(made)
            entries.append(Entry(makers[buffer], True, reads, tuple(~item for item in made)))
        return ~buffer if buffer in second else buffer

    for number, task in enumerate(problem.tasks):
        reads = tuple(version(buffer) for buffer in task.reads) if task.redirects else task.reads
        entries.append(Entry(number, False, reads, task.writes))
    return entries


def evaluate(problem: Problem, decisions: Decisions) -> Outcome:
    """Bytes, cycles and cost of some decisions. Raises `NotAllowedError`."""
    entries = timeline(problem, decisions.again)
    lives = lives_of(problem, entries)
    live = [0] * (len(entries) + 1)
    copies = Copies([entry.task if not entry.again else NEVER for entry in entries], len(problem.tasks))
    again = {turn: entry for turn, entry in enumerate(entries) if entry.again}
    chosen = dict(decisions.streams)
    ways = [task.way(chosen.get(number, WHOLE)) for number, task in enumerate(problem.tasks)]
    streaming: dict[int, list[int]] = {}
    for number in sorted(chosen):
        for buffer in ways[number].buffers:
            streaming.setdefault(buffer, []).append(number)
    if not decisions.moved >= streaming.keys():
        raise NotAllowedError("only a buffer in L3 can be streamed")
    for buffer, (first, last) in lives.items():
        item = problem.buffers[named(buffer)]
        there: Iterable[int] = range(first, last + 1)
        if buffer in decisions.moved:
            made = problem.makers.get(buffer)
            if made is not None and problem.tasks[made].group in decisions.again:
                raise NotAllowedError(item.name)
            visits = problem.visits(buffer, frozenset(streaming.get(buffer, ())))
            there = copies.of(problem, buffer, visits, decisions)
            readers = [turn for turn in again if buffer in again[turn].reads]
            there |= copies.again(problem, buffer, visits, readers)
        for turn in there:
            live[turn] += item.size_bytes
    for turn, entry in enumerate(entries):
        task, way = problem.tasks[entry.task], ways[entry.task] if not entry.again else None
        live[turn] += way.slot_bytes if way is not None else task.scratch_bytes
        streamed = way.buffers if way is not None else frozenset()
        if _takes_over(task, entry, turn, lives, decisions.moved, streamed):
            live[turn] -= problem.buffers[named(entry.writes[0])].size_bytes
    done = [problem.tasks[entry.task].way(WHOLE) if entry.again else ways[entry.task] for entry in entries]
    cycles = sum(way.cycles for way in done) + copies.exposed_cycles
    for way, hidden_cycles in zip(ways, copies.hidden_cycles, strict=True):
        cycles += max(0, hidden_cycles - way.free_cycles)
    l3_bytes = sum(problem.buffers[buffer].size_bytes for buffer in decisions.moved)
    cost = problem.cycle_cost * cycles + sum(way.cost for way in done)
    return Outcome(tuple(entries), tuple(live), l3_bytes, cycles, cost + copies.cost)


def named(buffer: int) -> int:
    """The buffer that a version is of."""
    return ~buffer if buffer < 0 else buffer


def lives_of(problem: Problem, entries: list[Entry]) -> dict[int, tuple[int, int]]:
    """First and last turn of every version; one turn behind the last entry is "after the iteration"."""
    lives: dict[int, tuple[int, int]] = {}
    for turn, entry in enumerate(entries):
        for buffer in (*entry.reads, *entry.writes):
            lives[buffer] = lives.get(buffer, (turn, turn))[0], turn
    for number, item in enumerate(problem.buffers):
        if item.given or (item.kept and number in lives):
            lives[number] = 0 if item.given else lives[number][0], len(entries)
    return lives


def _takes_over(
    task: Task,
    entry: Entry,
    turn: int,
    lives: Mapping[int, tuple[int, int]],
    moved: Collection[int],
    streamed: Collection[int],
) -> bool:
    """Whether the result of an entry takes over the bytes of a buffer that ends there, and has its home."""
    target = entry.writes[0] if entry.writes else NEVER
    if not task.takes or lives[target][0] != turn or target in streamed:
        return False
    read = dict(zip(task.reads, entry.reads, strict=True))
    sources = [read[buffer] for buffer in task.takes if buffer not in streamed]
    return any(lives[source][1] == turn and (source in moved) == (target in moved) for source in sources)


class Copies:
    """When moved buffers are in L2, and the cycles of their copies: exposed, and hidden behind each task.

    `turns` has the task of every turn, `NEVER` for one done again.
    """

    def __init__(self, turns: list[int], tasks: int) -> None:
        self._turns = {task: turn for turn, task in enumerate(turns) if task != NEVER}
        self._last = tasks - 1
        self.exposed_cycles = self.cost = 0
        self.hidden_cycles = [0] * tasks

    def of(self, problem: Problem, buffer: int, visits: Visits, decisions: Decisions) -> set[int]:
        """Turns at which a moved buffer lies in L2; its copies are added to the cycles."""
        item, turns = problem.buffers[buffer], self._turns
        there: set[int] = set()
        before, wrote = None, NEVER
        for run in visits.runs:
            loads = visits.may_arrive(run) and (buffer, run.first) not in decisions.late
            if before is not None:
                stores = visits.may_leave(before, wrote) and (buffer, before.last) not in decisions.early
                if run.first - before.last - 1 <= loads + stores and (loads or stores):
                    there.update(range(turns[before.last], turns[run.first]))
                else:
                    self._store(problem, item, wrote, before.last, stores, there)
                    wrote = NEVER
                    self._load(problem, item, run.first, loads, there)
            elif visits.given:
                self._load(problem, item, run.first, loads, there)
            there.update(range(turns[run.first], turns[run.last] + 1))
            before, wrote = run, max(wrote, run.wrote)
        if before is not None and visits.kept:
            stores = before.last < self._last and visits.may_leave(before, wrote)
            stores = stores and (buffer, before.last) not in decisions.early
            self._store(problem, item, wrote, before.last, stores, there)
        return there

    def again(self, problem: Problem, buffer: int, visits: Visits, turns: list[int]) -> set[int]:
        """The turns, in which tasks done again read a moved buffer; its copies are added to the cycles."""
        item = problem.buffers[buffer]
        for turn in turns:
            if copied_again(item, visits, turn, self._turns):
                self.exposed_cycles += item.copy_cycles
                self.cost += item.copy_cost
        return set(turns)

    def _hide(self, problem: Problem, item: Buffer, task: int) -> None:
        hidden = problem.hidden_cycles(item)
        self.hidden_cycles[task] += hidden
        self.exposed_cycles += item.copy_cycles - hidden

    def _load(self, problem: Problem, item: Buffer, task: int, hidden: bool, there: set[int]) -> None:
        self.cost += item.copy_cost
        if hidden:
            there.add(self._turns[task] - 1)
            self._hide(problem, item, task - 1)
        else:
            self.exposed_cycles += item.copy_cycles

    def _store(
        self, problem: Problem, item: Buffer, wrote: int, last: int, hidden: bool, there: set[int]
    ) -> None:
        """What was written in a run that ends with `last`; behind a task that only reads it, it is hidden."""
        if wrote == NEVER:
            return
        self.cost += item.copy_cost
        if hidden:
            there.add(self._turns[last] + 1)
        if hidden or wrote < last:
            self._hide(problem, item, wrote + 1)
        else:
            self.exposed_cycles += item.copy_cycles


def copied_again(item: Buffer, visits: Visits, turn: int, turns: Mapping[int, int]) -> bool:
    """Whether a task done again at a turn needs a copy of a moved buffer of its own; `turns` are of tasks.

    Raises `NotAllowedError` where the buffer has been written and, as no task needs it later, is not in L3.
    """
    runs = visits.runs
    if any(turns[run.first] <= turn <= turns[run.last] for run in runs):
        return False
    written = any(run.wrote != NEVER and turns[run.first] < turn for run in runs)
    if written and not visits.kept and all(turns[run.first] < turn for run in runs):
        raise NotAllowedError(item.name)
    return True

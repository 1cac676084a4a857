# SPDX-License-Identifier: Apache-2.0
"""A graph of tasks with sizes and prices, and what decisions about its buffers come to: bytes, cycles, cost.

Two decisions: a group of forward tasks is done *again* for the tasks behind it, as
`trainlib.training.recompute` does it, and a buffer is *moved*: it lives in L3, is copied to L2 before a task
that uses it and back behind one that writes it, as `scheduler.memory.l2_staging` does it. A copy is hidden
behind the neighbouring task, in which it lies in L2 too, or, if that has no room, *exposed*: the cluster
waits.

What a group is made again from may be moved: what is done again then has a copy of its own, which the
cluster waits for, unless one lies in L2 from task to task there. Between two tasks with only one, or two,
between them a copy that is hidden on all sides stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

NO_GROUP = NEVER = -1

Copy = tuple[int, int]
"""A copy of a buffer beside a task that uses it: (buffer, task)."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """`size_bytes` of one storage. `given` lives from the start, `kept` to the end of the iteration.

    `copy_cycles` is one transfer between L3 and L2, which costs `copy_cost` beside its time; `movable` says
    whether it may live in L3, `moved` that it has to.
    """

    name: str
    size_bytes: int
    given: bool = False
    kept: bool = False
    copy_cycles: int = 0
    copy_cost: int = 0
    movable: bool = True
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One op: numbers of the buffers it reads and writes; of `group` >= 0 it may be done again.

    `redirects`: it reads what was made again. `takes` are buffers whose bytes its only result may take over
    if they end here. `scratch_bytes` are needed when it is done again, `window_bytes` always. `cost` is what
    it costs beside its time.
    """

    name: str
    cycles: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    group: int = NO_GROUP
    redirects: bool = False
    takes: tuple[int, ...] = ()
    scratch_bytes: int = 0
    window_bytes: int = 0
    cost: int = 0

    @property
    def uses(self) -> tuple[int, ...]:
        """Buffers it reads or writes, each once."""
        return tuple(dict.fromkeys((*self.reads, *self.writes)))


@dataclass(frozen=True, slots=True)
class Run:
    """Tasks `first` to `last` all use a buffer, which stays in L2 meanwhile; `wrote` is the last to write."""

    first: int
    last: int
    wrote: int


@dataclass(frozen=True)
class Problem:
    """Tasks in order, and the bytes of L2 and L3 there are; `groups` are named by number.

    What is to be small is `cycle_cost` for each cycle, and what tasks and copies cost beside their time: the
    cycles, as it stands. `most_cycles` is the deadline, `set_up_cycles` what the cluster waits for of a copy
    that is hidden. `streamed` lives in L3 and is streamed by every task that can; tasks do not name it.
    """

    tasks: tuple[Task, ...]
    buffers: tuple[Buffer, ...]
    groups: tuple[str, ...]
    l2_bytes: int
    l3_bytes: int
    cycle_cost: int = 1
    most_cycles: int | None = None
    set_up_cycles: int = 0
    streamed: tuple[str, ...] = ()

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
    def runs(self) -> Mapping[int, tuple[Run, ...]]:
        """Buffer -> its runs, in order."""
        found: dict[int, list[Run]] = {}
        for buffer, uses in self.uses.items():
            runs = found.setdefault(buffer, [])
            for use in uses:
                wrote = use if buffer in self.tasks[use].writes else NEVER
                if runs and runs[-1].last == use - 1:
                    runs[-1] = Run(runs[-1].first, use, max(runs[-1].wrote, wrote))
                else:
                    runs.append(Run(use, use, wrote))
        return {buffer: tuple(runs) for buffer, runs in found.items()}


@dataclass(frozen=True, slots=True)
class Decisions:
    """Groups done again, buffers moved, and copies that are not hidden, before (`late`) or behind a task."""

    again: frozenset[int] = frozenset()
    moved: frozenset[int] = frozenset()
    late: frozenset[Copy] = frozenset()
    """Copies to L2 that arrive between the task before and the one that needs them."""
    early: frozenset[Copy] = frozenset()
    """Copies to L3 that leave between the task that wrote them and the next one."""


@dataclass(frozen=True, slots=True)
class Entry:
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
    """Decisions that contradict each other: what is made again is moved, or is read but no longer in L3."""


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
    lives = _lives(problem, entries)
    live = [0] * (len(entries) + 1)
    copies = Copies([entry.task if not entry.again else NEVER for entry in entries], len(problem.tasks))
    again = {turn: entry for turn, entry in enumerate(entries) if entry.again}
    for buffer, (first, last) in lives.items():
        item = problem.buffers[_named(buffer)]
        there: Iterable[int] = range(first, last + 1)
        if buffer in decisions.moved:
            made = problem.makers.get(buffer)
            if made is not None and problem.tasks[made].group in decisions.again:
                raise NotAllowedError(item.name)
            there = copies.of(problem, buffer, decisions)
            there |= copies.again(problem, buffer, [turn for turn in again if buffer in again[turn].reads])
        for turn in there:
            live[turn] += item.size_bytes
    for turn, entry in enumerate(entries):
        task = problem.tasks[entry.task]
        live[turn] += task.window_bytes + (task.scratch_bytes if entry.again else 0)
        if _takes_over(task, entry, turn, lives, decisions.moved):
            live[turn] -= problem.buffers[_named(entry.writes[0])].size_bytes
    cycles = sum(problem.tasks[entry.task].cycles for entry in entries) + copies.exposed_cycles
    for task, hidden_cycles in zip(problem.tasks, copies.hidden_cycles, strict=True):
        cycles += max(0, hidden_cycles - task.cycles)
    l3_bytes = sum(problem.buffers[buffer].size_bytes for buffer in decisions.moved)
    cost = problem.cycle_cost * cycles + sum(problem.tasks[entry.task].cost for entry in entries)
    return Outcome(tuple(entries), tuple(live), l3_bytes, cycles, cost + copies.cost)


def _named(buffer: int) -> int:
    """The buffer that a version is of."""
    return ~buffer if buffer < 0 else buffer


def _lives(problem: Problem, entries: list[Entry]) -> dict[int, tuple[int, int]]:
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
    task: Task, entry: Entry, turn: int, lives: Mapping[int, tuple[int, int]], moved: Collection[int]
) -> bool:
    """Whether the result of an entry takes over the bytes of a buffer that ends there, and has its home."""
    if not task.takes or lives[entry.writes[0]][0] != turn:
        return False
    read = dict(zip(task.reads, entry.reads, strict=True))
    sources = [read[buffer] for buffer in task.takes]
    return any(
        lives[source][1] == turn and (source in moved) == (entry.writes[0] in moved) for source in sources
    )


class Copies:
    """When moved buffers are in L2, and the cycles of their copies: exposed, and hidden behind each task.

    `turns` has the task of every turn, `NEVER` for one done again.
    """

    def __init__(self, turns: list[int], tasks: int) -> None:
        self._turns = {task: turn for turn, task in enumerate(turns) if task != NEVER}
        self._last = tasks - 1
        self.exposed_cycles = self.cost = 0
        self.hidden_cycles = [0] * tasks

    def of(self, problem: Problem, buffer: int, decisions: Decisions) -> set[int]:
        """Turns at which a moved buffer lies in L2; its copies are added to the cycles."""
        item, turns = problem.buffers[buffer], self._turns
        there: set[int] = set()
        before, wrote = None, NEVER
        for run in problem.runs.get(buffer, ()):
            loads = run.first > 0 and (buffer, run.first) not in decisions.late
            if before is not None:
                stores = wrote == before.last and (buffer, before.last) not in decisions.early
                if run.first - before.last - 1 <= loads + stores and (loads or stores):
                    there.update(range(turns[before.last], turns[run.first]))
                else:
                    self._store(problem, item, wrote, before.last, stores, there)
                    wrote = NEVER
                    self._load(problem, item, run.first, loads, there)
            elif item.given:
                self._load(problem, item, run.first, loads, there)
            there.update(range(turns[run.first], turns[run.last] + 1))
            before, wrote = run, max(wrote, run.wrote)
        if before is not None and item.kept:
            stores = wrote == before.last < self._last and (buffer, before.last) not in decisions.early
            self._store(problem, item, wrote, before.last, stores, there)
        return there

    def again(self, problem: Problem, buffer: int, turns: list[int]) -> set[int]:
        """The turns, in which tasks done again read a moved buffer; its copies are added to the cycles."""
        for turn in turns:
            if copied_again(problem, buffer, turn, self._turns):
                self.exposed_cycles += problem.buffers[buffer].copy_cycles
                self.cost += problem.buffers[buffer].copy_cost
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


def copied_again(problem: Problem, buffer: int, turn: int, turns: Mapping[int, int]) -> bool:
    """Whether a task done again at a turn needs a copy of a moved buffer of its own; `turns` are of tasks.

    Raises `NotAllowedError` where the buffer has been written and, as no task needs it later, is not in L3.
    """
    runs = problem.runs.get(buffer, ())
    if any(turns[run.first] <= turn <= turns[run.last] for run in runs):
        return False
    written = any(run.wrote != NEVER and turns[run.first] < turn for run in runs)
    if written and not problem.buffers[buffer].kept and all(turns[run.first] < turn for run in runs):
        raise NotAllowedError(problem.buffers[buffer].name)
    return True

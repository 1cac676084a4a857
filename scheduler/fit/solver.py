# SPDX-License-Identifier: Apache-2.0
"""The best decisions by OR-tools CP-SAT: what lies in L2 at every turn, as sums of what is decided.

Every turn that may be (`slots_of`) has a sum of bytes which is at most the L2 if the turn is taken; what may
be done again has a variable per turn, what may move one for each set of tasks that stream it and one for each
copy that may be hidden, and what a task may stream one for each way.
One worker, a fixed seed and a limit of deterministic time: the same answer in every run unless the clock ends
it.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

from configs.values import Struct, replace
from scheduler.fit.problem import (
    NEVER,
    Buffer,
    Decisions,
    NotAllowedError,
    Problem,
    Run,
    Visits,
    copied_again,
    evaluate,
)
from scheduler.fit.slots import first_readers, slots_of

SECONDS = 300.0
"""Of the clock, after which the search ends with what it has."""

EFFORT = 3.0
"""Deterministic time of CP-SAT for every second of the clock. An idle core does four to five: there it is the
same work in every run; on a slower one the clock ends it."""

HINT_SECONDS = 10.0
"""To find out what follows from the decisions the search begins with."""

Expression = Any
"""A sum of CP-SAT variables, or a number."""


class UndecidedError(Exception):
    """The time was over before decisions were found, or that there are none."""


class _Sum:
    """A long sum: factors by number of the variable, and a constant. OR-tools' own take long to add up."""

    __slots__ = ("constant", "factors")

    def __init__(self) -> None:
        self.factors: dict[int, int] = {}
        self.constant = 0

    def add(self, item: Expression, factor: int = 1) -> None:
        """Add an expression, a number or another sum so many times."""
        if isinstance(item, int):
            self.constant += factor * item
            return
        if isinstance(item, _Sum):
            self.constant += factor * item.constant
            terms = list(item.factors.items())
        else:
            terms, constant = _flat(item)
            self.constant += factor * constant
        for index, each in terms:
            self.factors[index] = self.factors.get(index, 0) + factor * each


def _flat(item: Expression) -> tuple[list[tuple[int, int]], int]:
    """Variables by number with their factors, and the constant, of an expression of OR-tools."""
    if hasattr(item, "get_integer_var_value_map"):  # until 9.11
        variables, constant = item.get_integer_var_value_map()
        return [(variable.index, each) for variable, each in variables.items()], constant
    from ortools.sat.python.cp_model_helper import FlatIntExpr

    flat = FlatIntExpr(item)
    return [(var.index, each) for var, each in zip(flat.vars, flat.coeffs, strict=True)], flat.offset


def _sum_of(*items: Expression) -> _Sum:
    """Of these expressions, to be added to others many times."""
    found = _Sum()
    for item in items:
        found.add(item)
    return found


class Solution(Struct, frozen=True):
    """Decisions, what they cost by the model of the search, and the least it could prove: cost (or bytes).

    `proved` says whether nothing is better, `interrupted` whether Ctrl-C ended the search.
    """

    decisions: Decisions
    value: int
    bound: int
    proved: bool
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """By how much of the value it may be too large."""
        return max(0.0, (self.value - self.bound) / self.value) if self.value else 0.0


class _Model:
    """The problem as CP-SAT has it; `smallest`: as few bytes of L2 as possible, at whatever cycles."""

    def __init__(self, problem: Problem, *, smallest: bool) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.slots = problem, slots_of(problem)
        self.cp = cp_model.CpModel()
        self.again = [self.cp.new_bool_var(f"again {name}") for name in problem.groups]
        self.taken = {
            turn: self.cp.new_bool_var(f"turn {turn}")
            for turn, slot in enumerate(self.slots.items)
            if slot.again
        }
        self.moved: dict[int, Any] = {}
        self.patterns: dict[int, dict[frozenset[int], Any]] = {}
        """Of what may move: whether it does, by the tasks that stream it."""
        self.ways: dict[tuple[int, int], Any] = {}
        """(task, number of the way) of what is not done as a whole."""
        self.shown: dict[tuple[str, int, int], list[Any]] = defaultdict(list)
        """Hidden copies, ("late" or "early", buffer, task): one variable is 1 where it is hidden."""
        self._sums = [_Sum() for _ in self.slots.items]
        self._end = _Sum()
        self._hidden: dict[int, list[tuple[int, Expression]]] = defaultdict(list)
        self._cycles: list[Expression] = []
        self._cost: list[Expression] = []
        """Beside what the cycles cost."""
        self._after: dict[tuple[int, bool], dict[int, Any]] = {}
        """(buffer, second version) -> by turn: whether what is done again then or later reads it."""
        self._repeats()
        for number in range(len(problem.buffers)):
            self._buffer(number)
        self._streams()
        self._scratch()
        self._take_over()
        self._limits(smallest=smallest)

    # What is done again

    def _repeats(self) -> None:
        problem, slots, cp = self.problem, self.slots, self.cp
        direct = first_readers(problem)
        readers: dict[int, list[int]] = defaultdict(list)
        for number, reader in enumerate(problem.tasks):
            for maker in {problem.makers[b] for b in reader.reads if b in problem.makers}:
                readers[maker].append(number)
        for task in {slot.task for slot in slots.items if slot.again}:
            chosen = self.again[problem.tasks[task].group]
            done: list[Expression] = []
            for turn in slots.repeats.get(task, ()):
                before, taken = slots.items[turn].before, self.taken[turn]
                needs = [
                    self.taken[at] for user in readers[task] if (at := slots.at(user, before)) is not None
                ]
                cp.add_implication(taken, chosen)
                if direct.get(task) == before:
                    cp.add(chosen <= sum(done) + taken)
                else:
                    cp.add(taken <= sum(needs))
                    for need in needs:
                        cp.add(chosen + need - 1 <= sum(done) + taken)
                done.append(taken)
            cp.add(sum(done) <= 1)
            self._cycles += [problem.tasks[task].cycles * taken for taken in done]
            self._cost += [problem.tasks[task].cost * taken for taken in done]
        self._too_deep(readers, direct)

    def _too_deep(self, readers: dict[int, list[int]], direct: dict[int, int]) -> None:
        """What is done again for a task so early that a source of it has no turn there needs it kept."""
        for task, users in readers.items():
            chosen = self.again[self.problem.tasks[task].group]
            for user in users:
                for turn in self.slots.repeats.get(user, ()):
                    before = self.slots.items[turn].before
                    early = before <= direct.get(task, len(self.problem.tasks))
                    if early and self.slots.at(task, before) is None:
                        self.cp.add(self.taken[turn] + chosen <= 1)

    # What lies in L2

    def _buffer(self, number: int) -> None:
        """Add the bytes of a buffer, both versions, to the sums of all turns."""
        problem, turns = self.problem, self.slots.of_task
        item, uses = problem.buffers[number], problem.uses.get(number, ())
        if not item.size_bytes or not (uses or item.given):
            return
        maker = problem.makers.get(number)
        chosen: Expression = self.again[problem.tasks[maker].group] if maker is not None else 0
        consumers = [
            turn
            for turn, slot in enumerate(self.slots.items)
            if slot.again and number in problem.tasks[slot.task].reads
        ]
        moved: Expression = 0
        if item.movable and uses:
            moved = self._moves(number, frozenset(consumers))
            if maker is not None:
                self.cp.add(moved + chosen <= 1)
        first = 0 if item.given else turns[uses[0]]
        plain = [use for use in uses if not problem.tasks[use].redirects]
        direct = [use for use in uses if problem.tasks[use].redirects]
        forward_end = turns[plain[-1]] if plain else first
        end = turns[direct[-1]] if direct else forward_end
        whole = item.given or item.kept
        late = [] if whole else self._later(number, [turn for turn in consumers if turn > end], 1 - chosen)
        kept = _sum_of(item.size_bytes * (1 - moved))
        first_version = _sum_of(item.size_bytes * (1 - chosen - moved))
        for turn in range(first, len(self.slots.items)):
            if whole or turn <= forward_end:
                self._sums[turn].add(kept)
            elif turn <= end:
                self._sums[turn].add(first_version)
            elif late and turn <= late[-1][0]:
                self._sums[turn].add(item.size_bytes * next(var for at, var in late if at >= turn))
        if whole:
            self._end.add(kept)
        if maker is not None:
            self._second(number, item.size_bytes, maker, end if direct else NEVER, consumers)

    def _moves(self, number: int, consumers: frozenset[int]) -> Any:
        """Whether a buffer moves; if so its copies are in L2, as far as tasks do not stream it."""
        item = self.problem.buffers[number]
        patterns = self.patterns[number] = {
            pattern: self.cp.new_bool_var(f"moved {item.name} {sorted(pattern)}")
            for pattern in self.problem.patterns(number)
        }
        moved = next(iter(patterns.values()))
        if len(patterns) > 1:
            moved = self.cp.new_bool_var(f"moved {item.name}")
            self.cp.add(sum(patterns.values()) == moved)
        self.moved[number] = moved
        for pattern, one in patterns.items():
            visits = self.problem.visits(number, pattern)
            self._from_copies(item, visits, consumers, one)
            _Copies(self, number, visits, one, consumers).add()
        return moved

    def _from_copies(self, item: Buffer, visits: Visits, consumers: Collection[int], moved: Any) -> None:
        """What is done again at these turns from a buffer, if that is moved: it is in L2 at that turn."""
        for turn in sorted(consumers):
            self._sums[turn].add(item.size_bytes * moved)
            try:
                copied = copied_again(item, visits, turn, self.slots.of_task)
            except NotAllowedError:
                self.cp.add(moved + self.taken[turn] <= 1)
                continue
            if copied:
                both = self.cp.new_bool_var(f"copied {item.name} {turn}")
                self.cp.add(both >= moved + self.taken[turn] - 1)
                self._cycles.append(item.copy_cycles * both)
                self.transfer(item, both)

    def _later(self, number: int, consumers: list[int], on: Expression, *, second: bool = False) -> list[Any]:
        """[(turn, variable)]: whether this version, the one there is if `on`, is read then or later."""
        found: list[Any] = []
        for turn in reversed(consumers):
            read = self.cp.new_bool_var(f"read {number} {second} {turn}")
            self.cp.add(read >= self.taken[turn] + on - 1)
            if found:
                self.cp.add(read >= found[-1][1])
            found.append((turn, read))
        self._after[number, second] = dict(found)
        return found[::-1]

    def _second(self, number: int, size_bytes: int, maker: int, end: int, consumers: list[int]) -> None:
        """The bytes of a second version: from the turn it is made in to the last that reads it."""
        chosen = self.again[self.problem.tasks[maker].group]
        made = self.slots.repeats.get(maker, ())
        if not made:
            return
        late = self._later(
            number, [turn for turn in consumers if turn > max(end, made[0])], chosen, second=True
        )
        done = _Sum()
        for turn in range(made[0], max(end, made[-1], late[-1][0] if late else 0) + 1):
            if turn in made:
                done.add(self.taken[turn])
            if turn <= end:
                self._sums[turn].add(done, size_bytes)
                continue
            there = [self.taken[turn]] if turn in made else []
            read = next((var for at, var in late if at >= turn), None)
            if read is not None:
                both = self.cp.new_bool_var(f"second {number} {turn}")
                need = _sum_of(both, 1)
                need.add(read, -1)
                need.add(done, -1)
                self._bound(need, 0, None)
                there.append(both)
            if len(there) > 1:
                either = self.cp.new_bool_var(f"there {number} {turn}")
                for one in there:
                    self.cp.add(either >= one)
                there = [either]
            for one in there:
                self._sums[turn].add(one, size_bytes)

    def _streams(self) -> None:
        """A task is done in one way, which streams what is moved to be streamed by it."""
        for number, task in enumerate(self.problem.tasks):
            ways = [self.cp.new_bool_var(f"{task.name} {way}") for way in range(len(task.streams))]
            self.ways |= {(number, way): var for way, var in enumerate(ways)}
            self.cp.add(sum(ways) <= 1)
            for buffer in frozenset[int]().union(*(stream.buffers for stream in task.streams)):
                streams = [
                    var for var, stream in zip(ways, task.streams, strict=True) if buffer in stream.buffers
                ]
                moves = [var for pattern, var in self.patterns[buffer].items() if number in pattern]
                self.cp.add(sum(streams) == sum(moves))
            for var, stream in zip(ways, task.streams, strict=True):
                self._sums[self.slots.of_task[number]].add(var, stream.slot_bytes)
                self._cycles.append((stream.cycles - task.cycles) * var)
                self._cost.append((stream.cost - task.cost) * var)

    def _scratch(self) -> None:
        for turn, slot in enumerate(self.slots.items):
            if slot.again:
                self._sums[turn].add(self.problem.tasks[slot.task].scratch_bytes)

    def _take_over(self) -> None:
        """A result that takes over bytes is not counted beside them."""
        for turn, slot in enumerate(self.slots.items):
            task = self.problem.tasks[slot.task]
            if not task.takes or (not slot.again and self.problem.uses[task.writes[0]][0] != slot.task):
                continue
            over = []
            for source in task.takes:
                conditions = self._ends(source, turn)
                if conditions is None:
                    continue
                taken = self.cp.new_bool_var(f"over {turn} {source}")
                for condition in conditions:
                    self.cp.add(taken <= condition)
                if slot.again:
                    self.cp.add(taken <= self.taken[turn])
                    self.cp.add(taken <= 1 - self.moved.get(source, 0))
                else:
                    mine, its = self.moved.get(task.writes[0], 0), self.moved.get(source, 0)
                    self.cp.add(taken <= 1 - mine + its)
                    self.cp.add(taken <= 1 + mine - its)
                    for way, stream in enumerate(task.streams):
                        if stream.buffers & {source, task.writes[0]}:
                            self.cp.add(taken + self.ways[slot.task, way] <= 1)
                over.append(taken)
            if over:
                self.cp.add(sum(over) <= 1)
                size_bytes = self.problem.buffers[task.writes[0]].size_bytes
                self._sums[turn].add(sum(over), -size_bytes)

    def _ends(self, source: int, turn: int) -> list[Expression] | None:
        """What has to be 1 for a buffer to end at a turn that reads it; None if it never does."""
        problem, slot = self.problem, self.slots.items[turn]
        item = problem.buffers[source]
        if item.given or item.kept:
            return None
        turns = [self.slots.of_task[use] for use in problem.uses[source]]
        later = [use for use, at in zip(problem.uses[source], turns, strict=True) if at > turn]
        redirects = problem.tasks[slot.task].redirects
        conditions: list[Expression] = []
        if later:
            maker = problem.makers.get(source)
            if (
                maker is None
                or slot.again
                or redirects
                or not all(problem.tasks[use].redirects for use in later)
            ):
                return None
            conditions.append(self.again[problem.tasks[maker].group])
        for second in (False, True) if slot.again or redirects else (False,):
            read = {at: var for at, var in self._after.get((source, second), {}).items() if at > turn}
            if read:
                conditions.append(1 - read[min(read)])
        return conditions

    # What it costs

    def hide(self, task: int, item: Buffer, happens: Expression) -> None:
        """A copy that a task hides, all but what it takes to set it up."""
        if isinstance(happens, int):
            return
        hidden = self.problem.hidden_cycles(item)
        self._hidden[task].append((hidden, happens))
        self._cycles.append((item.copy_cycles - hidden) * happens)

    def expose(self, cycles: int, needed: Expression, hidden: Expression) -> None:
        """A transfer the cluster waits for if it is needed and not hidden."""
        waits = self.cp.new_bool_var("")
        self.cp.add(waits >= needed - hidden)
        self._cycles.append(cycles * waits)

    def transfer(self, item: Buffer, happens: Expression) -> None:
        """What a copy of a buffer costs beside its time."""
        if item.copy_cost:
            self._cost.append(item.copy_cost * happens)

    def there(self, turn: int, bytes_there: Expression) -> None:
        """Bytes of a copy at a turn; behind the last one is the end."""
        (self._sums[turn] if turn < len(self._sums) else self._end).add(bytes_there)

    def _bound(self, total: _Sum, least: int | None, most: int | None, if_taken: Any = None) -> None:
        """`least` <= total <= `most`, everywhere or where a variable is 1."""
        constraint = self.cp.proto.constraints.add()
        constraint.linear.vars.extend(list(total.factors))
        constraint.linear.coeffs.extend(list(total.factors.values()))
        low, high = (-(1 << 62) if least is None else least), ((1 << 62) if most is None else most)
        constraint.linear.domain.extend([low - total.constant, high - total.constant])
        if if_taken is not None:
            constraint.enforcement_literal.append(if_taken.index)

    def _limits(self, *, smallest: bool) -> None:
        problem, cp = self.problem, self.cp
        slots = (stream.slot_bytes for task in problem.tasks for stream in task.streams)
        most = sum(item.size_bytes for item in problem.buffers) * 2
        most += max((task.scratch_bytes for task in problem.tasks), default=0) + max(slots, default=0)
        limit = cp.new_int_var(0, most, "peak") if smallest else problem.l2_bytes
        for turn, total in enumerate([*self._sums, self._end]):
            total.add(limit, -1)
            self._bound(total, None, 0, self.taken.get(turn))
        cp.add(
            sum(problem.buffers[number].size_bytes * var for number, var in self.moved.items())
            <= problem.l3_bytes
        )
        for task, hidden in self._hidden.items():
            self._cycles.append(self._waits(task, hidden))
        cycles = sum(self._cycles)
        if problem.most_cycles is not None:
            cp.add(cycles <= problem.most_cycles - problem.cycles)
        cost = problem.cost + problem.cycle_cost * cycles + sum(self._cost)
        cp.minimize(limit if smallest else cost)

    def _waits(self, task: int, hidden: Sequence[tuple[int, Expression]]) -> Any:
        """Cycles by which copies take longer than the task that hides them.

        By how much each takes longer follows from that, but not for the parts of copies of a relaxation.
        """
        done, cp = self.problem.tasks[task], self.cp
        more = (
            (stream.free_cycles - done.cycles) * self.ways[task, way]
            for way, stream in enumerate(done.streams)
        )
        most_cycles = sum(2 * item.copy_cycles for item in self.problem.buffers)
        over = cp.new_int_var(0, most_cycles, f"over {task}")
        cp.add(over >= sum(cycles * happens for cycles, happens in hidden) - done.cycles - sum(more))
        longest = max([done.cycles, *(stream.free_cycles for stream in done.streams)])
        parts = [(cycles - longest) * happens for cycles, happens in hidden if cycles > longest]
        if parts:
            cp.add(over >= sum(parts))
        return over

    def decisions(self, value: Callable[[Any], int]) -> Decisions:
        """What a solution says."""
        used = {
            self.problem.tasks[self.slots.items[turn].task].group
            for turn, var in self.taken.items()
            if value(var)
        }
        moved = frozenset(number for number, var in self.moved.items() if value(var))
        shown = {key for key, some in self.shown.items() if key[1] in moved and not any(map(value, some))}
        late, early = (
            frozenset((buffer, task) for word, buffer, task in shown if word == side)
            for side in ("late", "early")
        )
        streams = frozenset(key for key, var in self.ways.items() if value(var))
        return Decisions(frozenset(used), moved, late, early, streams)

    def hint(self, decisions: Decisions) -> None:
        """Begin the search here; what follows from the decisions is solved for, else a hint is lost."""
        from ortools.sat.python import cp_model

        said = {var: number in decisions.again for number, var in enumerate(self.again)}
        said |= {var: key in decisions.streams for key, var in self.ways.items()}
        for number, patterns in self.patterns.items():
            streaming = decisions.streaming(self.problem, number)
            said |= {
                var: number in decisions.moved and pattern == streaming for pattern, var in patterns.items()
            }
        for (side, number, task), some in self.shown.items():
            exposed = decisions.late if side == "late" else decisions.early
            if number not in decisions.moved or (number, task) in exposed:
                said |= dict.fromkeys(some, False)
        fixed = self.cp.clone()
        for var, value in said.items():
            fixed.add(fixed.get_bool_var_from_proto_index(var.index) == int(value))
        solver = cp_model.CpSolver()
        _configure(solver)
        solver.parameters.cp_model_presolve = True
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.max_deterministic_time = HINT_SECONDS
        solver.parameters.max_time_in_seconds = HINT_SECONDS
        if solver.solve(fixed) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            for index, value in enumerate(solver.response_proto.solution):
                self.cp.proto.solution_hint.vars.append(index)
                self.cp.proto.solution_hint.values.append(value)


class _Copies:
    """The copies of one buffer that may move so, as `scheduler.fit.problem.Copies` has them."""

    def __init__(
        self, model: _Model, number: int, visits: Visits, moved: Any, again: Collection[int]
    ) -> None:
        self._model, self._number, self._visits, self._moved = model, number, visits, moved
        self._item = item = model.problem.buffers[number]
        self._again = again
        """Turns in which a task done again reads it: if they are taken, it is there for that."""
        self._cp, self._size = model.cp, item.size_bytes
        self._last = len(model.problem.tasks) - 1

    def add(self) -> None:
        """Add bytes to the turns of the model and cycles to its costs."""
        item, visits, moved, turns = self._item, self._visits, self._moved, self._model.slots.of_task
        dirty: Expression = 0
        wrote, before = NEVER, None
        for run in visits.runs:
            for turn in range(turns[run.first], turns[run.last] + 1):
                self._there(turn, self._size * moved)
            if before is not None:
                connected = self._gap(before, run, wrote, dirty)
                kept = self._cp.new_bool_var(f"dirty {item.name} {run.first}")
                self._cp.add(kept >= dirty + connected - 1)
                dirty = kept
            elif visits.given:
                load = self._copy("late", run.first, possible=visits.may_arrive(run))
                self._model.hide(run.first - 1, self._item, load)
                self._model.expose(item.copy_cycles, moved, load)
                self._model.transfer(item, moved)
                self._before(run.first, load)
            if run.wrote != NEVER:
                dirty, wrote = 1, run.wrote
            before = run
        if before is not None and visits.kept and wrote != NEVER:
            possible = before.last < self._last and visits.may_leave(before, wrote)
            store = self._copy("early", before.last, possible=possible)
            self._behind(before.last, store)
            self._store(before, wrote, store, self._and(dirty))

    def _gap(self, before: Run, run: Run, wrote: int, dirty: Expression) -> Expression:
        """What is between two runs; whether the copy stays in L2 all the time."""
        cycles, between = self._item.copy_cycles, run.first - before.last - 1
        load = self._copy("late", run.first, possible=self._visits.may_arrive(run))
        store = self._copy("early", before.last, possible=self._visits.may_leave(before, wrote))
        connected: Expression = 0
        if between <= 2:
            connected = self._cp.new_bool_var(f"stays {self._item.name} {run.first}")
            if between == 1:
                self._cp.add(connected >= load)
                self._cp.add(connected >= store)
                self._cp.add(connected <= load + store)
                load = store = connected
            else:
                self._cp.add(connected <= load)
                self._cp.add(connected <= store)
                self._cp.add(connected >= load + store - 1)
            turns = self._model.slots.of_task
            for turn in range(turns[before.last] + 1, turns[run.first]):
                self._there(turn, self._size * connected)
        self._before(run.first, load - connected)
        self._behind(before.last, store - connected)
        self._model.hide(run.first - 1, self._item, load - connected)
        self._model.expose(cycles, self._moved, load)
        self._model.transfer(self._item, self._moved - connected)
        if wrote != NEVER:
            self._store(before, wrote, store, self._and(dirty), connected)
        return connected

    def _there(self, turn: int, bytes_there: Expression) -> None:
        if turn not in self._again:
            self._model.there(turn, bytes_there)

    def _and(self, dirty: Expression) -> Expression:
        """Whether it is moved and dirty."""
        if isinstance(dirty, int):
            return self._moved if dirty else 0
        both = self._cp.new_bool_var(f"dirty {self._item.name}")
        self._cp.add(both >= dirty + self._moved - 1)
        return both

    def _store(
        self, run: Run, wrote: int, store: Expression, dirty: Expression, stays: Expression = 0
    ) -> None:
        """The copy back of what was written in a run, or in one before it that it is connected to."""
        cycles, leaves = self._item.copy_cycles, self._moved - stays
        if wrote == run.last:
            self._model.hide(wrote + 1, self._item, store - stays)
            self._model.expose(cycles, self._moved, store)
        elif run.wrote != NEVER:
            self._model.hide(wrote + 1, self._item, leaves)
        else:
            leaves = self._cp.new_bool_var(f"leaves {self._item.name} {run.last}")
            self._cp.add(leaves >= dirty - stays)
            self._model.hide(wrote + 1, self._item, leaves)
        self._model.transfer(self._item, leaves)

    def _copy(self, side: str, task: int, *, possible: bool) -> Any:
        """Whether a copy before ("late") or behind ("early") a task is hidden."""
        if not possible:
            return 0
        var = self._cp.new_bool_var(f"{side} {self._item.name} {task}")
        self._model.shown[side, self._number, task].append(var)
        self._cp.add(var <= self._moved)
        return var

    def _before(self, task: int, load: Expression) -> None:
        """The bytes of a copy that arrives during the turn before that of a task."""
        turn = self._model.slots.of_task[task] - 1
        self._beside(turn, -1, load)

    def _behind(self, task: int, store: Expression) -> None:
        """The bytes of a copy that leaves during the turn behind that of a task."""
        self._beside(self._model.slots.of_task[task] + 1, 1, store)

    def _beside(self, turn: int, step: int, hidden: Expression) -> None:
        """At the first turn that is taken, from this one on."""
        if isinstance(hidden, int) and hidden == 0:
            return
        passed: list[Any] = []
        while 0 <= turn < len(self._model.slots.items):
            if passed:
                var = self._cp.new_bool_var(f"beside {self._item.name} {turn}")
                self._cp.add(var >= hidden - sum(passed))
                self._there(turn, self._size * var)
            else:
                self._there(turn, self._size * hidden)
            if turn not in self._model.taken:
                return
            passed.append(self._model.taken[turn])
            turn += step


def _configure(solver: Any) -> None:
    """One worker and a fixed seed. Presolving takes longer than what it spares, and loses the hint.

    Only the smallest peak is found faster with it, and what follows from a hint, in no time.
    """
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.cp_model_presolve = False
    solver.parameters.catch_sigint_signal = False  # it would be the default handler afterwards


def solve(
    problem: Problem,
    *,
    smallest: bool = False,
    hint: Decisions | None = None,
    seconds: float = SECONDS,
    gap: float = 0.0,
    enough: int = 0,
    better: Callable[[int, int], None] = lambda value, bound: None,
) -> Solution | None:
    """The decisions of least cost that fit, or those of the `smallest` peak.

    None if none fit. The search ends when it has proved that nothing is better by more than a share `gap`, or
    with a value that is `enough`, after so many `seconds`, or with Ctrl-C. `better` is called with value and
    bound of every better answer.
    Raises `UndecidedError` if it ends without decisions.
    """
    from ortools.sat.python import cp_model

    model = _Model(problem, smallest=smallest)
    if hint is not None:
        model.hint(hint)

    class Watch(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            better(round(self.objective_value), round(self.best_objective_bound))
            if self.objective_value <= enough:
                self.stop_search()

    solver, watch = cp_model.CpSolver(), Watch()
    _configure(solver)
    solver.parameters.cp_model_presolve = smallest
    solver.parameters.cp_model_probing_level = 0
    solver.parameters.max_deterministic_time = seconds * EFFORT
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.relative_gap_limit = gap
    statuses: list[Any] = []
    ended = threading.Event()

    def search() -> None:
        try:
            statuses.append(solver.solve(model.cp, watch))
        finally:
            ended.set()

    # In a thread of its own, so that Ctrl-C is not kept waiting by native code. It is not joined: after
    # Ctrl-C in `join` a thread that still runs counts as ended (CPython issue 89437).
    threading.Thread(target=search).start()
    interrupted = False
    while not ended.is_set():
        try:
            ended.wait(0.2)
        except KeyboardInterrupt:
            interrupted = True
            solver.stop_search()
    if not statuses or statuses[0] not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        if interrupted:
            raise KeyboardInterrupt
        if not statuses or statuses[0] != cp_model.INFEASIBLE:
            raise UndecidedError
        return None
    value, bound = round(solver.objective_value), round(solver.best_objective_bound)
    proved = statuses[0] == cp_model.OPTIMAL and value <= bound
    decisions = model.decisions(solver.value)
    if not smallest:
        decisions = without_idle(problem, decisions)
    return Solution(decisions, value, min(bound, value), proved, interrupted)


def without_idle(problem: Problem, decisions: Decisions) -> Decisions:
    """The decisions without those that save nothing: without them it fits as well, at no more cost."""
    best = evaluate(problem, decisions)
    sizes = {number: problem.buffers[number].size_bytes for number in decisions.moved}
    candidates = [
        Decisions(moved=frozenset({number}))
        for number in sorted(sizes, key=sizes.__getitem__)
        if not decisions.streaming(problem, number)
    ]
    candidates += [Decisions(again=frozenset({number})) for number in sorted(decisions.again)]
    for one in candidates:
        fewer = replace(decisions, again=decisions.again - one.again, moved=decisions.moved - one.moved)
        try:
            found = evaluate(problem, fewer)
        except NotAllowedError:
            continue
        if found.keeps(problem) and found.cost <= best.cost:
            decisions, best = fewer, found
    return decisions

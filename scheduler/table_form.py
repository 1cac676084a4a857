# SPDX-License-Identifier: Apache-2.0
"""Ops as tables of records, which `deploy/project/tables.c` carries out: what they look like, where they lie.

The tables of some ops, one after the other, come together from L2 into one of two places in L1 while the ops
before them run. An op whose table is too large for that stays a function. The rule of the bytes of a table is
in `scheduler.tiles.code_sizes`; `deploy` writes tables from what they hold.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate

import numpy as np

from arch.pricing.code_caches import COLD, WARM
from arch.spec.program import Action, Command, Compute, DmaStart, DmaWait, Place, Program, Release, UdmaWait
from arch.spec.timing import SocTiming
from configs.values import Struct, replace
from scheduler.addresses.allocation import Interval, align
from scheduler.planned import Schedule
from scheduler.programs.program_code import TABLE, OpActions, ops_of, with_code
from scheduler.programs.rolling import Leaf, Loop, Node, first_call, in_records, places_of, runs_of
from scheduler.schedule import op_codes
from scheduler.tiles.code_cost import Lost
from scheduler.tiles.code_sizes import TABLE_PLACES, Sizes, shipped_sizes, table_place_bytes
from traces.events import Work

TABLE_KIND = "table"
"""Kind of the places of tables in a plan."""


def table_of(op: OpActions, sizes: Sizes) -> tuple[int, int]:
    """Bytes of the table of an op, by the rule, and cycles core 0 takes to walk it: all around its transfers,
    of other statements what is more than for a function."""
    known, cycles = sizes["table"], sizes["walk_cycles"]

    def of(nodes: Sequence[Node], around: tuple[Loop, ...]) -> tuple[int, int]:
        size_bytes = walk_cycles = 0
        for node, *more in in_records(nodes, is_wait):
            if isinstance(node, Loop):
                more_bytes, more_cycles = of(node.body, (*around, node))
                size_bytes += known["loop"] + more_bytes
                walk_cycles += node.count * (cycles["loop"] + more_cycles)
                continue
            assert isinstance(node.form, tuple)
            word, words = node.form[0], 0
            if word == "fork":
                words = sizes["arguments"].get(node.form[1], known["arguments"])
            changes = changes_of(op, node, around)
            size_bytes += known[word] + 4 * (words + -(-words // 32) + sum(changes))
            walk_cycles += cycles[word] + cycles["changed"] * len(changes)
            if word == "wait":
                walk_cycles += cycles["waits"] * (1 + len(more))
            elif word == "fork" and not node.form[2]:
                walk_cycles += cycles["alone"]
        return size_bytes, walk_cycles

    size_bytes, walk_cycles = of(op.table_nodes, ())
    return align(known["op"] + size_bytes), cycles["op"] + walk_cycles


def changes_of(op: OpActions, leaf: Leaf, around: Sequence[Loop]) -> list[int]:
    """Words of a loop's end for each word of a record that it changes."""
    turns = [op.numbers[place] for place in places_of(leaf, around).flat] if around else []
    found = [runs for row in zip(*turns, strict=False) if (runs := runs_of(np.array(row)))]
    return [2 if len(runs) == 1 else 4 + 2 * len(runs) for runs in found]


def is_wait(form: Hashable) -> bool:
    """Whether a statement waits: a record has several waits."""
    return isinstance(form, tuple) and form[0] == "wait"


def _is_call(form: Hashable) -> bool:
    return isinstance(form, tuple) and form[0] == "fork"


def with_tables(schedules: Sequence[Schedule], timing: SocTiming, sizes: Sizes) -> tuple[list[Schedule], int]:
    """The schedules of programs in one memory with their tables, which lie in L2 behind all that is planned
    there, and the bytes of all of them.

    Programs so small that most of their functions would stay in the caches keep them.
    """
    graph, options = schedules[0].graph, schedules[0].options
    if not Lost(timing, op_codes(graph, timing, options), options.code_beside_bytes).is_walked:
        return list(schedules), 0
    address = begin = align(max(schedule.peak_bytes.get("l2", 0) for schedule in schedules))
    near = align(max(schedule.peak_bytes.get("l1", 0) for schedule in schedules))
    result = []
    for schedule in schedules:
        adding = _Adding(schedule, timing, sizes, near, address)
        result.append(adding.schedule)
        address = adding.address
    return result, address - begin


class Group(Struct, frozen=True):
    """Ops one after the other whose tables come together: the first, the one behind the last, bytes by the
    rule."""

    first: int
    end: int
    size_bytes: int


def _groups(table_bytes: Sequence[int], place_bytes: int, fetch_bytes: int) -> list[Group]:
    """As many as have room in a place; none of an op whose table has none."""
    groups: list[Group] = []
    for number, size_bytes in enumerate(table_bytes):
        last = groups[-1] if groups else None
        if last is not None and last.end == number and last.size_bytes + size_bytes <= place_bytes:
            groups[-1] = Group(last.first, number + 1, last.size_bytes + size_bytes)
        elif fetch_bytes + size_bytes <= place_bytes:
            groups.append(Group(number, number + 1, fetch_bytes + size_bytes))
    return groups


class _Adding:
    """One program with the transfers of tables.

    Those of a group are ordered before the first kernel of the group before, the first ones when the program
    begins, and waited for at the begin of their first op.
    """

    def __init__(self, schedule: Schedule, timing: SocTiming, sizes: Sizes, near: int, address: int) -> None:
        place_bytes = table_place_bytes(timing)
        self.address, self._near, self._place_bytes = address, near, place_bytes
        self._actions: list[Action] = []
        self._ids: dict[int, int] = {}
        ops = ops_of(schedule.program.actions)
        found = [table_of(op, sizes) for op in ops]
        groups = _groups([size_bytes for size_bytes, _ in found], place_bytes, sizes["table"]["fetch"])
        self._ops, self._fetch_cycles = ops, sizes["walk_cycles"]["fetch"]
        number_of = {
            number: place for place, group in enumerate(groups) for number in range(group.first, group.end)
        }
        start = self._order(groups, 0, 0) if groups else 0
        for number, op in enumerate(ops):
            own = number_of.get(number, -1)
            if own < 0:
                self._move(op.actions)
                continue
            group = groups[own]
            walk = _Walk.of(op, found[number][1])
            actions, before = op.actions, 0
            if number == group.first:
                self._actions.append(DmaWait(len(self._actions), (start,), self._work(group), start))
                if own + 1 < len(groups):
                    before = self._first_call(op)
                    self._move(actions[:before], walk)
                    start = self._order(groups, own + 1, self._fetch_cycles)
            ends = Place("l1", self._at(own), (place_bytes * (number + 1 == group.end),), "uint8", TABLE)
            self._move(actions[before:], walk, ends)
        plan = schedule.plan
        places = [
            Interval(
                f"{ops[group.first].name}.{TABLE}",
                place_bytes,
                groups[number - 1].first if number else 0,
                group.end - 1,
                TABLE_KIND,
            ).at("l1", self._at(number))
            for number, group in enumerate(groups)
        ]
        capacity = {**plan.capacity_bytes, "l1": plan.capacity_bytes["l1"] + timing.l1.tables_bytes}
        self.schedule = replace(
            schedule,
            plan=replace(plan, allocations=(*plan.allocations, *places), capacity_bytes=capacity),
            program=Program(schedule.program.name, tuple(self._actions)),
        )

    def _at(self, number: int) -> int:
        return self._near + number % TABLE_PLACES * self._place_bytes

    def _work(self, group: Group) -> Work:
        end = next(each.work for each in self._ops[group.first].actions if isinstance(each, Release))
        return Work(end.op, end.step, what=TABLE)

    def _first_call(self, op: OpActions) -> int:
        """The action before whose statement the tables of the next group are ordered."""
        number = first_call(op.table_nodes, _is_call)
        if number == len(op.table_nodes):
            return 0
        node = op.table_nodes[number]
        while isinstance(node, Loop):
            node = node.body[0]
        return next(place for place, end in enumerate(accumulate(op.counts)) if end > node.place)

    def _order(self, groups: Sequence[Group], number: int, code_cycles: int) -> int:
        """Append the transfer of the tables of a group; its action."""
        group = groups[number]
        command = Command(True, self._at(number), "l2", self.address, group.size_bytes)
        self._actions.append(DmaStart(len(self._actions), (), self._work(group), (command,), code_cycles))
        self.address += group.size_bytes
        return len(self._actions) - 1

    def _move(self, actions: Sequence[Action], walk: _Walk | None = None, ends: Place | None = None) -> None:
        """Append actions of an op, with what core 0 takes to walk its table in place of the tile loop around
        each transfer, and what it ends with."""
        for action in actions:
            number = self._ids[action.id] = len(self._actions)
            moved = replace(action, id=number, deps=tuple([self._ids[each] for each in action.deps]))
            if isinstance(moved, DmaWait | UdmaWait):
                moved = replace(moved, transfer=self._ids[moved.transfer])
            self._actions.append(_walked(moved, walk, ends))


class _Walk(Struct, frozen=True):
    """What core 0 takes to walk the table of an op, shared among its transfers, or among its kernels where it
    has no transfers: which of the two, and the cycles of each."""

    kind: type[DmaStart | Compute]
    cycles: int

    @classmethod
    def of(cls, op: OpActions, cycles: int) -> _Walk:
        """That of an op."""
        kinds = [type(each) for each in op.actions]
        kind = DmaStart if DmaStart in kinds else Compute
        return cls(kind, cycles // max(1, kinds.count(kind)))


def _walked(action: Action, walk: _Walk | None, ends: Place | None) -> Action:
    if walk is not None and isinstance(action, walk.kind):
        return replace(action, code_cycles=walk.cycles)
    if isinstance(action, Release) and ends is not None:
        return replace(action, places=(*action.places, ends))
    return action


def alone_with_code(program: Program, timing: SocTiming, code_start: str) -> tuple[Program, str]:
    """The program of an op alone, and what the caches hold of its code.

    If the op is a table this is in L1 before it begins, and refills of the code that all ops share are left
    out. If it has none, or one without room, its code is fetched. Ops of small programs, which start
    `STEADY` (`scheduler.schedule.code_of_op_alone`), have none.
    """
    if code_start == WARM:
        return program, WARM
    sizes = shipped_sizes()
    ops = ops_of(program.actions) if timing.l1.tables_bytes and code_start == COLD else None
    for op in ops or ():
        size_bytes, walk_cycles = table_of(op, sizes)
        if sizes["table"]["fetch"] + size_bytes <= table_place_bytes(timing):
            walked = [_walked(each, _Walk.of(op, walk_cycles), None) for each in op.actions]
            return replace(program, actions=tuple(walked)), WARM
    return with_code(program, ops), code_start


def is_of_tables(action: Action) -> bool:
    """Whether an action moves tables."""
    return isinstance(action, DmaStart | DmaWait) and action.work.what == TABLE

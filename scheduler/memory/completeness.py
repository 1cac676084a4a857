# SPDX-License-Identifier: Apache-2.0
"""Whether a program makes all of its graph: every element of every result of every op is left exactly once.

Counted from the actions, what is executed, against the graph, what must be; the tilings that the program was
made from are not asked. An op is what lies before its `Release`. Of each of its results

- every byte is stored to its place in L2 or L3 once; a sum that is cut may be loaded and stored again, so of
  what the op does not read each byte is stored once more than it is loaded;
- what is stored from a byte of L1, or stays there for a later op, was written there by kernels: in as many
  tiles at least, and by kernels that add to nothing they have read there at most as often;
- bytes stored to a slot in L2 go on to L3 once;
- beside the part of a tensor that an op writes only bytes go to L3 that have come from there to that copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from arch.spec.program import (
    Action,
    Command,
    Compute,
    DmaStart,
    Place,
    Program,
    Release,
    TeamTransfer,
    UdmaStart,
)
from configs.errors import REPORT, PulptrainError
from configs.values import Struct
from scheduler.addresses.allocation import Allocation
from scheduler.memory.memory_plan import MemoryPlan
from trainlib.ir.graph import GIVEN_KINDS, Op, Tensor, TensorWindow, TrainingGraph

Numbers = NDArray[np.int64]

_Run = tuple[int, int]
"""First byte and the byte behind the last."""

L1, L2, L3 = LEVELS = ("l1", "l2", "l3")

OP_BITS, LEVEL_BITS = 40, 38
"""A byte of a level during an op is one number: the op from bit 40, the level from 38, its address below."""


class _Lines(Struct, frozen=True):
    """Runs of bytes, as numbers of `_at`."""

    starts: Numbers
    ends: Numbers

    def where(self, chosen: NDArray[np.bool_]) -> _Lines:
        return _Lines(self.starts[chosen], self.ends[chosen])

    def inside(self, others: _Lines) -> NDArray[np.bool_]:
        """Which of the runs share a byte with one of the others, which share none among themselves."""
        if not len(others.starts):
            return np.zeros(len(self.starts), np.bool_)
        order = np.argsort(others.starts)
        starts, ends = others.starts[order], others.ends[order]
        last = np.searchsorted(starts, self.ends) - 1
        return (last >= 0) & (ends[np.maximum(last, 0)] > self.starts)


NOTHING = _Lines(np.zeros(0, np.int64), np.zeros(0, np.int64))


class _Result(Struct, frozen=True):
    """A result of an op in one level, of which every byte in `lines` must be written."""

    op: Op
    tensor: Tensor
    lines: _Lines
    reads_it: bool
    """The op reads the same storage."""
    level: str = L2
    needed: bool = True
    """Otherwise none of it may be there, or all."""
    came: _Lines = NOTHING
    """Of a part of a tensor in L3: what has come from the whole of it for the copy that is sent."""


def check_complete(program: Program, graph: TrainingGraph, plan: MemoryPlan) -> None:
    """Raise `IncompleteError` for a result of an op that the program does not leave once in every element."""
    seen = _Seen(program)
    ends = seen.ends
    for number, op in enumerate(graph.ops):
        if number >= len(ends) or (ends[number].work.op, ends[number].work.step) != (op.layer, op.step):
            raise _defect(op, f"the program has no end of {op.name}")
    if len(ends) > len(graph.ops):
        raise _defect(graph.ops[-1], f"{len(ends) - len(graph.ops)} extra ops end in the program")
    uses = _Uses(graph, plan)
    results = [
        result
        for number, op in enumerate(graph.ops)
        for result in _results(op, number, ends[number], graph, plan, uses, seen.fetched)
    ]
    _check_memories(seen, results, graph.ops)
    _check_kernels(seen, results, graph.ops)


class _Seen:
    """What a program moves and computes, by the op that it belongs to."""

    def __init__(self, program: Program) -> None:
        self.ends: list[Release] = []
        stores: list[tuple[int, ...]] = []
        loads: list[tuple[int, ...]] = []
        sent: list[tuple[int, ...]] = []
        fetched: list[tuple[int, ...]] = []
        writes: list[tuple[int, ...]] = []
        tile, done = (-1, -1), list[_Run]()
        for action in program.actions:
            if isinstance(action, Release):
                self.ends.append(action)
                continue
            base = len(self.ends) << OP_BITS
            for item in _commands(action):
                far = base + (LEVELS.index(item.external_level) << LEVEL_BITS) + item.external_address
                row = (far, item.line_bytes, item.lines, item.stride_bytes, base + item.l1_address)
                (loads if item.to_l1 else stores).append(row)
            if isinstance(action, UdmaStart):
                for move in action.commands:
                    ends = (
                        base + (1 << LEVEL_BITS) + move.l2_address,
                        base + (2 << LEVEL_BITS) + move.l3_address,
                    )
                    (fetched if move.to_l2 else sent).append((*ends, move.size_bytes))
            elif isinstance(action, Compute) and action.effect is not None:
                if tile != (len(self.ends), action.work.tile):
                    tile, done = (len(self.ends), action.work.tile), []
                writes += [(base + first, base + last, *how) for first, last, *how in _written(action, done)]
        out, into = _table(stores, 5), _table(loads, 5)
        self.stores, self.loads = _expanded(out), _expanded(into)
        self.stored_from = _Lines(out[:, 4], out[:, 4] + out[:, 1] * out[:, 2])
        """Bytes of L1, a run for each command."""
        self.stored_to = out[:, 0]
        gone, come = _table(sent, 3), _table(fetched, 3)
        self.sent_from = _Lines(gone[:, 0], gone[:, 0] + gone[:, 2])
        self.sent_to = _Lines(gone[:, 1], gone[:, 1] + gone[:, 2])
        self.fetched = _Lines(come[:, 1], come[:, 1] + come[:, 2])
        """Bytes of L3."""
        made = _table(writes, 4)
        written = _Lines(made[:, 0], made[:, 1])
        self.written_first = written.where(made[:, 2] == 1)
        """By the first kernel of a tile that writes there."""
        self.written_anew = written.where(made[:, 3] == 1)
        """By a kernel that reads none of it."""


def _commands(action: Action) -> Iterator[Command]:
    if isinstance(action, DmaStart):
        yield from action.commands
    elif isinstance(action, TeamTransfer):
        for commands in action.commands:
            yield from commands


def _written(action: Compute, done: list[_Run]) -> Iterator[tuple[int, int, int, int]]:
    """(first byte, byte behind the last, first in its tile, nothing of it read) of what a kernel writes.

    `done` are the bytes that kernels of the same tile have written before.
    """
    assert action.effect is not None
    reads = [(place.address, place.address + place.size_bytes) for place in action.effect.reads]
    for place in action.effect.writes:
        run = place.address, place.address + place.size_bytes
        yield *run, not _meets(run, done), not _meets(run, reads)
        done.append(run)


def _meets(run: _Run, others: Sequence[_Run]) -> bool:
    first, last = run
    return any(start < last and first < stop for start, stop in others)


def _table(rows: Sequence[tuple[int, ...]], columns: int) -> Numbers:
    return np.array(rows, np.int64).reshape(-1, columns)


def _expanded(commands: Numbers) -> _Lines:
    """The lines in the external memory."""
    lines = commands[:, 2]
    first = np.repeat(np.cumsum(lines) - lines, lines)
    turn = np.arange(int(lines.sum())) - first
    starts = np.repeat(commands[:, 0], lines) + turn * np.repeat(commands[:, 3], lines)
    return _Lines(starts, starts + np.repeat(commands[:, 1], lines))


class _Uses:
    """Which ops use and write the storages of a graph, by number; what is read after the iteration."""

    def __init__(self, graph: TrainingGraph, plan: MemoryPlan) -> None:
        self._graph, self._owners = graph, plan.owners
        self._uses: dict[str, set[int]] = {}
        self._writes: dict[str, set[int]] = {}
        for number, op in enumerate(graph.ops):
            for name in (*op.inputs, *op.outputs):
                self._uses.setdefault(plan.owners[name], set()).add(number)
            for name in op.outputs:
                self._writes.setdefault(plan.owners[name], set()).add(number)
        kept = (*graph.results, *graph.of_kind(*GIVEN_KINDS))
        self._kept = {plan.owners[name] for name in kept if name in plan.owners}

    def needed(self, number: int, tensor: str, last: int) -> bool:
        """Whether what op `number` wrote to a copy that ends with op `last` must go to where it is from."""
        owner = self._owners[tensor]
        later = [other for other in self._writes[owner] if number < other <= last]
        if later and not self._writes_a_part(max(later), owner):
            return False
        return owner in self._kept or any(use > last for use in self._uses[owner])

    def _writes_a_part(self, number: int, owner: str) -> bool:
        op = self._graph.ops[number]
        return any(self._owners[op[role]] == owner for role in op.windows if role in op.writes)


def _results(
    op: Op,
    number: int,
    end: Release,
    graph: TrainingGraph,
    plan: MemoryPlan,
    uses: _Uses,
    fetched: _Lines,
) -> Iterator[_Result]:
    """What an op must leave: where its end says, and where else later readers look for it."""
    named = {place.name: place for place in end.results}
    if len(end.results) != len(op.outputs) or named.keys() != set(op.outputs):
        names = ", ".join(place.name for place in end.results) or "nothing"
        raise _defect(op, f"{op.name} ends with {names}, not with {', '.join(op.outputs)}")
    windows = {op[role]: window for role, window in op.windows.items() if role in op.writes}
    inputs = {plan.owners[name] for name in op.inputs}
    for name in op.outputs:
        tensor, place = graph.tensors[name], named[name]
        if (place.shape, place.dtype) != (tensor.shape, tensor.dtype):
            raise _defect(op, f"{op.name} ends with {place.dtype} {place.shape} of '{name}'")
        reads_it = plan.owners[name] in inputs
        for level, address, needed in _places(op, number, place, plan, uses):
            start, copy = _at(number, level, address), _copy(number, name, plan)
            lines, came = _lines(tensor, windows.get(name), start), NOTHING
            if name in windows and level == L3 and copy is not None:
                came = _came(fetched, number, copy.first_op, start, tensor.size_bytes)
            yield _Result(op, tensor, lines, reads_it, level, needed, came)


def _places(
    op: Op, number: int, place: Place, plan: MemoryPlan, uses: _Uses
) -> Iterator[tuple[str, int, bool]]:
    """(level, address, whether it must be there) of a result, as the memory plan has them."""
    name = place.name
    home, copy = plan.home(name), _copy(number, name, plan)
    planned = {L1: _resident(number, place, plan), L2: copy, L3: home}.get(place.level)
    if planned is None or (planned.level, planned.address) != (place.level, place.address):
        raise _defect(op, f"{op.name} ends with '{name}' in {place.level} at {place.address}: wrong place")
    yield place.level, place.address, True
    needed = True
    if place.level == L1:
        needed = uses.needed(number, name, planned.last_op)
        if copy is not None:
            yield L2, copy.address, needed
    if place.level != L3 and home.level == L3 and copy is not None:
        yield L3, home.address, needed and uses.needed(number, name, copy.last_op)


def _copy(number: int, name: str, plan: MemoryPlan) -> Allocation | None:
    """Where a tensor lies in L2 during an op; None of one that lies in L3."""
    try:
        return plan.place(number, name)
    except KeyError:
        return None


def _resident(number: int, place: Place, plan: MemoryPlan) -> Allocation | None:
    """The place in L1 that the tensor has between ops."""
    if place.level != L1:
        return None
    owner = plan.owners[place.name]
    for item in plan.allocations:
        there = (item.level, item.address, item.tensor) == (L1, place.address, owner)
        if there and item.first_op <= number <= item.last_op:
            return item
    return None


def _lines(tensor: Tensor, window: TensorWindow | None, start: int) -> _Lines:
    """All bytes of a tensor that begins at `start`, or those of a part of it."""
    size, shape = tensor.dtype.bytes, tensor.shape
    if window is None:
        return _Lines(np.array([start]), np.array([start + tensor.size_bytes]))
    inner = prod(shape[window.axis + 1 :]) * size
    turns = np.arange(prod(shape[: window.axis]), dtype=np.int64) * (shape[window.axis] * inner)
    return _Lines(start + turns + window.start * inner, start + turns + window.stop * inner)


def _came(fetched: _Lines, number: int, first_op: int, start: int, size_bytes: int) -> _Lines:
    """What ops from `first_op` to `number` fetch of the bytes of L3 from `start` on, as if `number` did."""
    parts = []
    for earlier in range(first_op, number + 1):
        back = (number - earlier) << OP_BITS
        there = (fetched.starts + back < start + size_bytes) & (fetched.ends + back > start)
        parts.append(_Lines(fetched.starts[there] + back, fetched.ends[there] + back))
    return _joined(parts)


def _at(op_number: int, level: str, address: int) -> int:
    return (op_number << OP_BITS) + (LEVELS.index(level) << LEVEL_BITS) + address


def _joined(parts: Sequence[_Lines]) -> _Lines:
    empty = np.zeros(0, np.int64)
    return _Lines(
        np.concatenate([empty, *(part.starts for part in parts)]),
        np.concatenate([empty, *(part.ends for part in parts)]),
    )


def _check_memories(seen: _Seen, results: Sequence[_Result], ops: Sequence[Op]) -> None:
    """Of each result in L2 and L3: stored, less loaded again, is once."""
    stored = _joined([seen.stores, seen.sent_to])
    due = [
        item
        for item in results
        if item.level != L1 and (item.needed or bool(stored.inside(item.lines).any()))
    ]
    again = _joined([item.lines for item in due if not item.reads_it])
    loaded = _joined([seen.loads, seen.fetched])
    sent = seen.sent_from
    minus = _joined(
        [
            loaded.where(loaded.inside(again)),
            sent.where(~sent.inside(_joined([item.lines for item in due]))),
            *(item.lines for item in due),
        ]
    )
    of_parts = [item for item in due if len(item.came.starts)]
    parts, came = _joined([item.lines for item in of_parts]), _joined([item.came for item in of_parts])
    bounds, (more, less, written, back) = _counted([stored, minus, parts, came])
    unchanged = (more > less) & (back > 0) & (written == 0)
    _refuse(bounds, more - less - unchanged, due, ops, "stored")


def _check_kernels(seen: _Seen, results: Sequence[_Result], ops: Sequence[Op]) -> None:
    """Of each byte of L1 that is stored or stays there: written by kernels as often."""
    stay = [item for item in results if item.level == L1]
    places = _joined([item.lines for item in stay])
    source = seen.stored_from
    wanted = _joined([source.where(~source.inside(places)), places])
    bounds, (least, most, due) = _counted([seen.written_anew, seen.written_first, wanted])
    excess = np.maximum(least - due, 0) + np.minimum(most - due, 0)
    _refuse(bounds, np.where(due > 0, excess, 0), results, ops, "computed", seen)


def _counted(sorts: Sequence[_Lines]) -> tuple[Numbers, list[Numbers]]:
    """(bounds, for each sort in how many of its runs the bytes lie from one bound to the next)."""
    bounds = np.unique(np.concatenate([part for lines in sorts for part in (lines.starts, lines.ends)]))
    counts = []
    for lines in sorts:
        steps = np.bincount(np.searchsorted(bounds, lines.starts), minlength=len(bounds))
        steps = steps - np.bincount(np.searchsorted(bounds, lines.ends), minlength=len(bounds))
        counts.append(np.cumsum(steps))
    return bounds, counts


class IncompleteError(PulptrainError):
    """A program that does not leave each element of a result once: a defect of the scheduler."""


def _refuse(
    bounds: Numbers,
    excess: Numbers,
    results: Sequence[_Result],
    ops: Sequence[Op],
    done: str,
    seen: _Seen | None = None,
) -> None:
    """Raise `IncompleteError` if a byte is missing (excess below 0) or there more than once.

    With `seen` bytes of L1 are called by the result that they are stored to.
    """
    wrong = np.flatnonzero(excess)
    if not len(wrong):
        return
    first, sizes = bounds[wrong[0]], bounds[wrong + 1] - bounds[wrong]
    level, number = LEVELS[int(first >> LEVEL_BITS) & 3], int(first >> OP_BITS)
    same = (bounds[wrong] >> LEVEL_BITS) == (first >> LEVEL_BITS)
    place = first
    if seen is not None:
        moved = np.flatnonzero((seen.stored_from.starts <= first) & (first < seen.stored_from.ends))
        if len(moved):
            run = moved[0]
            place = seen.stored_to[run]
            same &= bounds[wrong] < seen.stored_from.ends[run]
    op, what, size = ops[min(number, len(ops) - 1)], "the bytes that do not belong to a result", 1
    for item in results:
        if item.lines.starts[0] <= place < item.lines.ends[-1]:
            if seen is None:
                same &= (bounds[wrong] >= item.lines.starts[0]) & (bounds[wrong] < item.lines.ends[-1])
            size = item.tensor.dtype.bytes
            what = f"the {prod(item.tensor.shape):,} elements of '{item.tensor.name}'"
    missing = -(-int(sizes[same & (excess[wrong] < 0)].sum()) // size)
    double = -(-int(sizes[same & (excess[wrong] > 0)].sum()) // size)
    message = f"of {what}, {missing:,} were never {done} in {level.upper()}, and {double:,} were {done} twice"
    raise _defect(op, message)


def _defect(op: Op, what: str) -> IncompleteError:
    return IncompleteError(what, where=f"op {op.name}", cure=REPORT)

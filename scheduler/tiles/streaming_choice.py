# SPDX-License-Identifier: Apache-2.0
"""Which operands an op streams when its tensors do not fit L2 together, and how much of L2 that takes.

Some of the op's tensors lie whole in L2 while it runs, the others are streamed through slots. Of all choices
of which, and all tilings that fit L1 and whose slots fit what is left of L2, the one counts that keeps the
uDMA busy for the shortest time: whole tensors cross its bus once each way, streamed ones as often as the
tiles ask for their boxes, each line of a box as a transfer of its own. Equal ones: fewer streamed tensors,
then more room for slots. If no tiling has room for as many slots as its buffers have in L1, one slot each is
tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from arch.spec.timing import SocTiming
from configs.values import Struct
from scheduler.addresses.allocation import align
from scheduler.tiles.footprint import Floats, Integers
from scheduler.tiles.l2_slots import MANY_SLOTS, ONE_SLOT, Key, OpStream, slots_of
from scheduler.tiles.partial_sums import SUM
from scheduler.tiles.streaming_cost import Streamed, streamed_buffers
from scheduler.tiles.tiling import Tiler, Tiling
from scheduler.tiles.tiling_candidates import enumerate_tilings
from scheduler.tiles.transfer_cost import UdmaCost
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import Operand, Region

CHOSEN_SINGLY = 8
"""Largest storages of an op that are streamed or not one by one; all smaller ones are streamed together."""


class Least(Struct, frozen=True):
    """The least L2 an op can do with: in all, and per storage (of streamed ones the slots)."""

    size_bytes: int
    streamed: Mapping[str, int]
    """Storage -> bytes of its slots."""


class _Ways(Struct, frozen=True):
    """The tilings of an op, as arrays [tiling] per storage: uDMA cycles if streamed, bytes of its slots.

    Cycles are infinite where the storage cannot be streamed.
    """

    cycles: Mapping[str, Floats]
    many: Mapping[str, Integers]
    single: Mapping[str, Integers]

    def bytes_of(self, storage: str, most_slots: int) -> Integers:
        """Bytes of the slots of a storage, one slot per buffer or as many as in L1."""
        return (self.single if most_slots == ONE_SLOT else self.many)[storage]


@dataclass(eq=False)
class Streamer:
    """Chooses what the ops of one graph stream.

    `tiler_of` gives what cuts an op by its number, `fixed` the only tiling it may get, if there is but one.
    `owners` map tensors to the storages they lie in.
    """

    _graph: TrainingGraph
    _timing: SocTiming
    _tiler_of: Callable[[int], Tiler]
    _fixed: Callable[[Tiler], Tiling | None]
    _known: dict[int, tuple[Mapping[str, str], _Ways]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._udma = UdmaCost(self._timing)

    def choose(
        self,
        number: int,
        owners: Mapping[str, str],
        sizes: Mapping[str, int],
        room_bytes: int,
        wanted: frozenset[str] = frozenset(),
        slot_bytes: int | None = None,
    ) -> OpStream | None:
        """What op `number` streams, those `wanted` among it; None if it cannot.

        `sizes` are the bytes of the storages it may stream; they have `room_bytes` of L2, slots included,
        which take no more than `slot_bytes`.
        """
        ways = self._ways(number, owners)
        if wanted and not (wanted := wanted & ways.cycles.keys()):
            return None
        best: tuple[float, int, int, int] | None = None
        chosen: OpStream | None = None
        for most_slots in (MANY_SLOTS, ONE_SLOT):
            for place, streamed in enumerate(self._subsets(sizes, ways, wanted)):
                whole = [name for name in sizes if name not in streamed]
                room_left_bytes = room_bytes - sum(align(sizes[name]) for name in whole)
                if slot_bytes is not None:
                    room_left_bytes = min(room_left_bytes, slot_bytes)
                cycles = np.asarray(sum(ways.cycles[name] for name in streamed))
                slots = np.asarray(sum(ways.bytes_of(name, most_slots) for name in streamed))
                fits = np.flatnonzero((slots <= room_left_bytes) & (cycles < np.inf))
                if not len(fits):
                    continue
                least = float(cycles[fits].min())
                least += sum(self._whole_cycles(number, owners, name, sizes[name]) for name in whole)
                window_bytes = int(slots[fits].max())
                key = least, len(streamed), -window_bytes, place
                if best is None or key < best:
                    best = key
                    tensors = frozenset(name for name in self._tensors(number) if owners[name] in streamed)
                    chosen = OpStream(tuple(sorted(streamed)), tensors, window_bytes, most_slots)
            if chosen is not None:
                return chosen
        return None

    def bounds(
        self, number: int, owners: Mapping[str, str], storages: frozenset[str]
    ) -> tuple[int, int, int] | None:
        """Least and most bytes of slots, least cycles of the uDMA, if an op streams just these storages.

        None if it cannot.
        """
        ways = self._ways(number, owners)
        if not storages <= ways.cycles.keys():
            return None
        cycles = np.asarray(sum(ways.cycles[name] for name in storages))
        fits = np.flatnonzero(cycles < np.inf)
        if not len(fits):
            return None
        single, many = (
            np.asarray(sum(ways.bytes_of(name, most_slots) for name in storages))
            for most_slots in (ONE_SLOT, MANY_SLOTS)
        )
        return int(single[fits].min()), int(many[fits].max()), int(cycles[fits].min())

    def least(self, number: int, owners: Mapping[str, str], sizes: Mapping[str, int]) -> Least | None:
        """The least L2 the storages of op `number` can do with; None if none of them can be streamed."""
        ways = self._ways(number, owners)
        least: Least | None = None
        for streamed in self._subsets(sizes, ways, frozenset()):
            possible = np.flatnonzero(sum(ways.cycles[name] for name in streamed) < np.inf)
            if not len(possible):
                continue
            slots = np.asarray(sum(ways.single[name] for name in streamed))[possible]
            row = possible[int(np.argmin(slots))]
            kept_bytes = sum(align(size) for name, size in sizes.items() if name not in streamed)
            size_bytes = kept_bytes + int(slots.min())
            if least is None or size_bytes < least.size_bytes:
                parts = {name: int(ways.single[name][row]) for name in sorted(streamed)}
                least = Least(size_bytes, parts)
        return least

    def _tensors(self, number: int) -> tuple[str, ...]:
        op = self._graph.ops[number]
        return (*op.inputs, *op.outputs)

    def _subsets(
        self, sizes: Mapping[str, int], ways: _Ways, wanted: frozenset[str]
    ) -> Iterator[frozenset[str]]:
        """Sets of storages to stream, small ones first."""
        possible = [name for name in sizes if name in ways.cycles and name not in wanted]
        possible.sort(key=lambda name: (-sizes[name], name))
        groups = [frozenset((name,)) for name in possible[:CHOSEN_SINGLY]]
        if possible[CHOSEN_SINGLY:]:
            groups.append(frozenset(possible[CHOSEN_SINGLY:]))
        for count in range(len(groups) + 1):
            for some in combinations(groups, count):
                streamed = wanted.union(*some)
                if streamed:
                    yield streamed

    def _whole_cycles(self, number: int, owners: Mapping[str, str], name: str, size_bytes: int) -> int:
        """The uDMA, for a storage that is copied as a whole: in if it is read, out if it is written."""
        op = self._graph.ops[number]
        ways = sum(any(owners[tensor] == name for tensor in some) for some in (op.inputs, op.outputs))
        return ways * self._udma.lines_cycles([size_bytes])

    def _ways(self, number: int, owners: Mapping[str, str]) -> _Ways:
        own = {name: owners[name] for name in self._tensors(number)}
        known = self._known.get(number)
        if known is None or known[0] != own:
            tiler = self._tiler_of(number)
            tiling = self._fixed(tiler)
            moved = self._of_tiling(tiler, tiling) if tiling is not None else self._enumerated(tiler)
            known = self._known[number] = own, _by_storage(moved, own, _unsafe(tiler, own))
        return known[1]

    def _enumerated(self, tiler: Tiler) -> list[Streamed]:
        """All tilings that fit L1, in double buffers if there are any."""
        found = enumerate_tilings(tiler, self._timing.l1_usable_bytes)
        if not len(found):
            found = enumerate_tilings(tiler.with_depth(1), self._timing.l1_usable_bytes)
        return list(streamed_buffers(found, self._udma).values())

    def _of_tiling(self, tiler: Tiler, tiling: Tiling) -> list[Streamed]:
        """The same for the one tiling there is."""
        tensors: dict[Key, str] = {}
        cycles: Counter[Key] = Counter()
        reloaded: set[str] = set()
        last: dict[Key, Operand] = {}
        for task in tiling.tiles:
            for role, operands in (("in", task.inputs), ("out", task.outputs)):
                for operand in operands:
                    key = role, operand.name
                    tensors[key] = operand.tensor
                    if operand.name.endswith(SUM):
                        reloaded.add(operand.tensor)
                    if role == "out" or last.get(key) != operand:
                        last[key] = operand
                        lines = [size for box in operand.boxes for _, size in tiler.lines(operand, box)]
                        cycles[key] += self._udma.lines_cycles(lines)
        every = OpStream((), frozenset(tensors.values()), 0)
        return [
            Streamed(
                tensors[key],
                np.array([np.inf if tensors[key] in reloaded else cycles[key]], np.float64),
                np.array([size_bytes], np.int64),
                np.array([count], np.int64),
            )
            for key, (size_bytes, count) in slots_of(tiling, every).items()
        ]


def _by_storage(moved: Sequence[Streamed], owners: Mapping[str, str], unsafe: frozenset[str]) -> _Ways:
    cycles: dict[str, Floats] = {}
    many: dict[str, Integers] = {}
    single: dict[str, Integers] = {}
    for item in moved:
        storage = owners[item.tensor]
        if storage not in unsafe:
            cycles[storage] = cycles.get(storage, 0.0) + item.cycles
            many[storage] = many.get(storage, 0) + item.slot_bytes * item.slots
            single[storage] = single.get(storage, 0) + item.slot_bytes
    return _Ways(cycles, many, single)


def _unsafe(tiler: Tiler, own: Mapping[str, str]) -> frozenset[str]:
    """Storages the op reads and writes of which a tile may read what another one writes.

    A box that is fetched ahead would miss that. Tiles are looked at uncut and cut in the middle of all
    dimensions.
    """
    both = {own[name] for name in tiler.op.inputs} & {own[name] for name in tiler.op.outputs}
    halves = {name: (0, -(-extent // 2)) for name, extent in tiler.dims.items()}
    tasks = [tiler.task({name: (0, extent) for name, extent in tiler.dims.items()}), tiler.task(halves)]
    return frozenset(
        storage
        for storage in both
        if any(_boxes(task.inputs, own, storage) != _boxes(task.outputs, own, storage) for task in tasks)
    )


def _boxes(operands: Sequence[Operand], own: Mapping[str, str], storage: str) -> set[tuple[Region, ...]]:
    return {operand.boxes for operand in operands if own[operand.tensor] == storage}

# SPDX-License-Identifier: Apache-2.0
"""Which of thousands of tilings are worth building: what they move and what their kernels issue, as arrays.

What moves follows from the boxes (`scheduler.tiles.footprint`). What kernels issue is counted on tiles cut
along one dimension at a time and multiplied, then counted again on the tiles of those that look best.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from arch.pricing.cost_model import CostModel
from arch.spec.isa import TeamWork
from configs.values import replace
from scheduler.tiles.footprint import Floats, Integers
from scheduler.tiles.streaming_cost import streaming_cycles
from scheduler.tiles.tiling import Tiler
from scheduler.tiles.tiling_candidates import TilingCandidates
from scheduler.tiles.transfer_cost import DmaCost
from trainlib.ir.steps import Extent

COUNTED = 16
"""Candidates whose own tile is counted, by the product of what cuts along one dimension make of it."""


@dataclass(frozen=True, slots=True)
class Moves:
    """Per candidate, in cycles of the whole op: what each of those that move data is busy for.

    `alone_cycles` are those of L2 transfers, code included, that nothing overlaps. `additions_cycles` are the
    kernels that add to sums in L1, with their forks. `offchip_cycles` (uDMA) are infinite where what is
    streamed lacks room in L2.
    """

    load_cycles: Floats
    store_cycles: Floats
    master_cycles: Floats
    alone_cycles: Floats
    additions_cycles: Floats
    offchip_cycles: Floats

    def at(self, numbers: Integers) -> Moves:
        """Those of some candidates."""
        return Moves(*(getattr(self, field.name)[numbers] for field in fields(Moves)))


def moves_of(candidates: TilingCandidates, dma: DmaCost) -> Moves:
    """What the transfers of each candidate cost. Left out are tensors that are resident in L1."""
    timing, tiler, footprint, rows = dma.timing, candidates.tiler, candidates.footprint, candidates.rows
    fork_cycles = timing.event_unit.fork_master_cycles + timing.event_unit.join_cycles
    load, store, master, alone, additions = (np.zeros(len(candidates)) for _ in range(5))
    for column in footprint.moved:
        role, name = footprint.keys[column]
        tensor = footprint.tensors[role, name]
        if tensor in tiler.resident:
            continue  # what still moves of it is the same however the op is cut
        box = footprint.box(column)
        if tensor in tiler.stream.tensors:
            one = np.ones_like(box.lines)  # in its slot in L2 a box is one line
            box = replace(box, lines=one, commands=one, pieces=one)
        line_bytes = np.maximum(1, np.rint(box.size_bytes / box.lines)).astype(np.int64)
        code = np.where(
            box.lines > 1,
            dma.master_cycles(boxed=True) + (box.pieces - 1) * timing.dma.transfer_code_2d_cycles,
            dma.master_cycles(boxed=False) + (box.pieces - 1) * timing.dma.transfer_code_1d_cycles,
        )
        further = (box.commands - 1) * timing.dma.program_next_cycles
        boxes = candidates.changes[column]
        reloads, added = candidates.of_sum(column)
        directions = [(boxes, True)] if role == "in" else [(boxes, False), (reloads, True)]
        for count, to_l1 in directions:
            if not count.any():
                continue
            engine = _by_line(dma, line_bytes, box.lines, rows, to_l1=to_l1)
            busy = load if to_l1 else store
            busy += count * engine[rows]
            master += count * (code + further)[rows]
            alone += count * (code + np.maximum(engine, further))[rows]
        if role == "out":
            # An addition loads two words and stores one per element, the elements shared by the cores.
            words = box.size_bytes / timing.l1.word_bytes
            additions += added * (fork_cycles + 4 * words / timing.cores)[rows]
    return Moves(load, store, master, alone, additions, streaming_cycles(candidates, timing))


def _by_line(dma: DmaCost, line_bytes: Integers, lines: Integers, rows: Integers, *, to_l1: bool) -> Floats:
    """Cycles of the engine for a box, by row; right for those `rows` that are asked for."""
    used = np.flatnonzero(np.bincount(rows))
    lengths, places = np.unique(line_bytes[used], return_inverse=True)
    first = np.array([dma.engine_cycles(length, 1, to_l1=to_l1) for length in lengths.tolist()])
    several = np.zeros(len(lengths), np.bool_)
    several[places[lines[used] > 1]] = True
    further = np.zeros(len(lengths))
    further[several] = [dma.line_cycles(length, to_l1=to_l1) for length in lengths[several].tolist()]
    found = np.zeros(len(lines))
    found[used] = first[places] + (lines[used] - 1) * further[places]
    return found


def overhead_cycles(candidates: TilingCandidates, dma: DmaCost) -> Floats:
    """Per candidate: cycles of the DMA engines and of the master around them, forks, additions of sums.

    Also of the uDMA for streamed tensors, infinite where that cannot be. The kernels are left out.
    """
    moves = moves_of(candidates, dma)
    unit = dma.timing.event_unit
    forks = candidates.tiles * float(unit.fork_master_cycles + unit.join_cycles)
    transfers = moves.load_cycles + moves.store_cycles + moves.master_cycles + moves.offchip_cycles
    return np.asarray(transfers + moves.additions_cycles + forks)


def loop_cycles(candidates: TilingCandidates, moves: Moves, kernel_cycles: Floats) -> Floats:
    """Per candidate: the tile loop, if its kernels take `kernel_cycles`.

    One buffer per operand: all one after another. More: the longest of the cores, the loads, the stores and
    the uDMA, and what nothing hides of the first load and the last store.
    """
    kernels = kernel_cycles + moves.additions_cycles
    alone = kernels + moves.alone_cycles + moves.offchip_cycles
    if candidates.tiler.buffer_depth == 1:
        return np.asarray(alone)
    busiest = np.maximum(kernels + moves.master_cycles, np.maximum(moves.load_cycles, moves.store_cycles))
    ends = (moves.load_cycles + moves.store_cycles + moves.offchip_cycles) / candidates.tiles
    return np.asarray(np.minimum(alone, np.maximum(busiest, moves.offchip_cycles) + ends))


class KernelCount:
    """Cycles of the kernels of one op by tile size, from the instructions they issue.

    `cycles` multiplies what cuts along single dimensions make of a `reference` (its sizes); where `counted`
    has looked at the tile itself only the smaller tiles at the borders are judged so. Both are scaled by what
    the tile of the reference costs over what it issues: stalls are taken to grow with the instructions.
    """

    def __init__(
        self, candidates: TilingCandidates, reference: Mapping[str, int], cost_model: CostModel, dma: DmaCost
    ):
        self._candidates = candidates
        self._tiler = candidates.tiler
        self._reference = dict(reference)
        self._cores = dma.timing.cores
        unit = dma.timing.event_unit
        self._fork_cycles = unit.fork_master_cycles + unit.join_cycles
        self._counted: dict[tuple[int, ...], int] = {}
        self._whole = self._issued(self._reference)
        works = self._works(self._reference)
        priced = sum(cost_model.price(work).cycles + fork_cycles for work, fork_cycles in works)
        self._scale = priced / self._whole if priced else 1.0

    def cycles(self) -> Floats:
        """Per candidate."""
        footprint, rows = self._candidates.footprint, self._candidates.rows
        cycles = np.zeros(len(footprint.sizes))
        used = np.flatnonzero(np.bincount(rows))
        cycles[used] = self._whole
        for column, name in enumerate(self._candidates.dims):
            sizes, places = np.unique(footprint.sizes[used, column], return_inverse=True)
            factors = np.array([self._all_pieces(name, size) / self._whole for size in sizes.tolist()])
            cycles[used] *= factors[places]
        return np.asarray((cycles * self._scale)[rows])

    def counted(self, sizes: Mapping[str, int]) -> float:
        """Of one candidate."""
        found = float(self._issued(sizes))
        for name, size in sizes.items():
            found *= self._all_pieces(name, size) / self._piece(name, size)
        return found * self._scale

    def _all_pieces(self, name: str, size: int) -> float:
        """Cycles of all pieces along a dimension, of the reference in all others."""
        full, rest = divmod(self._tiler.dims[name], size)
        return full * self._piece(name, size) + (self._piece(name, rest) if rest else 0)

    def _piece(self, name: str, length: int) -> int:
        return self._issued({**self._reference, name: length})

    def _issued(self, sizes: Mapping[str, int]) -> int:
        """Instructions of the slowest core in each kernel of a tile, and the forks."""
        key = tuple([sizes[name] for name in self._tiler.dims])
        issued = self._counted.get(key)
        if issued is None:
            works = self._works(sizes)
            issued = max(1, sum(max(work.issued, default=0) + fork_cycles for work, fork_cycles in works))
            self._counted[key] = issued
        return issued

    def _works(self, sizes: Mapping[str, int]) -> list[tuple[TeamWork, int]]:
        """The kernels of a tile, and the cycles of their forks."""
        task = self._tiler.task(inner_tile(self._tiler, sizes))
        unplaced: dict[str, int] = defaultdict(int)  # every buffer, and every part of one, at address 0
        return [
            (call.work(self._cores if call.fork else 1, unplaced), self._fork_cycles * call.fork)
            for call in task.calls
        ]


def inner_tile(tiler: Tiler, sizes: Mapping[str, int]) -> dict[str, Extent]:
    """A tile of full size that is at no border, if there is one; dimensions not named are whole."""
    ranges: dict[str, Extent] = {}
    for name, extent in tiler.dims.items():
        size = sizes.get(name, extent)
        start = (extent // size) // 2 * size
        ranges[name] = (start, start + size) if start + size <= extent else (0, size)
    return ranges


def short_list(
    candidates: TilingCandidates,
    moves: Moves,
    usable: NDArray[np.bool_],
    dma: DmaCost,
    cost_model: CostModel,
) -> list[int]:
    """The `COUNTED` candidates of the `usable` ones that seem to take the fewest cycles, best first.

    Of the same sizes only the best loop order is listed, unless tensors are resident: whether they can be
    used in place may depend on the order.
    """
    numbers = np.flatnonzero(usable)
    if len(numbers) == 1:
        return [int(numbers[0])]
    moved = moves.alone_cycles + moves.additions_cycles + moves.offchip_cycles
    reference = int(numbers[np.argmin(moved[numbers])])
    count = KernelCount(candidates, candidates.sizes_at(reference), cost_model, dma)
    total = loop_cycles(candidates, moves, count.cycles())
    looked_at = _best(total, candidates, numbers)
    kernels = np.array([count.counted(candidates.sizes_at(index)) for index in looked_at.tolist()])
    total = loop_cycles(candidates.at(looked_at), moves.at(looked_at), kernels)
    return [int(index) for index in looked_at[np.lexsort((looked_at, total))]]


def _best(total: Floats, candidates: TilingCandidates, numbers: Integers) -> Integers:
    """The `COUNTED` of some candidates that take the least in `total`, of equals the first ones."""
    alike = not candidates.tiler.resident
    most_orders = int(np.bincount(candidates.rows).max()) if alike else 1
    if COUNTED * most_orders < len(numbers):
        # As many as contain so many different sizes, whatever the loop orders, and all that are equal.
        bound = np.partition(total[numbers], COUNTED * most_orders)[COUNTED * most_orders]
        numbers = numbers[total[numbers] <= bound]
    rank = numbers[np.lexsort((numbers, total[numbers]))]
    if alike:
        _, first = np.unique(candidates.rows[rank], return_index=True)
        rank = rank[np.sort(first)]
    return rank[:COUNTED]

# SPDX-License-Identifier: Apache-2.0
"""Which transfer brings data to which kernel, and which kernel's result a transfer takes away.

A transfer names the tile it is for. What the DMA brings is read by the first kernel of that tile after the
transfer; what it takes away was made by the last kernel of that tile before it. Kernels of a tile follow each
other. The uDMA brings a tensor, or a part of it, to L2 before the DMA fetches it from there, and takes it
away after the DMA has brought it there, if both do so for the same step of an op.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from traces.events import COMPUTE, TRANSFER, Slice, Work
from traces.recorder import transfer_direction
from traces.tracks import CORE, DMA, INWARD, OUTWARD, UDMA, track_name


class Flows(NamedTuple):
    """Flow number i goes from the slice at position `sources[i]` to that at `targets[i]`, which is later."""

    sources: array[int]
    targets: array[int]

    def add(self, source: int, target: int) -> None:
        """One more."""
        self.sources.append(source)
        self.targets.append(target)


def flows_of(ordered: Sequence[Slice]) -> Flows:
    """All flows of slices that are in the order of `sorted_slices`.

    Of a kernel of a team the flows are those of its first core that computes.
    """
    flows = Flows(array("q"), array("q"))
    kernels: dict[tuple[str, str, int], tuple[str, list[int]]] = {}
    moves: dict[str, array[int]] = {INWARD: array("q"), OUTWARD: array("q"), UDMA: array("q")}
    for position, event in enumerate(ordered):
        if event.kind == COMPUTE and track_name(event.track).family == CORE:
            track, positions = kernels.setdefault(_tile(event.work), (event.track, []))
            if track == event.track:
                positions.append(position)
        elif event.kind == TRANSFER:
            family = track_name(event.track).family
            way = UDMA if family == UDMA else transfer_direction(event) if family == DMA else ""
            if way in moves:
                moves[way].append(position)
    for way in (INWARD, OUTWARD):
        for position in moves[way]:
            event = ordered[position]
            of_tile = kernels.get(_tile(event.work))
            if of_tile is not None:
                _link(ordered, flows, position, of_tile[1], way)
    for _, positions in kernels.values():
        for before, after in pairwise(positions):
            flows.add(before, after)
    if moves[UDMA]:
        _link_off_chip(ordered, flows, moves)
    return flows


def _link_off_chip(ordered: Sequence[Slice], flows: Flows, moves: dict[str, array[int]]) -> None:
    fetched: dict[str, dict[Work, list[int]]] = {way: defaultdict(list) for way in (INWARD, OUTWARD)}
    for way, by_work in fetched.items():
        for position in sorted(moves[way], key=lambda position: ordered[position].start_cycles):
            work = ordered[position].work
            by_work[work].append(position)
            if work.tile >= 0:
                by_work[Work(work.op, work.step, -1, work.what)].append(position)  # the tensor as a whole
    for position in moves[UDMA]:
        work = ordered[position].work
        for way in (INWARD, OUTWARD):
            if _link(ordered, flows, position, fetched[way].get(work, []), way):
                break


def _link(ordered: Sequence[Slice], flows: Flows, position: int, others: Sequence[int], way: str) -> bool:
    """Link a transfer inward to the first of the others after it, or outward to the last before it."""
    event = ordered[position]
    if way == INWARD:
        at = bisect_left(others, event.end_cycles, key=lambda other: ordered[other].start_cycles)
        if at < len(others):
            flows.add(position, others[at])
        return at < len(others)
    at = bisect_right(others, event.start_cycles, key=lambda other: ordered[other].end_cycles)
    if at:
        flows.add(others[at - 1], position)
    return at > 0


def _tile(work: Work) -> tuple[str, str, int]:
    return work.op, work.step, work.tile

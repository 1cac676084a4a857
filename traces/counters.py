# SPDX-License-Identifier: Apache-2.0
"""Counters read off a finished run: bytes per cycle of every link, and live bytes of every memory."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from math import fsum
from operator import itemgetter

from traces.events import TRANSFER, Slice
from traces.memory_table import MemoryBlock
from traces.recorder import CounterSample
from traces.tracks import DMA, MEMORY_PATH, UDMA, track_name

BYTES_PER_CYCLE = "bytes per cycle"
LIVE_BYTES = "live bytes"


def link_rates(ordered: Iterable[Slice]) -> Iterator[CounterSample]:
    """Bytes per cluster cycle of the DMA in each direction and of the uDMA, a sample per change.

    The bytes of a transfer are spread evenly over its time; channels of one direction are added up. Slices
    come in the order of `sorted_slices`.
    """
    transfers = (event for event in ordered if event.kind == TRANSFER)
    for path, events in groupby(transfers, key=_link_path):
        if path:
            for time_cycles, rate in _changes(sorted(events, key=lambda event: event.start_cycles)):
                yield CounterSample(path, BYTES_PER_CYCLE, time_cycles, rate)


def _link_path(event: Slice) -> str:
    """The track of a link, without the number of a channel."""
    name = track_name(event.track)
    return re.sub(r"_?\d+\Z", "", event.track) if name.family in (DMA, UDMA) else ""


def _changes(transfers: Iterable[Slice]) -> Iterator[tuple[int, float]]:
    """The sum of the rates of transfers that come by start, whenever it changes."""
    last = 0.0
    for time_cycles, sums in groupby(_sums(transfers), key=itemgetter(0)):
        *_, (_, rate) = sums
        if rate != last:
            yield time_cycles, rate
            last = rate


def _sums(transfers: Iterable[Slice]) -> Iterator[tuple[int, float]]:
    """The same at every start and every end."""
    active: list[tuple[int, float]] = []
    for start, end, rate in _with_last(transfers):
        while active and (start is None or active[0][0] <= start):
            time_cycles, _ = heapq.heappop(active)
            yield time_cycles, fsum(rate for _, rate in active)
        if start is not None:
            heapq.heappush(active, (end, rate))
            yield start, fsum(rate for _, rate in active)


def _with_last(transfers: Iterable[Slice]) -> Iterator[tuple[int | None, int, float]]:
    for event in transfers:
        end = max(event.end_cycles, event.start_cycles + 1)
        yield event.start_cycles, end, event.bytes / (end - event.start_cycles)
    yield None, 0, 0.0


def live_bytes_of(blocks: Iterable[MemoryBlock]) -> Iterator[CounterSample]:
    """Bytes of all live buffers of L1, L2 and L3, a sample per change; stacks are no buffers."""
    changes: dict[str, dict[int, int]] = {}
    for block in blocks:
        if block.kind != "stack":
            of_level = changes.setdefault(block.level, {})
            for cycle, sign in ((block.start_cycle, 1), (block.end_cycle, -1)):
                of_level[cycle] = of_level.get(cycle, 0) + sign * block.size_bytes
    for level in sorted(changes):
        live = 0
        for cycle, change in sorted(changes[level].items()):
            live += change
            if change:
                yield CounterSample(f"{MEMORY_PATH}.{level}", LIVE_BYTES, cycle, live)

# SPDX-License-Identifier: Apache-2.0
"""Slices one by one: their busy and lost cycles, those within a window, and whether two overlap."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from traces.events import COMPUTE, Slice, TraceError, make_slice
from traces.recorder import SortedSlices, sorted_slices

BUSY = "busy"


def slice_parts(event: Slice) -> tuple[tuple[str, int], ...]:
    """Cycles of a slice on a core by word: busy and inner stalls of a compute slice, or its stall word.

    Raises TraceError for a slice whose inner stalls exceed its duration.
    """
    if event.kind != COMPUTE:
        return ((event.kind, event.duration_cycles),)
    busy_cycles = event.busy_cycles
    if busy_cycles < 0:
        raise TraceError(
            f"the compute slice at cycle {event.start_cycles} lasts {event.duration_cycles} cycles, "
            f"but has {event.duration_cycles - busy_cycles} stall cycles",
            track=event.track,
        )
    return ((BUSY, busy_cycles), *event.stalls)


def share_out(cycles: int, weights: Sequence[int]) -> list[int]:
    """Split `cycles` in proportion to `weights` in integers (largest remainders first); sums are exact."""
    whole = sum(weights)
    if whole == 0:
        return [0] * len(weights)
    parts = [cycles * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(cycles * weights[i] % whole), i))
    for index in by_remainder[: cycles - sum(parts)]:
        parts[index] += 1
    return parts


def windowed(slices: Iterable[Slice], start_cycles: int, end_cycles: int) -> SortedSlices:
    """What of the slices lies in [start, end); of a cut one stalls, bytes and instructions by its time."""
    shown = []
    for event in sorted_slices(slices):
        start, end = max(event.start_cycles, start_cycles), min(event.end_cycles, end_cycles)
        if end <= start:
            continue
        if end - start == event.duration_cycles:
            shown.append(event)
            continue
        track, _, _, kind, work, stalls, size_bytes, instructions = event
        counts = [cycles for _, cycles in stalls]
        kept = share_out(end - start, [*counts, event.duration_cycles - sum(counts)])
        cut = tuple((word, part) for (word, _), part in zip(stalls, kept, strict=False) if part)
        share = (end - start) / event.duration_cycles
        moved, issued = round(size_bytes * share), round(instructions * share)
        shown.append(make_slice((track, start, end, kind, work, cut, moved, issued)))
    return SortedSlices(shown)


def check_overlap(slices: Sequence[Slice]) -> None:
    """Raise TraceError if two slices of one track overlap; `slices` in the order of `sorted_slices`."""
    for previous, event in itertools.pairwise(slices):
        if event[2] < event[1] or (event[1] < previous[2] and previous[0] == event[0]):
            raise overlap(previous.kind, previous.end_cycles, event)


def overlap(kind: str, end_cycles: int, event: Slice) -> TraceError:
    """What is wrong with a slice that begins before one of this kind has ended, or ends before it starts."""
    if event.end_cycles < event.start_cycles:
        return TraceError(
            f"a slice ({event.kind}) ends at cycle {event.end_cycles}, before its start at cycle "
            f"{event.start_cycles}",
            track=event.track,
        )
    return TraceError(
        f"two slices overlap: one ({kind}) ends at cycle {end_cycles}, the next ({event.kind}) starts at "
        f"cycle {event.start_cycles}",
        track=event.track,
    )

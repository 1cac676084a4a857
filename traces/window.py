# SPDX-License-Identifier: Apache-2.0
"""A part of a trace: its slices cut off at both ends of a window."""

from __future__ import annotations

from collections.abc import Iterable

from traces.events import Slice, make_slice
from traces.parts import share_out
from traces.recorder import SortedSlices, sorted_slices


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

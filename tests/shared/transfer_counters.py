# SPDX-License-Identifier: Apache-2.0
"""A counter track made of a run's transfers, for tests of what shows counters."""

from __future__ import annotations

from collections.abc import Iterable

from traces.events import TRANSFER, Slice
from traces.recorder import CounterSample, transfer_direction
from traces.tracks import track_name


def bytes_in_flight(slices: Iterable[Slice]) -> tuple[CounterSample, ...]:
    """Counter derived from the transfers: bytes of all transfers under way, one counter per DMA direction."""
    change: dict[str, dict[int, int]] = {}
    for event in slices:
        if event.kind == TRANSFER and event.bytes and track_name(event.track).family == "dma":
            name = f"bytes in flight {transfer_direction(event)}".rstrip()
            steps = change.setdefault(name, {})
            steps[event.start_cycles] = steps.get(event.start_cycles, 0) + event.bytes
            steps[event.end_cycles] = steps.get(event.end_cycles, 0) - event.bytes
    samples = []
    for name in sorted(change):
        level_bytes = 0
        for time_cycles, delta_bytes in sorted(change[name].items()):
            level_bytes += delta_bytes
            samples.append(CounterSample("soc.cluster.dma", name, time_cycles, level_bytes))
    return tuple(samples)

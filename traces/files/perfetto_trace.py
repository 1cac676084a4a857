# SPDX-License-Identifier: Apache-2.0
"""The trace for ui.perfetto.dev: native protobuf, real time, one track per core and DMA channel.

Time: a cycle count c becomes the nanosecond floor(c x 1e9 / hz), in integer arithmetic. The same rule for
every boundary keeps the order, so slices that only touch in cycles never overlap in nanoseconds; a duration
is off by less than 1 ns. The exact cycles stand in the annotations of each slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from configs.errors import InputError
from configs.files import replacing
from traces.events import COMPUTE, TRANSFER, Slice
from traces.parts import check_overlap
from traces.recorder import CounterSample, sorted_slices
from traces.tracks import CORE, DMA, OTHER, UDMA, op_label, track_name

NS_PER_SECOND = 1_000_000_000
_GROUPS = {
    DMA: "DMA",
    CORE: "cluster cores",
    UDMA: "uDMA (L3)",
    OTHER: "memory ports and fabric controller",
}
_SEQUENCE = 1

TOGETHER = 10_000
"""Slices or samples that are packets in memory at a time."""

_Item = TypeVar("_Item")


def cycles_to_ns(time_cycles: int, clock_hz: int) -> int:
    """Nanoseconds of a number of cluster cycles, rounded down."""
    return time_cycles * NS_PER_SECOND // clock_hz


def write_perfetto(
    slices: Iterable[Slice], counters: Iterable[CounterSample], clock_hz: int, path: Path
) -> None:
    """Write a ``.pftrace`` file; equal input, equal bytes.

    Raises TraceError if slices of a track overlap, InputError if the clock is not positive or the file
    cannot be written.
    """
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder  # slow to import

    if clock_hz <= 0:
        raise InputError(f"the cluster clock must be positive, not {clock_hz} Hz", where="clock.cluster_hz")
    ordered = sorted_slices(slices)
    check_overlap(ordered)
    samples = list(counters)
    builder = TraceProtoBuilder()
    tracks = _Tracks(builder)
    for event in ordered:
        tracks.declare(event.track)
    for sample in samples:
        tracks.declare_counter(sample)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(builder.serialize())
        # A trace is its packets, one behind the other, so it may be written in parts.
        for some in _together(ordered):
            builder = TraceProtoBuilder()
            for event in some:
                _add_slice(builder, tracks.uuid[event.track], event, clock_hz)
            file.write(builder.serialize())
        for few in _together(samples):
            builder = TraceProtoBuilder()
            for sample in few:
                packet = _packet(builder, sample.time_cycles, clock_hz)
                packet.track_event.type = packet.track_event.TYPE_COUNTER
                packet.track_event.track_uuid = tracks.uuid[f"{sample.track}/{sample.name}"]
                packet.track_event.counter_value = sample.value
            file.write(builder.serialize())


def _together(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    return (items[first : first + TOGETHER] for first in range(0, len(items), TOGETHER))


class _Tracks:
    """Declares each track once, numbers them in order of declaration, and groups them by family."""

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self.uuid: dict[str, int] = {}

    def declare(self, path: str) -> None:
        if path not in self.uuid:
            name = track_name(path)
            descriptor = self._descriptor(path, self._group(name.family))
            descriptor.name = name.label

    def declare_counter(self, sample: CounterSample) -> None:
        key = f"{sample.track}/{sample.name}"
        if key not in self.uuid:
            name = track_name(sample.track)
            descriptor = self._descriptor(key, self._group(name.family))
            descriptor.name = f"{name.label}: {sample.name}"
            unit = descriptor.counter
            unit.unit = unit.UNIT_SIZE_BYTES if "bytes" in sample.name else unit.UNIT_COUNT

    def _group(self, family: str) -> int:
        key = f"group:{family}"
        if key not in self.uuid:
            descriptor = self._descriptor(key, None)
            descriptor.process.pid = self.uuid[key]
            descriptor.process.process_name = _GROUPS[family]
            descriptor.child_ordering = descriptor.EXPLICIT
        return self.uuid[key]

    def _descriptor(self, key: str, parent_uuid: int | None) -> Any:
        self.uuid[key] = len(self.uuid) + 1
        descriptor = self._builder.add_packet().track_descriptor
        descriptor.uuid = self.uuid[key]
        if parent_uuid is not None:
            descriptor.parent_uuid = parent_uuid
            descriptor.sibling_order_rank = self.uuid[key]
        return descriptor


def _packet(builder: Any, time_cycles: int, clock_hz: int) -> Any:
    packet = builder.add_packet()
    packet.timestamp = cycles_to_ns(time_cycles, clock_hz)
    packet.trusted_packet_sequence_id = _SEQUENCE
    return packet


def _add_slice(builder: Any, uuid: int, event: Slice, clock_hz: int) -> None:
    begin = _packet(builder, event.start_cycles, clock_hz).track_event
    begin.type = begin.TYPE_SLICE_BEGIN
    begin.track_uuid = uuid
    begin.name = _slice_name(event)
    works = event.kind in (COMPUTE, TRANSFER)
    begin.categories.append((event.work.step if works else "") or event.kind)
    for name, value in _annotations(event):
        annotation = begin.debug_annotations.add()
        annotation.name = name
        if isinstance(value, int):
            annotation.int_value = value
        else:
            annotation.string_value = value
    end = _packet(builder, event.end_cycles, clock_hz).track_event
    end.type = end.TYPE_SLICE_END
    end.track_uuid = uuid


def _slice_name(event: Slice) -> str:
    work = event.work
    if event.kind not in (COMPUTE, TRANSFER):
        return event.kind
    label = op_label(work.op, work.step)
    if event.kind == TRANSFER:
        return " ".join(part for part in (label, work.what) if part) or TRANSFER
    return label or work.what or COMPUTE


def _annotations(event: Slice) -> Iterable[tuple[str, int | str]]:
    """Only what says something: empty names, tile -1 and zero counts are left out."""
    work = event.work
    yield "start_cycles", event.start_cycles
    yield "duration_cycles", event.duration_cycles
    for name, text in (("op", work.op), ("step", work.step), ("what", work.what)):
        if text:
            yield name, text
    if work.tile >= 0:
        yield "tile", work.tile
    if event.kind == COMPUTE:
        yield "busy_cycles", event.busy_cycles
        for word, cycles in event.stalls:
            yield f"{word}_cycles", cycles
    if event.bytes:
        yield "bytes", event.bytes
    if event.instructions:
        yield "instructions", event.instructions

# SPDX-License-Identifier: Apache-2.0
"""The trace for ui.perfetto.dev: native protobuf, real time.

Tracks: phases, ops and tiles in one another; one per core, DMA channel and uDMA; counters of bytes per cycle
of every link, of live bytes of every memory, and those that blocks have told. Flows lead from a transfer to
the kernel that reads what it brings, and on to the transfer that takes the result away.

Time: a cycle count c becomes the nanosecond floor(c x 1e9 / hz), in integer arithmetic. The same rule for
every boundary keeps the order, so slices that only touch in cycles never overlap in nanoseconds; a duration
is off by less than 1 ns. The exact cycles stand in the annotations of each slice.

Names are written once and referred to by number after that (interned data of one packet sequence).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from configs.errors import InputError
from configs.files import replacing
from traces.counters import BYTES_PER_CYCLE, link_rates, live_bytes_of
from traces.events import COMPUTE, TRANSFER, Slice
from traces.flows import flows_of
from traces.memory_table import MemoryBlock
from traces.nesting import Mark, marks
from traces.parts import check_overlap
from traces.recorder import CounterSample, sorted_slices
from traces.tracks import CORE, DMA, ITERATION, ITERATION_PATH, MEMORY, OTHER, UDMA, op_label, track_name

NS_PER_SECOND = 1_000_000_000
_GROUPS = {
    ITERATION: "training iteration",
    MEMORY: "memory",
    DMA: "DMA",
    CORE: "cluster cores",
    UDMA: "uDMA (L3)",
    OTHER: "memory ports and fabric controller",
}
_SEQUENCE = 1
_ANNOTATIONS, _TEXTS = "debug_annotation_names", "debug_annotation_string_values"

TOGETHER = 2000
"""Slices, marks or samples that are packets in memory at a time."""

Annotations = Iterable[tuple[str, int | str]]


def cycles_to_ns(time_cycles: int, clock_hz: int) -> int:
    """Nanoseconds of a number of cluster cycles, rounded down."""
    return time_cycles * NS_PER_SECOND // clock_hz


def write_perfetto(
    slices: Iterable[Slice],
    counters: Iterable[CounterSample],
    clock_hz: int,
    path: Path,
    blocks: Iterable[MemoryBlock] = (),
) -> None:
    """Write a ``.pftrace`` file; equal input, equal bytes. `blocks` are the memory map of the run.

    Raises TraceError if slices of a track overlap, InputError if the clock is not positive or the file
    cannot be written.
    """
    if clock_hz <= 0:
        raise InputError(
            f"the clock is {clock_hz} Hz, but must be above 0",
            where="clock.cluster_hz",
            cure="use e.g. 50MHz",
        )
    ordered = sorted_slices(slices)
    check_overlap(ordered)
    with replacing(path) as temporary, temporary.open("wb") as file:
        # A trace is its packets, one behind the other, so it may be written in parts.
        writer = Writer(clock_hz, file.write)
        writer.write_marks(_master_marks(ordered))
        writer.write_slices(ordered)
        writer.write_samples(chain(live_bytes_of(blocks), link_rates(ordered), counters))
        writer.flush()


def _master_marks(ordered: Sequence[Slice]) -> Iterator[Mark]:
    """Phases, ops and tiles by the core with the lowest number, if there is a core."""
    for path, events in groupby(ordered, key=lambda event: event.track):
        if track_name(path).family == CORE:
            return marks(list(events))
    return iter(())


class Writer:
    """Makes packets and writes them, `TOGETHER` items at a time.

    Declares each track once, before its first event, numbers tracks in order of declaration, and groups them
    by family.
    """

    def __init__(self, clock_hz: int, write: Callable[[bytes], object]) -> None:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

        self._clock_hz, self._write, self._trace_class = clock_hz, write, Trace
        self._begin, self._end = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
        self._count = TrackEvent.TYPE_COUNTER
        self._cleared = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        self._trace = Trace()
        self._items = 0
        self._uuid: dict[str, int] = {}
        self._numbers: dict[str, dict[str, int]] = defaultdict(dict)
        first = self._trace.packet.add(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=self._cleared)
        first.first_packet_on_sequence = True

    def flush(self) -> None:
        """Write the packets that are not written yet."""
        self._write(self._trace.SerializeToString(deterministic=True))
        self._trace = self._trace_class()
        self._items = 0

    def _next_item(self) -> None:
        self._items += 1
        if self._items >= TOGETHER:
            self.flush()

    def write_marks(self, found: Iterable[Mark]) -> None:
        """Phases, ops and tiles, in one another on one track."""
        for mark in found:
            uuid = self._slice_track(ITERATION_PATH)
            if mark.end:
                self._event(mark.time_cycles, self._end, uuid)
            else:
                self._begin_slice(mark.time_cycles, uuid, mark.name, mark.level, _mark_annotations(mark))
            self._next_item()

    def write_slices(self, ordered: Sequence[Slice]) -> None:
        """Slices and the flows between them."""
        flows = flows_of(ordered)
        begun, ended = _Ends(flows.sources), _Ends(flows.targets)
        for position, item in enumerate(ordered):
            uuid = self._slice_track(item.track)
            works = item.kind in (COMPUTE, TRANSFER)
            category = (item.work.step if works else "") or item.kind
            name = _slice_name(item)
            event = self._begin_slice(item.start_cycles, uuid, name, category, _annotations(item))
            if begun.position == position:
                event.flow_ids.extend(begun.take())
            if ended.position == position:
                event.terminating_flow_ids.extend(ended.take())
            self._event(item.end_cycles, self._end, uuid)
            self._next_item()

    def write_samples(self, samples: Iterable[CounterSample]) -> None:
        """Values of counters."""
        for sample in samples:
            event = self._event(sample.time_cycles, self._count, self._counter_track(sample)).track_event
            if isinstance(sample.value, int):
                event.counter_value = sample.value
            else:
                event.double_counter_value = sample.value
            self._next_item()

    def _event(self, time_cycles: int, kind: int, uuid: int) -> Any:
        """A packet of an event of this kind on a track."""
        packet = self._trace.packet.add()
        packet.timestamp = cycles_to_ns(time_cycles, self._clock_hz)
        packet.trusted_packet_sequence_id = _SEQUENCE
        event = packet.track_event
        event.type = kind
        event.track_uuid = uuid
        return packet

    def _begin_slice(
        self, time_cycles: int, uuid: int, name: str, category: str, annotations: Annotations
    ) -> Any:
        packet = self._event(time_cycles, self._begin, uuid)
        packet.sequence_flags = self._flags
        event = packet.track_event
        event.name_iid = self._number(packet, "event_names", name)
        event.category_iids.append(self._number(packet, "event_categories", category))
        add, numbers = event.debug_annotations.add, self._numbers[_ANNOTATIONS]
        for key, value in annotations:
            number = numbers.get(key) or self._number(packet, _ANNOTATIONS, key)
            if isinstance(value, int):
                add(name_iid=number, int_value=value)
            else:
                add(name_iid=number, string_value_iid=self._number(packet, _TEXTS, value))
        return event

    def _number(self, packet: Any, kind: str, text: str) -> int:
        """The number of a text; what it stands for is told in the first packet that has it."""
        numbers = self._numbers[kind]
        number = numbers.get(text)
        if number is None:
            number = numbers[text] = len(numbers) + 1
            entry = getattr(packet.interned_data, kind).add(iid=number)
            if kind == _TEXTS:
                entry.str = text.encode()
            else:
                entry.name = text
        return number

    def _slice_track(self, path: str) -> int:
        uuid = self._uuid.get(path)
        if uuid is None:
            name = track_name(path)
            uuid = self._declare(path, self._group(name.family)).uuid
            self._declared.name = name.label
        return uuid

    def _counter_track(self, sample: CounterSample) -> int:
        key = f"{sample.track}/{sample.name}"
        uuid = self._uuid.get(key)
        if uuid is None:
            name = track_name(sample.track)
            uuid = self._declare(key, self._group(name.family)).uuid
            self._declared.name = f"{name.label}: {sample.name}"
            unit = self._declared.counter
            if sample.name == BYTES_PER_CYCLE:
                unit.unit_name = "B/cycle"
            else:
                unit.unit = unit.UNIT_SIZE_BYTES if "bytes" in sample.name else unit.UNIT_COUNT
        return uuid

    def _group(self, family: str) -> int:
        key = f"group:{family}"
        if key not in self._uuid:
            descriptor = self._declare(key, None)
            descriptor.process.pid = self._uuid[key]
            descriptor.process.process_name = _GROUPS[family]
            descriptor.child_ordering = descriptor.EXPLICIT
        return self._uuid[key]

    def _declare(self, key: str, parent_uuid: int | None) -> Any:
        self._uuid[key] = len(self._uuid) + 1
        descriptor = self._declared = self._trace.packet.add().track_descriptor
        descriptor.uuid = self._uuid[key]
        if parent_uuid is not None:
            descriptor.parent_uuid = parent_uuid
            descriptor.sibling_order_rank = self._uuid[key]
        return descriptor


class _Ends:
    """Numbers of flows by the position of the slice at one of their ends, asked in order of positions."""

    def __init__(self, positions: Sequence[int]) -> None:
        self._order = array("q", sorted(range(len(positions)), key=positions.__getitem__))
        self._positions = positions
        self._next = 0
        self.position = -1
        """Of the next slice that has some; -1 for none."""
        self._find()

    def take(self) -> list[int]:
        """Those of the next slice that has some."""
        position, numbers = self.position, []
        while self.position == position:
            numbers.append(self._order[self._next] + 1)
            self._next += 1
            self._find()
        return numbers

    def _find(self) -> None:
        more = self._next < len(self._order)
        self.position = self._positions[self._order[self._next]] if more else -1


def _slice_name(event: Slice) -> str:
    work = event.work
    if event.kind not in (COMPUTE, TRANSFER):
        return event.kind
    label = op_label(work.op, work.step)
    return " ".join(part for part in (label, work.what) if part) or event.kind


def _mark_annotations(mark: Mark) -> Annotations:
    yield "start_cycles", mark.time_cycles
    if mark.duration_cycles:
        yield "duration_cycles", mark.duration_cycles
    for name, text in (("op", mark.work.op), ("step", mark.work.step)):
        if text:
            yield name, text


def _annotations(event: Slice) -> Annotations:
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

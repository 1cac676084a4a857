# SPDX-License-Identifier: Apache-2.0
"""A trace for Perfetto read with the protobuf classes, by the rules of its format."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent


@dataclass
class ReadSlice:
    """A slice of a track; times in ns, `depth` slices around it."""

    track: str
    name: str
    category: str
    begin: int
    notes: dict[str, Any]
    depth: int
    end: int = -1
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


@dataclass
class ReadTrace:
    """Slices and counters (time in ns, value) by track, and the process each track belongs to."""

    slices: dict[str, list[ReadSlice]]
    counters: dict[str, list[tuple[int, float]]]
    groups: dict[str, str]

    @property
    def all_slices(self) -> list[ReadSlice]:
        """Of all tracks."""
        return [item for track in self.slices.values() for item in track]


def read_perfetto(path: Path) -> ReadTrace:
    """Read it; asserts that events come in order of time on every track, and that every slice ends."""
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    packets = list(trace.packet)
    declared = [p.track_descriptor for p in packets if p.HasField("track_descriptor")]
    tracks = {track.uuid: track for track in declared}
    assert len(tracks) == len(declared), "every track is declared once"
    texts: dict[str, dict[int, str]] = defaultdict(dict)
    assert packets[0].sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    read = ReadTrace(
        {}, {}, {t.name: tracks[t.parent_uuid].process.process_name for t in declared if t.parent_uuid}
    )
    open_slices: dict[int, list[ReadSlice]] = defaultdict(list)
    last: dict[int, int] = {}
    for packet in packets:
        for kind in ("event_names", "event_categories", "debug_annotation_names"):
            texts[kind].update({entry.iid: entry.name for entry in getattr(packet.interned_data, kind)})
        strings = packet.interned_data.debug_annotation_string_values
        texts["strings"].update({entry.iid: entry.str.decode() for entry in strings})
        if not packet.HasField("track_event"):
            continue
        event, now = packet.track_event, packet.timestamp
        name = tracks[event.track_uuid].name
        assert now >= last.get(event.track_uuid, 0), name
        last[event.track_uuid] = now
        stack = open_slices[event.track_uuid]
        if event.type == TrackEvent.TYPE_COUNTER:
            value = (
                event.double_counter_value if event.HasField("double_counter_value") else event.counter_value
            )
            read.counters.setdefault(name, []).append((now, value))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            stack.pop().end = now
        else:
            assert event.type == TrackEvent.TYPE_SLICE_BEGIN
            assert packet.sequence_flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            notes = {
                texts["debug_annotation_names"][note.name_iid]: texts["strings"][note.string_value_iid]
                if note.string_value_iid
                else note.int_value
                for note in event.debug_annotations
            }
            (category,) = event.category_iids
            item = ReadSlice(
                name,
                texts["event_names"][event.name_iid],
                texts["event_categories"][category],
                now,
                notes,
                len(stack),
                begins=list(event.flow_ids),
                ends=list(event.terminating_flow_ids),
            )
            stack.append(item)
            read.slices.setdefault(name, []).append(item)
    assert not any(open_slices.values()), "every slice ends"
    return read

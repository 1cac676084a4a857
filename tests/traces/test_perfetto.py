# SPDX-License-Identifier: Apache-2.0
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from configs.errors import InputError
from shared.synthetic_trace import training_run
from shared.transfer_counters import bytes_in_flight
from traces.errors import TraceError
from traces.events import COMPUTE, TRANSFER, Slice
from traces.files.perfetto_trace import cycles_to_ns, write_perfetto
from traces.recorder import CounterSample

CLOCK_HZ = 360_000_000  # a period of 2.77 ns, so that rounding matters


def parse(path: Path) -> Trace:
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    return trace


@pytest.mark.smoke
def test_parsed_back_every_slice_is_there_and_none_overlap(tmp_path: Path) -> None:
    recorder = training_run(cores=3)
    slices = recorder.slices
    path = tmp_path / "trace.pftrace"
    write_perfetto(reversed(slices), bytes_in_flight(slices), CLOCK_HZ, path)
    packets = parse(path).packet

    names = {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.HasField("track_descriptor")}
    found: dict[str, list[tuple[int, int, dict[str, int | str]]]] = {}
    open_slices: dict[int, tuple[int, dict[str, int | str]]] = {}
    for packet in packets:
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            assert event.track_uuid not in open_slices, "a slice begins before the one before it ended"
            notes = {a.name: a.string_value or a.int_value for a in event.debug_annotations}
            open_slices[event.track_uuid] = (packet.timestamp, notes)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            begin, notes = open_slices.pop(event.track_uuid)
            found.setdefault(names[event.track_uuid].name, []).append((begin, packet.timestamp, notes))
    assert open_slices == {}
    assert list(found) == ["DMA in", "DMA out", "core 0", "core 1", "core 2"]
    assert sum(map(len, found.values())) == len(slices)
    for track in found.values():
        for before, after in itertools.pairwise(track):
            assert before[1] <= after[0]
        for begin, end, notes in track:
            duration_cycles = int(notes["duration_cycles"])
            assert abs((end - begin) - duration_cycles * 1e9 / CLOCK_HZ) < 1
            assert begin == int(notes["start_cycles"]) * 1_000_000_000 // CLOCK_HZ
    first = next(notes for *_, notes in found["core 1"] if "busy_cycles" in notes)
    assert {"op": "conv1", "step": "FW", "what": "mm_2x2", "tile": 0}.items() <= first.items()
    parts = [word for word in first if word.endswith("_cycles") and word[:-7] not in ("start", "duration")]
    assert sum(int(first[part]) for part in parts) == first["duration_cycles"]


def test_tracks_are_grouped_under_cores_and_dma(tmp_path: Path) -> None:
    path = tmp_path / "trace.pftrace"
    write_perfetto(
        [Slice("soc.cluster.core0", 0, 5, COMPUTE), Slice("soc.cluster.dma.in", 0, 5, TRANSFER)],
        [CounterSample("soc.cluster.dma", "queue", 2, 7)],
        CLOCK_HZ,
        path,
    )
    packets = parse(path).packet
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.HasField("track_descriptor")}
    groups = {
        track.name: tracks[track.parent_uuid].process.process_name
        for track in tracks.values()
        if track.parent_uuid
    }
    assert groups == {"core 0": "cluster cores", "DMA in": "DMA", "DMA: queue": "DMA"}
    counters = [
        (p.timestamp, p.track_event.counter_value)
        for p in packets
        if p.track_event.type == TrackEvent.TYPE_COUNTER
    ]
    assert counters == [(5, 7)]  # 2 cycles of 2.77 ns


def test_equal_runs_are_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        recorder = training_run(cores=2)
        write_perfetto(recorder, bytes_in_flight(recorder), CLOCK_HZ, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@settings(derandomize=True, deadline=None)
@given(start=st.integers(0, 10**12), length=st.integers(0, 10**9), clock_hz=st.integers(1_000, 2_000_000_000))
def test_rounding_keeps_order_and_durations(start: int, length: int, clock_hz: int) -> None:
    begin, end = cycles_to_ns(start, clock_hz), cycles_to_ns(start + length, clock_hz)
    assert begin <= end
    assert abs((end - begin) * clock_hz - length * 1_000_000_000) < clock_hz


def test_overlaps_bad_clocks_and_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="core0"):
        write_perfetto([Slice("core0", 0, 5, "idle"), Slice("core0", 4, 6, "idle")], [], 1, tmp_path / "x")
    with pytest.raises(InputError, match="must be positive, not 0 Hz"):
        write_perfetto([], [], 0, tmp_path / "x")
    with pytest.raises(InputError, match="cannot be written"):
        write_perfetto([], [], CLOCK_HZ, tmp_path / "nowhere" / "x")

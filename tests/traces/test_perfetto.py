# SPDX-License-Identifier: Apache-2.0
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pulptrain as pt
from configs.errors import InputError
from pulptrain.python.result import Result
from scheduler.programs.program_code import TABLE
from shared.perfetto_reader import ReadSlice, ReadTrace, read_perfetto
from shared.synthetic_trace import training_run
from shared.transfer_counters import bytes_in_flight
from traces.events import COMPUTE, TRANSFER, Slice, TraceError, Work
from traces.files.perfetto_trace import TOGETHER, Writer, cycles_to_ns, write_perfetto
from traces.memory_table import MemoryBlock
from traces.metrics import measure
from traces.nesting import marks
from traces.recorder import CounterSample

CLOCK_HZ = 360_000_000  # a period of 2.77 ns, so that rounding matters
GHZ = 1_000_000_000  # a cycle is a nanosecond


@pytest.mark.smoke
def test_parsed_back_every_slice_is_there_and_none_overlap(tmp_path: Path) -> None:
    recorder = training_run(cores=3)
    slices = recorder.slices
    path = tmp_path / "trace.pftrace"
    write_perfetto(reversed(slices), bytes_in_flight(slices), CLOCK_HZ, path)
    found = read_perfetto(path).slices
    nested = found.pop("phases, ops, tiles")
    assert [item.name for item in nested if item.depth == 0] == ["forward", "loss", "backward", "update"]
    assert list(found) == ["DMA in", "DMA out", "core 0", "core 1", "core 2"]
    assert sum(map(len, found.values())) == len(slices)
    for track in found.values():
        for before, after in itertools.pairwise(track):
            assert before.end <= after.begin
        for item in track:
            assert abs((item.end - item.begin) - item.notes["duration_cycles"] * 1e9 / CLOCK_HZ) < 1
            assert item.begin == item.notes["start_cycles"] * 1_000_000_000 // CLOCK_HZ
    first = next(item for item in found["core 1"] if "busy_cycles" in item.notes)
    assert first.name == "conv1.FW mm_2x2"
    assert {"op": "conv1", "step": "FW", "what": "mm_2x2", "tile": 0}.items() <= first.notes.items()
    parts = [
        word for word in first.notes if word.endswith("_cycles") and word[:-7] not in ("start", "duration")
    ]
    assert sum(first.notes[part] for part in parts) == first.notes["duration_cycles"]


def test_tracks_are_grouped_under_cores_and_dma(tmp_path: Path) -> None:
    path = tmp_path / "trace.pftrace"
    write_perfetto(
        [Slice("soc.cluster.core0", 0, 5, COMPUTE), Slice("soc.cluster.dma.in", 0, 5, TRANSFER)],
        [CounterSample("soc.cluster.dma", "queue", 2, 7)],
        CLOCK_HZ,
        path,
        [MemoryBlock("x", "l2", 0, 64, "", "", 0, 5, "weight")],
    )
    read = read_perfetto(path)
    assert read.groups == {
        "core 0": "cluster cores",
        "DMA in": "DMA",
        "DMA: queue": "DMA",
        "L2: live bytes": "memory",
    }
    assert read.counters == {"DMA: queue": [(5, 7)], "L2: live bytes": [(0, 64), (13, 0)]}  # 2.77 ns a cycle


def test_a_counter_of_a_link_is_the_sum_of_what_is_under_way_at_every_change(tmp_path: Path) -> None:
    path = tmp_path / "trace.pftrace"
    moves = [(0, 10, 40), (4, 8, 4), (10, 20, 40), (8, 12, 4), (30, 31, 8)]  # bytes per cycle: 4, 1, 4, 1, 8
    slices = [
        Slice(f"soc.cluster.dma.in{number % 2}", start, end, TRANSFER, bytes=size)
        for number, (start, end, size) in enumerate(moves)
    ]
    write_perfetto(slices, (), GHZ, path)
    counters = read_perfetto(path).counters
    assert counters == {"DMA in: bytes per cycle": [(0, 4), (4, 5), (12, 4), (20, 0), (30, 8), (31, 0)]}


@pytest.fixture(scope="module", params=["all in L2", "some in L3"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, ReadTrace]:
    """A run and its trace with a clock of which a cycle is a nanosecond."""
    if request.param == "all in L2":
        result = pt.run("tutorial-cnn", functional=False, cache=False)
    else:
        result = pt.run("digits-cnn", functional=False, cache=False, l2="36KiB")
    path = tmp_path_factory.mktemp("perfetto") / "trace.pftrace"
    ops = measure(result.slices, result.cycles).ops
    write_perfetto(result.slices, (), GHZ, path, result._blocks(ops))
    return result, read_perfetto(path)


def test_flows_lead_from_every_transfer_to_its_kernel_and_on_to_its_store(
    run: tuple[Result, ReadTrace],
) -> None:
    trace = run[1]
    begins = {flow: item for item in trace.all_slices for flow in item.begins}
    ends = {flow: item for item in trace.all_slices for flow in item.ends}
    assert begins.keys() == ends.keys()
    assert len(begins) == sum(len(item.begins) for item in trace.all_slices), "a flow begins once"
    assert len(ends) == sum(len(item.ends) for item in trace.all_slices), "and ends once"

    def tile(item: ReadSlice) -> tuple[str, str, int]:
        return item.notes.get("op", ""), item.notes.get("step", ""), item.notes.get("tile", -1)

    for flow, source in begins.items():
        target = ends[flow]
        assert source.end <= target.begin
        if "uDMA" in (source.track, target.track):
            assert source.notes["what"] == target.notes["what"], "the same tensor"
            assert {source.track, target.track} in ({"uDMA", "DMA in"}, {"uDMA", "DMA out"})
        else:
            assert tile(source) == tile(target)
            assert (source.track, target.track) in (
                ("DMA in", "core 0"),
                ("core 0", "core 0"),
                ("core 0", "DMA out"),
            )
    waits = [wait for wait in trace.slices["core 0"] if wait.name == "dma_wait"]
    for item in trace.slices["DMA in"]:
        if item.notes["what"] == TABLE:  # for all tiles of an op
            assert not item.begins
            continue
        (flow,) = item.begins
        kernel = ends[flow]
        its = (*tile(item), item.notes["what"])
        waited = [wait for wait in waits if (*tile(wait), wait.notes["what"]) == its]
        assert [wait for wait in waited if wait.begin < kernel.begin], "waited for before the kernel"
        assert all(wait.end <= kernel.begin for wait in waited if wait.begin < kernel.begin)
    for item in trace.slices["DMA out"]:
        assert len([flow for flow in item.ends if begins[flow].track == "core 0"]) == 1


def test_counters_are_those_of_the_summary(run: tuple[Result, ReadTrace]) -> None:
    result, trace = run
    summary = result.summary
    for way in ("in", "out"):
        samples = trace.counters[f"DMA {way}: bytes per cycle"]
        assert samples[-1][1] == 0
        moved = sum(rate * (after - now) for (now, rate), (after, _) in itertools.pairwise(samples))
        assert moved == pytest.approx(summary[f"bytes_{way}"], rel=1e-9)
        assert all(before != after for (_, before), (_, after) in itertools.pairwise(samples)), "only changes"
    for level in ("l1", "l2", "l3"):
        peak = max((value for _, value in trace.counters.get(f"{level.upper()}: live bytes", [(0, 0)])))
        assert peak == summary["lower_bound_bytes"][level] <= summary["peak_bytes"][level]


def test_tiles_are_in_their_op_and_ops_in_their_phase(run: tuple[Result, ReadTrace]) -> None:
    result, trace = run
    track = trace.slices["phases, ops, tiles"]
    by_depth = [[item for item in track if item.depth == depth] for depth in range(3)]
    assert sum(map(len, by_depth)) == len(track)
    assert [item.category for items in by_depth for item in items[:1]] == ["phase", "op", "tile"]
    for outer, inner in itertools.pairwise(by_depth):
        for before, after in itertools.pairwise(outer):
            assert before.end <= after.begin
        for item in inner:
            assert sum(other.begin <= item.begin and item.end <= other.end for other in outer) == 1
    ops = {op["name"]: op for op in result.summary["ops"]}
    assert [item.name for item in by_depth[1]] == list(ops)
    assert [item.name for item in by_depth[0]] == ["forward", "loss", "backward", "update"]
    for item in by_depth[1]:
        tiles = [tile for tile in by_depth[2] if item.begin <= tile.begin < item.end]
        assert len(tiles) == ops[item.name]["tiles"]
        assert {f"{tile.notes['op']}.{tile.notes['step']}" for tile in tiles} == {item.name}
    kernels = [item for item in trace.slices["core 0"] if "busy_cycles" in item.notes]
    for kernel in kernels:
        (around,) = [tile for tile in by_depth[2] if tile.begin <= kernel.begin and kernel.end <= tile.end]
        assert around.name == f"tile {kernel.notes['tile']}"


def test_an_op_that_interleaves_with_another_is_two_slices_and_a_prefetch_is_none() -> None:
    one, two = Work("a", "FW", 0, "mm"), Work("b", "WG", 0, "mm")
    line = [("dma_wait", one), (COMPUTE, one), ("dma_program", two), (COMPUTE, one), ("dma_wait", two)]
    line += [(COMPUTE, two), ("dma_wait", one), (COMPUTE, one)]
    master = [Slice("core0", 10 * at, 10 * at + 10, kind, work) for at, (kind, work) in enumerate(line)]
    found = [(m.time_cycles, m.level, m.name) for m in marks(master) if m.level != "tile" and not m.end]
    assert found == [
        (0, "phase", "forward"),
        (0, "op", "a.FW"),
        (40, "phase", "backward"),
        (40, "op", "b.WG"),
        (60, "phase", "forward"),
        (60, "op", "a.FW"),
    ]


def test_a_long_trace_is_written_in_parts_that_do_not_grow_with_it() -> None:
    def parts(count: int) -> list[int]:
        written: list[bytes] = []
        writer = Writer(GHZ, written.append)
        work = [Work("a", "FW", tile, "mm") for tile in range(50)]
        slices = [
            Slice("soc.cluster.core0", 10 * at, 10 * at + 10, COMPUTE, work[at % 50]) for at in range(count)
        ]
        writer.write_slices(slices)
        writer.flush()
        return [len(part) for part in written]

    few, many = parts(TOGETHER * 2), parts(TOGETHER * 6)
    assert (len(few), len(many)) == (3, 7), "the last holds nothing"
    assert max(many) < 1.1 * max(few)


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
    with pytest.raises(InputError, match="the clock is 0 Hz"):
        write_perfetto([], [], 0, tmp_path / "x")
    with pytest.raises(InputError, match="cannot be written"):
        write_perfetto([], [], CLOCK_HZ, tmp_path / "nowhere" / "x")

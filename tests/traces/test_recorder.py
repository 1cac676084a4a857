# SPDX-License-Identifier: Apache-2.0
import itertools

import pytest

from shared.transfer_counters import bytes_in_flight
from traces.events import COMPUTE, TRANSFER, Slice, TeamKernel, TraceError, Work
from traces.metrics import check_tracks, measure
from traces.recorder import CounterSample, LateSlices, Recorder, sorted_slices, transfer_direction
from traces.tracks import op_label, track_name


def test_order_depends_on_what_happened_not_on_the_order_of_the_calls() -> None:
    events = [
        Slice("soc.cluster.core10", 0, 5, "idle"),
        Slice("soc.cluster.core2", 5, 9, "barrier"),
        Slice("soc.cluster.core2", 0, 5, "idle"),
        Slice("soc.cluster.dma.out", 3, 4, TRANSFER),
        Slice("soc.cluster.dma.in", 6, 7, TRANSFER),
        Slice("soc.l2", 0, 1, TRANSFER),
    ]
    orders = set()
    for shuffled in itertools.islice(itertools.permutations(events), 0, 720, 37):
        recorder = Recorder()
        for event in shuffled:
            recorder.slice(event)
        orders.add(recorder.slices)
    assert orders == {(events[4], events[3], events[2], events[1], events[0], events[5])}


def test_a_wait_of_no_cycles_is_no_event_but_an_empty_transfer_is() -> None:
    recorder = Recorder()
    recorder.slice(Slice("core0", 4, 4, "dma_wait"))
    recorder.slice(Slice("dma.in", 4, 4, TRANSFER))
    assert [event.track for event in recorder] == ["dma.in"]


def test_a_slice_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(
        TraceError, match=r"core0: a slice \(idle\) starts at cycle 5 and ends at cycle 4"
    ) as error:
        Recorder().slice(Slice("core0", 5, 4, "idle"))
    assert error.value.exit_code == 1


def test_the_last_value_of_a_counter_within_a_cycle_counts() -> None:
    recorder = Recorder()
    for time_cycles, value in ((7, 1), (3, 5), (7, 2)):
        recorder.counter("soc.cluster.dma", "queue", time_cycles, value)
    assert recorder.counters == (
        CounterSample("soc.cluster.dma", "queue", 3, 5),
        CounterSample("soc.cluster.dma", "queue", 7, 2),
    )


def test_bytes_in_flight_rise_at_starts_and_fall_at_ends() -> None:
    transfers = (
        Slice("soc.cluster.dma.in0", 0, 10, TRANSFER, bytes=64),
        Slice("soc.cluster.dma.in1", 4, 10, TRANSFER, bytes=16),
        Slice("soc.l1.port", 4, 10, TRANSFER, bytes=16),
    )
    name = "bytes in flight in"
    assert bytes_in_flight(transfers) == (
        CounterSample("soc.cluster.dma", name, 0, 64),
        CounterSample("soc.cluster.dma", name, 4, 80),
        CounterSample("soc.cluster.dma", name, 10, 0),
    )


@pytest.mark.parametrize(
    ("path", "label", "direction"),
    [
        ("soc.cluster.core3", "core 3", ""),
        ("soc.cluster.dma.in", "DMA in", "in"),
        ("soc.cluster.dma.out2", "DMA out 2", "out"),
        ("soc.cluster.dma.read", "DMA in", "in"),
        ("soc.cluster.mchan.channel4", "DMA channel4", ""),
        ("soc.cluster.l1.port", "cluster.l1.port", ""),
        ("soc.fabric_controller", "fabric controller", ""),
    ],
)
def test_tracks_are_named_in_words_of_the_user(path: str, label: str, direction: str) -> None:
    assert (track_name(path).label, track_name(path).direction) == (label, direction)


def test_without_a_direction_in_the_track_the_first_word_of_what_decides() -> None:
    assert transfer_direction(Slice("dma.channel0", 0, 1, TRANSFER, Work(what="out y"))) == "out"
    assert transfer_direction(Slice("dma.channel0", 0, 1, TRANSFER, Work(what="inner"))) == ""


def test_an_op_is_named_once_with_its_step() -> None:
    assert [op_label("fc", "FW"), op_label("fc.FW", "FW"), op_label("", "UPD")] == ["fc.FW", "fc.FW", "UPD"]


def test_what_a_master_does_in_a_kernel_counts_like_its_slices() -> None:
    work, master, worker = Work("conv", "FW", 0, "mm"), "soc.cluster.core0", "soc.cluster.core1"
    shares = (master, 4, 13, (("fpu", 2),), 7), (worker, 3, 16, (), 10)
    together, apart = Recorder(), Recorder()
    for number, computes in enumerate((True, False)):
        begun, end = 40 * number, 13 if computes else 4
        own = (master, 4, end, *shares[0][3:]) if computes else (master, 4, 4, (), 0)
        kernel = TeamKernel(work, begun + 7, begun + 29, (begun,), shares[1:], own, begun, begun + 40)
        together.team(kernel)
        apart.slice(Slice(master, begun, begun + 11, "fork", work))
        if computes:
            apart.slice(Slice(master, begun + 11, begun + 20, COMPUTE, work, (("fpu", 2),), 0, 7))
        apart.slice(Slice(master, begun + 7 + end, begun + 29, "barrier", work))
        apart.slice(Slice(master, begun + 29, begun + 40, "fork", work))
        apart.team(kernel._replace(master=None))
    for recorder in (together, apart):
        recorder.slice(Slice(worker, 69, 80, "idle"))
        recorder.slice(Slice(worker, 29, 40, "idle"))
    figures = measure(together, 80)
    check_tracks(together.slices, 80)
    assert figures == measure(apart, 80) == measure(together.slices, 80)
    assert together.slices == apart.slices
    assert figures.cores[0].stalls == (("fpu", 2), ("barrier", 27), ("fork", 44))


def test_a_fresh_recorder_is_not_mistaken_for_no_tracer() -> None:
    recorder = Recorder()
    assert (recorder or None) is recorder


def recorded() -> Recorder:
    """Two kernels on a worker beside the master, the second without a wait at its join."""
    recorder = Recorder()
    work, worker = Work("conv", "FW", 0, "mm"), "soc.cluster.core1"
    recorder.slice(Slice("soc.cluster.core0", 0, 40, COMPUTE, work, instructions=40))
    recorder.team(TeamKernel(work, 5, 20, (0,), ((worker, 3, 13, (), 10),)))
    recorder.team(TeamKernel(work, 25, 40, (20,), ((worker, 3, 15, (("fpu", 2),), 10),)))
    recorder.slice(Slice("soc.cluster.dma.in", 3, 3, TRANSFER))
    return recorder


def test_slices_of_one_track_are_those_of_all_in_the_same_order() -> None:
    recorder = recorded()
    by_track = {track: tuple(events) for track, events in recorder.tracks.items()}
    assert list(by_track) == ["soc.cluster.dma.in", "soc.cluster.core0", "soc.cluster.core1"]
    assert [event.kind for event in by_track["soc.cluster.core1"]] == [
        *("idle", "fork", COMPUTE, "barrier"),
        *("idle", "fork", COMPUTE),
    ]
    assert tuple(itertools.chain(*by_track.values())) == recorder.slices == sorted_slices(recorder)
    assert {track: tuple(events) for track, events in recorder.tracks.items()} == by_track


def test_figures_are_counted_without_all_slices_at_once() -> None:
    recorder = recorded()
    check_tracks(recorder, 40)
    figures = measure(recorder, 40)
    assert recorder._ordered is None
    assert figures == measure(recorder.slices, 40)
    assert [(core.busy_cycles, core.instructions) for core in figures.cores] == [(40, 40), (20, 20)]


def test_late_slices_are_made_when_they_are_read() -> None:
    made = []
    late = LateSlices(lambda: made.append(1) or recorded().slices)  # type: ignore[func-returns-value]
    assert not made
    assert sorted_slices(late) == tuple(late) == recorded().slices
    assert late[0] == late.sorted[0]
    assert len(late) == len(late.sorted)
    assert made == [1]

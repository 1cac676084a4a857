# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.synthetic_trace import OPS, training_run
from traces.causes import CAUSES
from traces.events import COMPUTE, TRANSFER, Slice, TraceError, Work
from traces.metrics import OpMetrics, check_tracks, measure

FC = Work("fc", "FW", 0)
RELU = Work("relu", "FW", 0)


def compute(core: int, start: int, end: int, work: Work, **stalls: int) -> Slice:
    words = tuple(stalls.items())
    busy = end - start - sum(stalls.values())
    return Slice(f"soc.cluster.core{core}", start, end, COMPUTE, work, words, instructions=busy)


def test_one_tile_on_two_cores_counted_by_hand() -> None:
    """The event list stands in traces/test_synthetic: 800 offload, 110 fill, 130 run, 102 drain, 300 end."""
    run = measure(training_run(cores=2, ops=(("fc", "FW", 1, 100, 80, 16),)))
    assert (run.makespan_cycles, run.offload_cycles) == (1442, 1100)
    # core 0 issues 100 - (14 + 6 + 2 + 4), core 1 has a share of 63: 63 - (8 + 4 + 1 + 3)
    assert [core.busy_cycles for core in run.cores] == [74, 47]
    assert run.total.busy_cycles + run.total.stall_cycles == 2 * 1442
    assert run.utilisation == {"core0": 74 / 1442, "core1": 47 / 1442, "dma": (70 + 62) / 1442}
    assert run.ops == (
        OpMetrics(
            name="fc.FW",
            step="FW",
            start_cycles=800,
            end_cycles=1142,
            cycles=342,
            core_cycles=684,
            busy_cycles=121,
            stalls=(
                ("load_use", 14 + 8),
                ("fpu", 6 + 4),
                ("branch", 2 + 1),
                ("bank_conflict", 4 + 3),
                ("dma_wait", 70 + 62),
                ("dma_program", 80),
                ("barrier", 37),
                ("fork", 60),
                ("idle", 110 + 102),
            ),
            bytes_in=80,
            bytes_out=16,
            tiles=1,
            instructions=121,
            causes=dict.fromkeys(CAUSES, 0)
            | {"busy": 121, "load_use": 22, "fpu": 10, "branch": 3, "bank_conflict": 7}
            # core 1 is idle while core 0 programs and waits: twice what core 0 does
            | {"dma_in": 2 * 70, "dma_out": 2 * 62, "dma_program": 2 * 80, "barrier": 37, "fork": 60},
        ),
    )


def test_cycles_go_to_the_op_the_master_works_for_prefetch_included() -> None:
    run = measure(
        [
            Slice("soc.cluster.core0", 0, 10, "offload"),
            Slice("soc.cluster.core0", 10, 15, "idle"),  # before the first op: to none
            compute(0, 15, 40, FC),
            Slice("soc.cluster.core0", 40, 44, "dma_program", RELU),  # prefetch for the next op
            compute(0, 44, 60, FC),
            Slice("soc.cluster.core0", 60, 62, "barrier"),  # names no op: to the op before
            compute(0, 62, 70, RELU),
            Slice("soc.cluster.core0", 70, 95, "idle"),  # the fabric controller hears of the end: to none
        ]
    )
    assert (run.makespan_cycles, run.offload_cycles) == (95, 15 + 25)
    assert [(op.name, op.cycles, op.start_cycles, op.end_cycles) for op in run.ops] == [
        ("fc.FW", 25 + 16 + 2, 15, 62),
        ("relu.FW", 4 + 8, 40, 70),
    ]


def test_a_worker_slice_across_a_change_of_op_is_shared_out_in_whole_cycles() -> None:
    run = measure(
        [
            compute(0, 0, 3, FC),
            compute(0, 3, 10, RELU),
            compute(1, 0, 10, FC, load_use=3, fpu=4),
        ]
    )
    # 3 of 10 cycles: busy 0.9, load_use 0.9, fpu 1.2 -> one each
    assert [(op.core_cycles, op.busy_cycles, op.stalls) for op in run.ops] == [
        (6, 3 + 1, (("load_use", 1), ("fpu", 1))),
        (14, 7 + 2, (("load_use", 2), ("fpu", 3))),
    ]


def test_bytes_and_dma_time_count_overlapping_transfers_once_in_time() -> None:
    run = measure(
        [
            compute(0, 0, 100, FC),
            Slice("soc.cluster.dma.in0", 0, 40, TRANSFER, FC, bytes=256),
            Slice("soc.cluster.dma.in1", 20, 50, TRANSFER, RELU, bytes=128),
            Slice("soc.cluster.dma.out0", 90, 120, TRANSFER, FC, bytes=32),  # outlives the run
            Slice("soc.l2.port", 0, 100, TRANSFER, FC, bytes=999),  # the same bytes seen by a memory
        ]
    )
    assert run.utilisation["dma"] == 0.6
    assert (run.bytes_in, run.bytes_out) == (384, 32)
    assert [(op.name, op.bytes_in, op.bytes_out) for op in run.ops] == [
        ("fc.FW", 256, 32),
        ("relu.FW", 128, 0),
    ]


@settings(max_examples=30, derandomize=True, deadline=None)
@given(
    cores=st.integers(1, 5),
    ops=st.lists(
        st.tuples(
            st.sampled_from(("conv1", "fc", "relu")),
            st.sampled_from(("FW", "IG", "WG", "UPD")),
            st.integers(1, 3),
            st.integers(100, 900),
            st.integers(0, 4000),
            st.integers(0, 4000),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_everything_adds_up(cores: int, ops: list[tuple[str, str, int, int, int, int]]) -> None:
    slices = training_run(cores, tuple(ops)).slices
    run = measure(slices)
    check_tracks(slices, run.makespan_cycles)
    assert sum(op.cycles for op in run.ops) + run.offload_cycles == run.makespan_cycles
    for core in run.cores:
        assert core.busy_cycles + core.stall_cycles == run.makespan_cycles
    for op in run.ops:
        assert op.busy_cycles + sum(cycles for _, cycles in op.stalls) == op.core_cycles == op.cycles * cores
    assert sum(op.busy_cycles for op in run.ops) == run.total.busy_cycles
    assert sum(op.instructions for op in run.ops) == run.total.instructions
    assert (
        sum(op.bytes_in for op in run.ops)
        == run.bytes_in
        == sum(tiles * size for *_, tiles, _, size, _ in ops)
    )
    assert all(0 <= share <= 1 for share in run.utilisation.values())


def test_tiles_of_the_lifelike_run() -> None:
    run = measure(training_run())
    assert {op.layer for op in run.ops} == {"conv1", "conv2", "relu1", "relu2", "fc", "loss"}
    assert [(op.name, op.tiles) for op in run.ops] == [
        (f"{name}.{step}", tiles) for name, step, tiles, *_ in OPS
    ]
    assert sum(dict(run.ops[0].stalls).values()) == run.ops[0].core_cycles - run.ops[0].busy_cycles


@pytest.mark.parametrize(
    ("slices", "message"),
    [
        (
            [compute(0, 0, 6, FC), compute(0, 5, 10, FC)],
            r"one \(compute\) ends at cycle 6, the next \(compute\) starts at cycle 5",
        ),
        ([compute(0, 0, 6, FC), compute(0, 7, 10, FC)], "add up to 9, but must equal the makespan, 10"),
        ([compute(0, 0, 10, FC), compute(1, 0, 9, FC)], "core1: busy and stall cycles add up to 9"),
        ([compute(0, 0, 10, FC, fpu=6, branch=5)], "lasts 10 cycles, but has 11 stall cycles"),
        ([compute(0, 0, 10, FC, coffee=1)], "unknown kind of stall 'coffee'"),
        ([Slice("core0", 0, 10, "thinking")], "unknown kind of stall 'thinking'"),
        ([compute(0, 0, 11, FC)], r"ends at cycle 11, after the end of the run \(makespan 10\)"),
        (
            [compute(0, 0, 10, FC), Slice("dma.in", 0, 5, TRANSFER), Slice("dma.in", 4, 6, TRANSFER)],
            r"dma.in: two slices overlap: one \(transfer\) ends at cycle 5, the next \(transfer\) starts at "
            r"cycle 4",
        ),
    ],
)
def test_a_trace_that_contradicts_itself_is_refused(slices: list[Slice], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        check_tracks(slices, 10)


def test_a_trace_without_cores_or_ops_has_no_ops() -> None:
    assert measure([]).ops == ()
    only_kernel = measure([compute(0, 0, 10, Work())])
    assert (only_kernel.ops, only_kernel.total.busy_cycles) == ((), 10)

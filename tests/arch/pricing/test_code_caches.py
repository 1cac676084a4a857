# SPDX-License-Identifier: Apache-2.0
"""Kernels wait for their code: cold, steady and warm instruction caches in the event model.

Lines are 16 B (4 instructions), the private caches hold 32 lines, the shared one 256. A line from L2 costs 18
cycles, a line from the shared cache 2 (measured on GVSoC, micro.csv and icache.csv).
"""

from __future__ import annotations

import csv
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.blocks.soc import Soc
from arch.pricing.code_caches import COLD, STEADY, WARM, CodeCaches
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import CoreWork, Instruction, Loop, Op, TeamWork
from arch.spec.soc_config import load_soc
from configs.errors import InputError
from configs.values import replace
from shared.paths import MEASURED
from shared.soc_fixture import FixedCostModel, Recorder, Script, read, soc_timing
from traces.events import COMPUTE
from traces.metrics import check_tracks
from traces.recorder import Recorder as TraceRecorder

ICACHE = soc_timing().icache
ROWS = MEASURED / "icache.csv.gz"
FROM_L2, FROM_SHARED = 18, 2


def code(name: str, lines: int, cores: int = 2) -> TeamWork:
    """A kernel of `lines` full lines, executed once."""
    return TeamWork(name, (CoreWork((Instruction(Op.ALU),) * (4 * lines)),) * cores)


def stalls(*kernels: TeamWork) -> list[int]:
    """What core 0 waits in calls one after another, from cold caches."""
    caches = CodeCaches(8, ICACHE)
    return [caches.call(kernel).get(0, 0) for kernel in kernels]


def test_the_first_call_comes_from_l2_and_the_next_is_free():
    assert stalls(code("a", 10), code("a", 10)) == [10 * FROM_L2, 0]


def test_kernels_share_the_private_cache_until_it_is_full():
    a, b = code("a", 10), code("b", 22)
    assert stalls(a, b, a, b) == [180, 22 * FROM_L2, 0, 0]


def test_the_kernel_called_longest_ago_gives_up_its_lines():
    a, b = code("a", 10), code("b", 25)
    # Three lines of a go for b; they are in the shared cache still. Back come a's 10, then b misses 3.
    assert stalls(a, b, a, b) == [180, 450, 3 * FROM_SHARED, 3 * FROM_SHARED]


def test_code_that_left_the_shared_cache_comes_from_l2_again():
    big = [code(f"k{number}", 30) for number in range(9)]  # 270 lines, 256 fit
    first, second = stalls(*big, *big)[:9], stalls(*big, *big)[9:]
    assert first == [30 * FROM_L2] * 9
    # 14 lines of k0 went for k8, the other 16 have left the private cache only; every later call is the same.
    assert second == [14 * FROM_L2 + 16 * FROM_SHARED] * 9


@pytest.mark.parametrize("lines", [260, 300, 384, 512, 1024])
def test_what_the_price_of_a_warm_call_has_is_not_charged_again(lines):
    """A kernel too large for the shared cache: alone it hardly waits longer than its price says."""
    rtl = load_soc("pulp-open", "rtl").icache
    caches, kernel = CodeCaches(1, rtl), code("a", lines, cores=1)
    caches.call(kernel)
    assert caches.call(kernel).get(0, 0) <= 2 * rtl.shared_refill_stall_cycles


def test_a_core_that_was_not_in_the_team_finds_the_code_in_the_shared_cache():
    caches = CodeCaches(2, ICACHE)
    assert caches.call(code("a", 10, cores=1)) == {0: 180}
    assert caches.call(code("a", 10, cores=2)) == {1: 10 * FROM_SHARED}


def test_a_loop_is_fetched_once_and_a_loop_without_trips_never():
    body = (Instruction(Op.ALU),) * 8
    for trips, lines in ((100, 2), (0, 0)):
        team = TeamWork("loop", (CoreWork((Loop(trips, body, hardware=True),)),))
        assert CodeCaches(1, ICACHE).call(team).get(0, 0) == lines * FROM_L2


with gzip.open(ROWS, "rt", encoding="utf-8") as _file:
    MEASURED = list(csv.DictReader(_file))


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row['cores']}-{row['n_nops']}")
def test_first_calls_of_straight_line_code_as_measured(row):
    """All 48 rows of icache.csv, through the whole SoC."""
    cores, instructions = int(row["cores"]), int(row["n_nops"])
    timing = load_soc("pulp-open", "gvsoc")
    script = Script()
    script.compute(TeamWork("nops", (CoreWork((Instruction(Op.ALU),) * instructions),) * cores))
    tracer = Recorder()
    Soc(timing, TeamCostModel(timing), tracer, code_start=COLD).run(script.program())
    for core in range(cores):
        (share,) = tracer.compute(f"soc.cluster.core{core}")
        assert share.end_cycles - share.start_cycles == int(row["cold_iter0_max"])
        assert dict(share.stalls) == {"icache": int(row["cold_iter0_max"]) - instructions}


def traced(start: str, *kernels: TeamWork, transfer: bool = False) -> tuple[int, TraceRecorder]:
    """A program of kernels, with a transfer beside the first if asked, on a fixed price of 400 cycles."""
    script = Script()
    if transfer:
        moved = script.start(read(0, 0, 1024))
    for kernel in kernels:
        script.compute(kernel)
    if transfer:
        script.wait(moved)
    tracer = TraceRecorder()
    cost_model = FixedCostModel({kernel.kernel: 400 for kernel in kernels}, slowdown=2)
    cycles = Soc(soc_timing(2), cost_model, tracer, code_start=start).run(script.program()).cycles
    return cycles, tracer


def test_warm_steady_and_cold_starts_of_one_program():
    a, b = code("a", 10), code("b", 25)
    warm, steady, cold = (traced(start, a, a, b)[0] for start in (WARM, STEADY, COLD))
    assert cold - warm == 10 * FROM_L2 + 25 * FROM_L2
    # In a series the program before ended with b, which took 3 lines of a; then b misses the 3 a took back.
    assert steady - warm == 3 * FROM_SHARED + 3 * FROM_SHARED


def test_a_single_kernel_in_a_series_is_warm():
    a = code("a", 20)
    assert traced(STEADY, a, a)[0] == traced(WARM, a, a)[0]


@pytest.mark.parametrize("transfer", [False, True])
def test_every_cycle_of_a_cold_run_has_a_name(transfer):
    cycles, tracer = traced(COLD, code("a", 10), code("b", 30), code("a", 10), transfer=transfer)
    check_tracks(tracer.slices, cycles)
    shares = [item for item in tracer.slices if item.kind == COMPUTE]
    assert len(shares) == 6
    for share in shares:
        lost = sum(lost for _, lost in share.stalls)
        assert share.instructions + lost == share.end_cycles - share.start_cycles


def test_cold_runs_repeat_exactly_and_each_begins_cold():
    script = Script()
    for kernel in (code("a", 10), code("b", 30), code("a", 10)):
        script.compute(kernel)
    tracer = Recorder()
    soc = Soc(soc_timing(2), FixedCostModel({"a": 100, "b": 50}), tracer, code_start=COLD)
    first = soc.run(script.program()).cycles
    slices = list(tracer.slices)
    assert soc.run(script.program()).cycles == first
    assert tracer.slices[len(slices) :] == slices


def test_an_unknown_state_is_refused():
    with pytest.raises(InputError, match="lukewarm"):
        Soc(soc_timing(), FixedCostModel({}), code_start="lukewarm")


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 300)), max_size=20))
def test_nobody_waits_longer_than_cold_and_larger_caches_never_wait_longer(calls):
    sizes = dict(calls)  # a kernel has one size
    kernels = [code(name, sizes[name], cores=1) for name, _ in calls]
    small = stalls(*kernels)
    large = CodeCaches(1, replace(ICACHE, shared_bytes=1 << 20, private_bytes=1 << 20, private_ways=1 << 10))
    for kernel, cycles in zip(kernels, small, strict=True):
        assert 0 <= cycles <= sizes[kernel.kernel] * FROM_L2
        assert large.call(kernel).get(0, 0) <= cycles

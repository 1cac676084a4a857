# SPDX-License-Identifier: Apache-2.0
"""The cluster micro-model: exact against the word-level oracle, windows, memoisation, measured patterns."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.pricing.cost_model import TeamCost, Traffic
from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window import EngineChoice
from arch.pricing.window_plan import START_OFFSETS_CYCLES, PricingWindow
from arch.spec.isa import CoreWork, Instruction, Loop, Node, Op, Stream, TeamWork
from arch.spec.timing import SocTiming
from configs.errors import InputError
from configs.values import replace
from shared.arch_pricing_cases import (
    DYNAMIC_FPU,
    GVSOC_CORE,
    PRIVATE_FPU,
    STATIC_FPU,
    ins,
    matmul_nest,
    matmul_team,
    nests,
    soc,
)
from shared.whole_kernel import WHOLE_KERNEL
from shared.word_oracle import WordOracle

ENGINES = (EngineChoice(1 << 60), EngineChoice(0))
"""Plain Python whatever it takes, and compiled from the first item on."""

TOGETHER = replace(soc().event_unit, fork_master_cycles=0, fork_push_cycles=0, fork_worker_cycles=0)
"""A fork that starts all cores in the same cycle."""


def starts(timing: SocTiming, work: TeamWork) -> tuple[int, ...]:
    """Start of every core as the fork skews it, worked out by hand for the oracle."""
    if sum(core is not None for core in work.cores) == 1:
        return (0,) * len(work.cores)
    unit = timing.event_unit
    master, worker = unit.fork_master_cycles, unit.fork_push_cycles + unit.fork_worker_cycles
    first = min(master, worker)
    return tuple((worker if core else master) - first for core in range(len(work.cores)))


def both(timing: SocTiming, work: TeamWork, traffic: Traffic = Traffic.NONE) -> tuple[TeamCost, TeamCost]:
    """The fast model with a window over everything, by either engine, and the oracle."""
    plain, fast = (TeamCostModel(timing, WHOLE_KERNEL, engine).price(work, traffic) for engine in ENGINES)
    assert (plain, plain.dma) == (fast, fast.dma)
    return fast, WordOracle(timing).price(work, starts(timing, work), traffic)


def loads(stride: int, offset: int, cores: int, *, count: int = 64, start: int = 0) -> TeamWork:
    """`count` loads per core, `stride` bytes apart, core c beginning at c * `offset`."""
    body = (ins(Op.LOAD, 1, stream=0),)
    return TeamWork(
        "loads",
        tuple(
            CoreWork((Loop(count, body, hardware=True),), (Stream(start + core * offset, (stride,)),))
            for core in range(cores)
        ),
    )


def test_one_bank_serves_one_word_a_cycle_oldest_request_first():
    """Two cores, same word, same cycle: core 0 first, then they alternate."""
    timing = soc(conflicts=True, event_unit=TOGETHER)
    work = loads(0, 0, 2, count=4)
    first, second = TeamCostModel(timing, WHOLE_KERNEL).price(work).cores
    assert (first.cycles, dict(first.stalls)) == (7, {"bank_conflict": 3})
    assert (second.cycles, dict(second.stalls)) == (8, {"bank_conflict": 4})


def test_without_conflicts_the_same_word_costs_nothing():
    assert TeamCostModel(soc(event_unit=TOGETHER), WHOLE_KERNEL).price(loads(0, 0, 8)).cycles == 64


def test_cores_on_one_static_fpu_share_it_and_others_do_not_notice():
    fma = CoreWork((Loop(10, (ins(Op.FMA, 1, 2, 3),), hardware=True),))
    work = TeamWork("fma", (fma, fma, None, None, fma))
    costs = TeamCostModel(soc(fpu=STATIC_FPU, event_unit=TOGETHER), WHOLE_KERNEL).price(work).cores
    assert [core.cycles for core in costs] == [19, 10, 0, 0, 20]
    assert dict(costs[4].stalls) == {"fpu": 10}


def test_dynamic_fpus_serve_four_of_eight_cores_each_cycle():
    fma = CoreWork((Loop(10, (ins(Op.FMA, 1, 2, 3),), hardware=True),))
    assert (
        TeamCostModel(soc(fpu=DYNAMIC_FPU, event_unit=TOGETHER), WHOLE_KERNEL)
        .price(TeamWork("fma", (fma,) * 4))
        .cycles
        == 10
    )
    costs = (
        TeamCostModel(soc(fpu=DYNAMIC_FPU, event_unit=TOGETHER), WHOLE_KERNEL)
        .price(TeamWork("fma", (fma,) * 8))
        .cores
    )
    assert [core.cycles for core in costs] == [19] * 4 + [20] * 4


def test_one_division_unit_for_the_cluster():
    div = CoreWork((ins(Op.FDIV, 1),))
    costs = TeamCostModel(soc(event_unit=TOGETHER), WHOLE_KERNEL).price(TeamWork("div", (div,) * 3)).cores
    assert [core.cycles for core in costs] == [14, 28, 42]


STRIDES = [0, 4, 8, 12, 16, 32, 60, 64, 128, 2, 6, 33]
OFFSETS = [0, 4, 8, 64, 100]


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("offset", OFFSETS)
def test_strided_loads_equal_the_oracle_access_by_access(stride, offset):
    """60 patterns, multiples of the bank count (all cores on one bank) and misaligned ones included."""
    fast, oracle = both(soc(conflicts=True), loads(stride, offset, 8, count=12))
    assert fast == oracle


@pytest.mark.parametrize("fpu", [PRIVATE_FPU, STATIC_FPU, DYNAMIC_FPU], ids=lambda fpu: fpu.mapping)
@pytest.mark.parametrize("size", [(1, 4, 4), (2, 8, 4), (1, 16, 8), (3, 5, 2)])
@pytest.mark.parametrize("traffic", [Traffic.NONE, Traffic.BOTH])
def test_small_matmuls_equal_the_oracle(fpu, size, traffic):
    fast, oracle = both(soc(conflicts=True, fpu=fpu), matmul_team(*size), traffic)
    assert fast == oracle


def fair(timing: SocTiming) -> SocTiming:
    """The machine whose banks are round robin, with the gaps that bursts then have."""
    return replace(
        timing,
        l1=replace(timing.l1, arbitration="round_robin"),
        dma=replace(timing.dma, burst_bytes=64, read_burst_gap_cycles=2, write_burst_gap_cycles=3),
    )


@pytest.mark.parametrize("fpu", [PRIVATE_FPU, DYNAMIC_FPU], ids=lambda fpu: fpu.mapping)
@pytest.mark.parametrize("size", [(1, 4, 4), (2, 8, 4), (1, 16, 8), (3, 5, 2)])
@pytest.mark.parametrize("traffic", [Traffic.NONE, Traffic.IN, Traffic.OUT, Traffic.BOTH])
def test_small_matmuls_on_round_robin_banks_equal_the_oracle(fpu, size, traffic):
    fast, oracle = both(fair(rotating(soc(conflicts=True, fpu=fpu))), matmul_team(*size), traffic)
    assert fast == oracle


@pytest.mark.parametrize("banks", [2, 4, 16])
@pytest.mark.parametrize("stride", [0, 4, 6, 64])
@pytest.mark.parametrize("traffic", [Traffic.NONE, Traffic.IN, Traffic.BOTH])
def test_loads_on_round_robin_banks_equal_the_oracle(banks, stride, traffic):
    """Few banks: cores and both directions want the same one in most cycles."""
    timing = soc(conflicts=True)
    timing = fair(replace(timing, l1=replace(timing.l1, banks=banks)))
    fast, oracle = both(timing, loads(stride, 8, 5, count=12), traffic)
    assert fast == oracle


def test_a_round_robin_bank_serves_its_cores_in_turn():
    """Four cores want one word ten times: one of them gets it in every cycle, each as often as the others."""
    cost = TeamCostModel(fair(soc(conflicts=True, event_unit=TOGETHER)), WHOLE_KERNEL).price(
        loads(0, 0, 4, count=10)
    )
    assert sorted(core.cycles for core in cost.cores) == [37, 38, 39, 40]


def test_a_beat_waits_for_all_its_words():
    """A core that always wants one of two banks has it in every second cycle, and every beat takes two."""
    base = fair(soc(conflicts=True, event_unit=TOGETHER))
    timing = replace(base, l1=replace(base.l1, banks=2))
    cost = TeamCostModel(timing, WHOLE_KERNEL).price(loads(0, 0, 1, count=100), Traffic.IN)
    assert cost.dma is not None
    assert cost.dma.inward is not None
    words, cycles = cost.dma.inward
    assert words / cycles == pytest.approx(1, rel=0.1)


def test_a_queueing_dma_gets_as_much_as_so_many_cores():
    """The other rule on the same bank: two ports beside one core leave it every third cycle."""
    base = soc(conflicts=True, event_unit=TOGETHER)
    timing = replace(base, l1=replace(base.l1, banks=1))
    assert TeamCostModel(timing, WHOLE_KERNEL).price(loads(0, 0, 1, count=10), Traffic.IN).cycles == 28


def rotating(timing: SocTiming, turns: bool = True) -> SocTiming:
    """The machine with priorities that move on every cycle."""
    if not turns:
        return timing
    return replace(
        timing,
        l1=replace(timing.l1, arbitration="rotating"),
        fpu=replace(timing.fpu, arbitration="rotating"),
    )


def test_with_rotating_priority_no_core_pays_for_its_number():
    """Eight cores on four FPUs: in order the upper half loses every tie, rotating the loss goes round."""
    fma = CoreWork((Loop(64, (ins(Op.FMA, 1, 2, 3), ins(Op.ALU), ins(Op.ALU)), hardware=True),))
    base = soc(fpu=replace(DYNAMIC_FPU, count=2), event_unit=TOGETHER)
    waits = {
        name: [
            dict(core.stalls).get("fpu", 0) for core in TeamCostModel(timing, WHOLE_KERNEL).price(work).cores
        ]
        for name, timing, work in (
            ("in order", base, TeamWork("fma", (fma,) * 8)),
            ("rotating", rotating(base), TeamWork("fma", (fma,) * 8)),
        )
    }
    assert max(waits["rotating"]) - min(waits["rotating"]) <= max(waits["in order"]) - min(waits["in order"])
    assert max(waits["rotating"]) < 1.1 * min(waits["rotating"])


MACHINES = st.sampled_from(
    [
        (fair if in_turn else lambda timing: timing)(
            rotating(soc(conflicts=conflicts, fpu=fpu, core=core), turns)
        )
        for conflicts, turns, in_turn in (
            (True, False, False),
            (True, True, False),
            (True, False, True),
            (True, True, True),
            (False, False, False),
        )
        for core in (
            GVSOC_CORE,
            replace(GVSOC_CORE, load_use_stall_cycles=3),
            replace(GVSOC_CORE, load_cycles=2),
        )
        for fpu in (
            PRIVATE_FPU,
            STATIC_FPU,
            replace(STATIC_FPU, latency_cycles=3, interval_cycles=2, fma_cycles=3),
            replace(DYNAMIC_FPU, count=2, latency_cycles=2, interval_cycles=3, divsqrt_count=2),
            replace(STATIC_FPU, latency_cycles=2, divsqrt_issue_cycles=2),
            replace(PRIVATE_FPU, divsqrt_count=8, divsqrt_issue_cycles=1),
        )
    ]
)


RANDOM_TEAMS = st.lists(st.one_of(st.none(), nests(depth=2, max_trips=4)), min_size=2, max_size=8).filter(any)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(RANDOM_TEAMS, MACHINES, st.sampled_from(list(Traffic)))
def test_random_teams_equal_the_oracle(cores, timing, traffic):
    big_cache = replace(timing.icache, private_bytes=1 << 20)
    fast, oracle = both(replace(timing, icache=big_cache), TeamWork("random", tuple(cores)), traffic)
    assert fast == oracle
    for core in fast.cores:
        assert core.cycles == core.instructions + sum(cycles for _, cycles in core.stalls)


def test_a_write_to_a_pending_register_moves_no_other_result():
    """Register 1 comes 3 cycles behind its MUL, though register 2, still pending, is written in between.

    A load nobody executes makes results reach far enough that the write to register 2 is an item of its own.
    """
    never = Loop(0, (Instruction(Op.LOAD, 0),), hardware=False)
    late = (Instruction(Op.MUL, 1, (2,)), Instruction(Op.ALU, 2), Instruction(Op.ALU, 0, (1,)))
    core = CoreWork((never, Instruction(Op.MUL, 2), Loop(2, late, hardware=False)), ())
    slow = replace(GVSOC_CORE, load_use_stall_cycles=3)
    fast, oracle = both(soc(core=slow, conflicts=True), TeamWork("pending", (core,)), Traffic.IN)
    assert fast == oracle


@settings(max_examples=150, derandomize=True, deadline=None)
@given(RANDOM_TEAMS, MACHINES, st.sampled_from(list(Traffic)))
def test_no_price_is_below_the_least(cores, timing, traffic):
    """Searches leave out what takes too long by this bound, so it holds to the cycle."""
    cost_model, work = TeamCostModel(timing), TeamWork("random", tuple(cores))
    assert cost_model.least_cycles(work) <= cost_model.price(work, traffic).cycles


SHORT_WINDOW = PricingWindow(100_000, starts=START_OFFSETS_CYCLES[:1])
"""Extrapolates what the default would execute whole, so that the whole is at hand to compare with."""

WINDOW_CASES = [
    (rows, k, columns, skew)
    for rows, k, columns in [(2, 40, 40), (8, 33, 18), (6, 27, 30), (3, 100, 50), (4, 128, 20), (5, 64, 26)]
    for skew in (0, 20)
]


@pytest.mark.parametrize("fpu", [PRIVATE_FPU, STATIC_FPU], ids=["private", "shared"])
@pytest.mark.parametrize(("rows", "k", "columns", "skew"), WINDOW_CASES)
def test_an_extrapolated_window_is_within_two_per_cent_of_the_whole(fpu, rows, k, columns, skew):
    timing = soc(conflicts=True, fpu=fpu)
    work = matmul_team(rows, k, columns, b=8 * rows * k * 4 + skew, c=32768)
    window = TeamCostModel(timing, SHORT_WINDOW).price(work)
    whole = TeamCostModel(timing, WHOLE_KERNEL).price(work)
    assert window.cycles == pytest.approx(whole.cycles, rel=0.02)
    assert [core.instructions for core in window.cores] == [core.instructions for core in whole.cores]


def test_what_waiting_cannot_change_is_exact_in_any_window():
    """A tiny window guesses bank conflicts, but not instructions, branches, load-use or multiplications."""
    timing = soc(conflicts=True, fpu=STATIC_FPU)
    work = matmul_team(5, 50, 26)
    tiny = TeamCostModel(timing, PricingWindow(1600, 2)).price(work)
    whole = TeamCostModel(timing, WHOLE_KERNEL).price(work)
    for word in ("load_use", "branch", "multicycle"):
        assert [dict(core.stalls).get(word) for core in tiny.cores] == [
            dict(core.stalls).get(word) for core in whole.cores
        ]


def perturbations() -> list[tuple[str, SocTiming, TeamWork, Traffic]]:
    """The reference case first, then the same with one input changed."""
    base = soc(conflicts=True, fpu=STATIC_FPU)
    work = matmul_team(2, 12, 8)

    def core_change(**fields: int) -> SocTiming:
        return replace(base, core=replace(base.core, **fields))

    def one_core(nest: CoreWork) -> TeamWork:
        return replace(work, cores=(*work.cores[:7], nest))

    other_body: tuple[Node, ...] = (*work.cores[7].body, ins(Op.ALU))  # type: ignore[union-attr]
    late = replace(base.event_unit, fork_master_cycles=47)
    return [
        ("reference", base, work, Traffic.NONE),
        ("trips", base, one_core(matmul_nest(3, 12, 8, 7)), Traffic.NONE),
        ("instructions", base, one_core(CoreWork(other_body, work.cores[7].streams)), Traffic.NONE),  # type: ignore[union-attr]
        ("base address", base, matmul_team(2, 12, 8, b=8196), Traffic.NONE),
        ("stride", base, matmul_team(2, 12, 10), Traffic.NONE),
        ("cores", base, matmul_team(2, 12, 8, cores=7), Traffic.NONE),
        ("absent core", base, replace(work, cores=(None, *work.cores[1:])), Traffic.NONE),
        ("traffic in", base, work, Traffic.IN),
        ("traffic both", base, work, Traffic.BOTH),
        ("skew", replace(base, event_unit=late), work, Traffic.NONE),
        ("banks", replace(base, l1=replace(base.l1, banks=8)), work, Traffic.NONE),
        ("conflicts", soc(fpu=STATIC_FPU), work, Traffic.NONE),
        ("arbitration", fair(base), work, Traffic.BOTH),
        ("fpu map", soc(conflicts=True, fpu=DYNAMIC_FPU), work, Traffic.NONE),
        ("fpu private", soc(conflicts=True), work, Traffic.NONE),
        ("load-use", core_change(load_use_stall_cycles=3), work, Traffic.NONE),
        ("branch", core_change(branch_taken_stall_cycles=3), work, Traffic.NONE),
    ]


def test_every_input_that_matters_is_in_the_key():
    """One cost model asked everything in turn answers like fresh ones; each change changes the answer."""
    cases = perturbations()
    fresh = [TeamCostModel(timing).price(work, traffic) for _, timing, work, traffic in cases]
    for (name, *_), cost in zip(cases[1:], fresh[1:], strict=True):
        assert cost != fresh[0], name
    names = [name for name, *_ in cases]
    assert fresh[names.index("arbitration")] != fresh[names.index("traffic both")]
    base = cases[0][1]
    shared = TeamCostModel(base)
    for repeat in range(2):
        for (name, timing, work, traffic), expected in zip(cases, fresh, strict=True):
            if timing == base:
                again = replace(work) if repeat else work
                assert shared.price(again, traffic) == expected, name


def test_addresses_a_whole_turn_of_the_banks_apart_price_alike():
    cost_model = TeamCostModel(soc(conflicts=True))
    here = cost_model.price(matmul_team(2, 12, 8))
    assert cost_model.price(matmul_team(2, 12, 8, a=640, b=8192 + 64, c=16384 + 128)) == here


# Cycles of the slowest and the fastest core for 64 issue slots, measured on GVSoC with conflicts and private
# FPUs (static FPUs for fmadd), micro.csv groups multi_max and multi_min: (stride, offset, cores, max, min).
BANK_PATTERNS = [
    (0, 0, 2, 128, 125),
    (0, 0, 4, 252, 247),
    (0, 0, 5, 314, 304),
    (0, 0, 8, 504, 487),
    (4, 0, 8, 68, 65),
    (4, 64, 8, 71, 64),
    (4, 1024, 8, 68, 64),
    (4, 36, 8, 64, 64),
    (8, 0, 8, 73, 69),
    (16, 0, 4, 70, 67),
    (16, 0, 5, 82, 80),
    (16, 0, 8, 128, 123),
    (32, 0, 4, 132, 118),
    (32, 0, 5, 158, 153),
    (32, 0, 8, 254, 241),
    (64, 0, 4, 252, 244),
    (64, 0, 8, 506, 486),
    (64, 4, 8, 72, 64),
]


@pytest.mark.parametrize(("stride", "offset", "cores", "slowest", "fastest"), BANK_PATTERNS)
def test_measured_bank_patterns(stride, offset, cores, slowest, fastest):
    """Between the fastest and the slowest core as measured, which carry up to 10 cycles of cache noise."""
    body = tuple(ins(Op.LOAD, 1, stream=index) for index in range(64))
    team = TeamWork(
        "lw",
        tuple(
            CoreWork(body, tuple(Stream(core * offset + index * stride, ()) for index in range(64)))
            for core in range(cores)
        ),
    )
    costs = TeamCostModel(soc(conflicts=True, event_unit=TOGETHER), WHOLE_KERNEL).price(team).cores
    tolerance = max(0.05 * slowest, 10)
    assert max(core.cycles for core in costs) == pytest.approx(slowest, abs=tolerance)
    assert min(core.cycles for core in costs) == pytest.approx(fastest, abs=tolerance)


FPU_SHARING = [
    ("fmadd_indep", (ins(Op.FMA, 1, 2, 3),), 64, 4, 70, 64),
    ("fmadd_indep", (ins(Op.FMA, 1, 2, 3),), 64, 5, 131, 64),
    ("fmadd_indep", (ins(Op.FMA, 1, 2, 3),), 64, 8, 128, 125),
    ("fmadd_dep", (ins(Op.FMA, 1, 1, 3),), 64, 8, 130, 126),
    ("fmadd_1of2", (ins(Op.FMA, 1, 2, 3), ins(Op.ALU)), 32, 8, 71, 66),
    ("fmadd_1of4", (ins(Op.FMA, 1, 2, 3), *[ins(Op.ALU)] * 3), 16, 8, 72, 64),
    ("fdiv", (ins(Op.FDIV, 1),), 16, 2, 448, 434),
    ("fdiv", (ins(Op.FDIV, 1),), 16, 5, 1114, 1064),
    ("fdiv", (ins(Op.FDIV, 1),), 16, 8, 1792, 1694),
]


@pytest.mark.parametrize(("name", "body", "count", "cores", "slowest", "fastest"), FPU_SHARING)
def test_measured_sharing_of_fpus_and_division(name, body, count, cores, slowest, fastest):
    team = TeamWork(name, (CoreWork(body * count),) * cores)
    costs = TeamCostModel(soc(fpu=STATIC_FPU, event_unit=TOGETHER), WHOLE_KERNEL).price(team).cores
    tolerance = max(0.05 * slowest, 10)
    assert max(core.cycles for core in costs) == pytest.approx(slowest, abs=tolerance)
    assert min(core.cycles for core in costs) == pytest.approx(fastest, abs=tolerance)


# dma-contention.csv, L2toL1, 16 KiB, conflicts on, same_word_1of2: loads per 1000 of ideal by core count.
LOADS_BESIDE_DMA = {3: 571, 4: 441, 5: 347, 6: 291, 7: 256}
"""From 3 cores on the bank is saturated; below, the measured loop's own overhead (a tenth) shows."""


@pytest.mark.parametrize("cores", list(LOADS_BESIDE_DMA))
def test_measured_loads_beside_dma(cores):
    body = (ins(Op.HWLOOP), Loop(500, (ins(Op.LOAD, 1, stream=0), ins(Op.ALU)), hardware=True))
    team = TeamWork("lw_1of2", (CoreWork(body, (Stream(0, (0,)),)),) * cores)
    cost_model = TeamCostModel(soc(conflicts=True, event_unit=TOGETHER))
    share = 1001 / cost_model.price(team, Traffic.IN).cycles
    assert share == pytest.approx(LOADS_BESIDE_DMA[cores] / 1000, rel=0.05)


def test_more_cores_than_the_model_numbers_are_refused():
    with pytest.raises(InputError, match="17 cores"):
        TeamCostModel(soc()).price(loads(4, 4, 17))

# SPDX-License-Identifier: Apache-2.0
"""The pipeline model: closed forms, exact agreement with full unrolling, and measured micro-benchmarks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.pricing.code_fetch import private_miss_share, refill_stall_cycles
from arch.pricing.cost_model import CoreCost
from arch.pricing.nest_reader import NestReader
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import CoreWork, Instruction, Loop, Node, Op, Stream, TeamWork
from arch.spec.timing import FpuTiming
from configs.errors import InputError
from configs.values import replace
from shared.arch_pricing_cases import (
    DYNAMIC_FPU,
    GVSOC_CORE,
    PRIVATE_FPU,
    alone,
    ins,
    matmul_nest,
    nests,
    soc,
)
from shared.word_oracle import WordOracle

NO_ICACHE = replace(soc().icache, private_bytes=1 << 20)


def cost(*body: Node, streams: tuple[Stream, ...] = ()) -> CoreCost:
    return TeamCostModel(soc()).price(alone(*body, streams=streams)).cores[0]


def test_independent_instructions_take_a_cycle_each():
    assert cost(*[ins(Op.ALU, 1)] * 7) == CoreCost(7, 7)


def test_using_a_load_at_once_costs_a_cycle_and_one_instruction_between_hides_it():
    load, use, other = ins(Op.LOAD, 1), ins(Op.ALU, 2, 1), ins(Op.ALU, 3)
    assert cost(load, use) == CoreCost(3, 2, (("load_use", 1),))
    assert cost(load, other, use) == CoreCost(3, 3)


def test_load_at_the_end_of_a_loop_body_meets_its_use_at_the_start_of_the_next_iteration():
    loop = Loop(10, (ins(Op.ALU, 2, 1), ins(Op.ALU), ins(Op.LOAD, 1)), hardware=True)
    assert cost(loop) == CoreCost(39, 30, (("load_use", 9),))


def test_a_branch_closes_a_loop_and_falls_through_once():
    loop = Loop(4, (ins(Op.ALU), ins(Op.BRANCH)))
    assert cost(loop) == CoreCost(14, 8, (("branch", 6),))


def test_other_branches_are_taken_in_their_share_of_executions_rounded_down():
    loop = Loop(7, (ins(Op.BRANCH, taken=0.5), ins(Op.ALU)), hardware=True)
    assert cost(loop) == CoreCost(20, 14, (("branch", 6),))


def test_multiplication_blocks_and_its_product_comes_a_cycle_later():
    assert cost(ins(Op.MUL, 1), ins(Op.ALU)) == CoreCost(3, 2, (("multicycle", 1),))
    assert cost(ins(Op.MUL, 1), ins(Op.ALU, 2, 1)) == CoreCost(4, 2, (("multicycle", 2),))


def test_division_on_the_fpu_blocks_for_its_latency():
    assert cost(ins(Op.FDIV, 1), ins(Op.FDIV, 2)) == CoreCost(28, 2, (("divider", 26),))


GOES_ON = replace(PRIVATE_FPU, divsqrt_issue_cycles=2)
"""A core that goes on while it divides; the result takes the port to the registers for a cycle."""


def cost_of(fpu: FpuTiming, *body: Instruction) -> CoreCost:
    return TeamCostModel(soc(fpu=fpu)).price(TeamWork("test", (CoreWork(body),))).cores[0]


def test_a_core_goes_on_while_it_divides_until_it_needs_the_result_or_the_fpu():
    division, others = ins(Op.FDIV, 1, 1), (ins(Op.ALU),) * 15
    assert cost_of(GOES_ON, division, *others) == CoreCost(17, 16, (("divider", 1),))
    assert cost_of(GOES_ON, division, ins(Op.ALU, 2, 1)).cycles == 14 + 1
    assert cost_of(GOES_ON, division, division, ins(Op.ALU, 2, 1)).cycles == 14 + 14 + 1
    assert cost_of(GOES_ON, division, ins(Op.FP, 2), division, ins(Op.FP, 2)).cycles == 16 + 16
    deeper = replace(GOES_ON, latency_cycles=2)
    assert cost_of(deeper, division, ins(Op.FP, 2), division, ins(Op.FP, 2)).cycles == 17 + 16


def test_a_core_waits_for_a_division_whose_result_nobody_is_known_to_read():
    assert cost_of(GOES_ON, ins(Op.FDIV, 1), ins(Op.STORE)).cycles == 14 + 1


def test_a_register_is_not_written_before_the_result_that_is_under_way_for_it():
    deeper = replace(PRIVATE_FPU, latency_cycles=2)
    body = (ins(Op.FMA, 1, 2, 3), ins(Op.ALU, 1)) * 10
    assert cost_of(PRIVATE_FPU, *body).cycles == 20
    assert cost_of(deeper, *body).cycles == 30
    assert cost_of(deeper, *(ins(Op.FMA, 1, 2, 3),) * 10).cycles == 10, "operations of the FPU come in order"


def test_without_a_division_unit_each_core_divides_for_itself():
    software = replace(PRIVATE_FPU, divsqrt_count=0, divsqrt_latency_cycles=60)
    team = TeamWork("div", (CoreWork((ins(Op.FDIV, 1), ins(Op.FDIV, 2))),) * 8)
    costs = TeamCostModel(soc(fpu=software)).price(team).cores
    assert costs == (CoreCost(120, 2, (("multicycle", 118),)),) * 8
    assert WordOracle(soc(fpu=software)).price(team, (0,) * 8).cores == costs


def test_an_access_to_l2_blocks_the_core_and_its_value_comes_a_cycle_later():
    """15 cycles each on GVSoC; like a load from L1 it cannot be used by the very next instruction."""
    assert cost(ins(Op.LOAD_L2, 1), ins(Op.ALU)) == CoreCost(16, 2, (("l2_access", 14),))
    assert cost(ins(Op.LOAD_L2, 1), ins(Op.ALU, 2, 1)) == CoreCost(
        17, 2, (("load_use", 1), ("l2_access", 14))
    )
    assert cost(ins(Op.STORE_L2, -1, 1), ins(Op.STORE_L2, -1, 1)) == CoreCost(30, 2, (("l2_access", 28),))


def test_a_loop_without_trips_is_skipped():
    assert cost(ins(Op.ALU), Loop(0, (ins(Op.ALU), ins(Op.BRANCH)))) == CoreCost(1, 1)


@pytest.mark.parametrize(("width", "base", "stride", "crossings"), [(4, 0, 4, 0), (4, 2, 4, 8), (2, 1, 2, 4)])
def test_an_access_over_a_word_border_takes_a_second_bus_cycle(width, base, stride, crossings):
    loop = Loop(8, (ins(Op.LOAD, 1, stream=0, width=width), ins(Op.ALU)), hardware=True)
    result = cost(loop, streams=(Stream(base, (stride,)),))
    assert result.cycles == 16 + crossings
    assert dict(result.stalls).get("misaligned", 0) == crossings


@pytest.mark.smoke
def test_dot_product_of_a_hardware_loop_in_closed_form():
    body = (ins(Op.LOAD, 1), ins(Op.LOAD, 2), ins(Op.FMA, 3, 1, 2, 3))
    result = cost(ins(Op.HWLOOP), Loop(1000, body, hardware=True))
    assert result == CoreCost(1 + 4 * 1000, 1 + 3 * 1000, (("load_use", 1000),))


CORES = st.sampled_from(
    [
        GVSOC_CORE,
        replace(GVSOC_CORE, load_use_stall_cycles=0, csr_cycles=4, mul_cycles=1),
        replace(GVSOC_CORE, load_use_stall_cycles=3, mul_dependent_stall_cycles=2),
    ]
)
FPUS = st.sampled_from(
    [
        PRIVATE_FPU,
        replace(PRIVATE_FPU, latency_cycles=3, interval_cycles=2),
        replace(DYNAMIC_FPU, latency_cycles=4, interval_cycles=3, divsqrt_interval_cycles=20),
        replace(PRIVATE_FPU, divsqrt_issue_cycles=2),
        replace(PRIVATE_FPU, divsqrt_issue_cycles=1, divsqrt_interval_cycles=9, latency_cycles=3),
        replace(DYNAMIC_FPU, divsqrt_issue_cycles=2, divsqrt_interval_cycles=20, latency_cycles=2),
    ]
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(nests(max_trips=7), CORES, FPUS)
def test_evaluating_the_tree_equals_executing_every_instruction(work, core, fpu):
    timing = soc(core=core, fpu=fpu, icache=NO_ICACHE)
    team = TeamWork("random", (work,))
    assert TeamCostModel(timing).price(team).cores == WordOracle(timing).price(team, (0,)).cores


@settings(max_examples=50, derandomize=True, deadline=None)
@given(nests(), CORES, FPUS)
def test_cycles_are_instructions_and_named_stalls(work, core, fpu):
    result = TeamCostModel(soc(core=core, fpu=fpu)).price(TeamWork("random", (work,))).cores[0]
    assert result.cycles == result.instructions + sum(cycles for _, cycles in result.stalls)
    assert all(cycles > 0 for _, cycles in result.stalls)


def test_a_million_iterations_cost_no_more_than_a_few():
    """A nest of 10^9 inner iterations returns at once, with the closed form."""
    inner = Loop(1000, (ins(Op.LOAD, 1), ins(Op.FMA, 2, 1, 2)), hardware=True)
    middle = Loop(1000, (inner, ins(Op.STORE, -1, 2)), hardware=True)
    result = cost(Loop(1000, (middle,), hardware=True))
    assert result.cycles == 1000 * 1000 * (3 * 1000 + 1)


def test_shapes_are_shared_between_works_that_differ_in_numbers_only():
    reader = NestReader(GVSOC_CORE, PRIVATE_FPU, 4, soc().l2)
    shapes = {id(reader.read(matmul_nest(rows, 9, 6, core)).shape) for rows in (1, 5) for core in (0, 3)}
    assert len(shapes) == 1


# Cycles per operation on core 0, measured on GVSoC, micro.csv group cluster_pe0 (four configurations equal).
MICRO = [
    ("nop", [ins(Op.ALU)], 64, 1.000),
    ("addi_dep", [ins(Op.ALU, 1, 1)], 64, 1.031),
    ("mul_dep", [ins(Op.MUL, 1, 1)], 64, 2.984),
    ("mul_indep", [ins(Op.MUL, 1)], 64, 2.000),
    ("mulh", [ins(Op.MULH, 1)], 64, 5.062),
    ("div", [ins(Op.DIV, 1)], 16, 33.000),
    ("csrr_mcycle", [ins(Op.CSR, 1)], 32, 1.000),
    ("fadd_dep", [ins(Op.FP, 1, 1)], 64, 1.031),
    ("fmadd_dep", [ins(Op.FMA, 1, 2, 3, 1)], 64, 1.000),
    ("fdiv_dep", [ins(Op.FDIV, 1, 1)], 16, 14.000),
    ("beq_not_taken", [ins(Op.BRANCH)], 64, 1.093),
    ("beq_taken_next", [ins(Op.BRANCH, taken=1.0)], 64, 3.000),
    ("j_next", [ins(Op.JUMP)], 64, 2.000),
    ("auipc_jalr", [ins(Op.ALU, 1), ins(Op.JUMP, 2)], 32, 3.000),
    ("pair_lw_use_L1", [ins(Op.LOAD, 1), ins(Op.ALU, 2, 1)], 32, 3.187),
    ("lw_chase_L1", [ins(Op.LOAD, 1, 1)], 64, 2.000),
    ("plw_postinc_L1", [ins(Op.LOAD, 1, 2, stream=0)], 64, 1.000),
    ("sw_L1", [ins(Op.STORE, -1, 1)], 64, 1.000),
    ("lw_sw_copy_L1", [ins(Op.LOAD, 1), ins(Op.STORE, -1, 1)], 32, 3.062),
    ("lw_nop_use_L1", [ins(Op.LOAD, 1), ins(Op.ALU), ins(Op.ALU, 2, 1)], 32, 3.187),
    ("lw_misaligned_L1", [ins(Op.LOAD, 1, stream=1)], 32, 2.000),
]


@pytest.mark.smoke
@pytest.mark.parametrize(("name", "body", "count", "measured"), MICRO, ids=[row[0] for row in MICRO])
def test_measured_instruction_micro_benchmarks(name, body, count, measured):
    """Within 5 % or 0.2 cycles: the measurement carries up to 7 cycles of instruction cache misses."""
    result = cost(*body * count, streams=(Stream(64, ()), Stream(66, ())))
    assert result.cycles / count == pytest.approx(measured, rel=0.05, abs=0.2), name
    assert result.instructions == len(body) * count


HARDWARE_LOOPS = [(4, 4, 17), (16, 4, 65), (64, 4, 257), (64, 3, 193), (64, 12, 769)]
"""micro.csv, cluster_pe0, hwloop_nN_bodyB: (N, B, cycles minus base)."""


@pytest.mark.parametrize(("trips", "length", "measured"), HARDWARE_LOOPS)
def test_measured_hardware_loops(trips, length, measured):
    assert cost(ins(Op.HWLOOP), Loop(trips, (ins(Op.ALU),) * length, hardware=True)).cycles == measured


def test_measured_branch_loop():
    """micro.csv, bneloop_n64_body3nop+addi+bne: 446 cycles."""
    assert cost(Loop(64, (*[ins(Op.ALU)] * 4, ins(Op.BRANCH)))).cycles == 446


# icache.csv, 1 core: (code bytes, warm stall per 16-byte line).
STRAIGHT_CODE = [(64, 0.00), (256, 0.00), (1024, 1.62), (2048, 1.96), (8192, 15.56), (16384, 17.67)]


@pytest.mark.parametrize(("code_bytes", "measured"), STRAIGHT_CODE)
def test_measured_instruction_cache_capacity(code_bytes, measured):
    """Stalls per line of a warm loop, within 10 % (0.1 cycle): sets and ways, not which way is next."""
    iterations = 100
    body = (*[ins(Op.ALU)] * (code_bytes // 4 - 1), ins(Op.BRANCH))
    result = cost(Loop(iterations, body))
    per_line = dict(result.stalls).get("icache", 0) / iterations / (code_bytes / 16)
    assert per_line == pytest.approx(measured, rel=0.10, abs=0.1)


def test_a_nested_loop_that_fits_is_refetched_once_per_outer_iteration_only():
    inner = Loop(1000, (ins(Op.ALU),) * 100, hardware=True)
    outer = Loop(10, (*[ins(Op.ALU)] * 2000, inner, ins(Op.BRANCH)))
    icache = soc().icache
    expected = 10 * 2101 / 4 * private_miss_share(526, icache) * refill_stall_cycles(526, icache)
    assert dict(cost(outer).stalls)["icache"] == round(expected)


def test_code_that_is_never_executed_takes_no_cache():
    never = Loop(0, (ins(Op.ALU),) * 1000)
    assert "icache" not in dict(cost(Loop(10, (ins(Op.ALU), never), hardware=True)).stalls)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (CoreWork((ins(Op.LOAD, 1, stream=0),)), "stream 0"),
        (CoreWork((Loop(2, (ins(Op.LOAD, 1, stream=0),)),), (Stream(0, ()),)), "strides"),
        (CoreWork((Loop(2, (Instruction(Op.BRANCH, taken_fraction=1.5), ins(Op.ALU))),)), "taken_fraction"),
    ],
)
def test_contradictory_works_are_refused(work, message):
    with pytest.raises(InputError, match=message):
        TeamCostModel(soc()).price(TeamWork("bad", (work,)))


def test_a_nest_deeper_than_the_models_accept_is_refused():
    node: Node = ins(Op.ALU)
    for _ in range(9):
        node = Loop(2, (node,))
    with pytest.raises(InputError, match=r"more than .* levels"):
        cost(node)


def test_a_core_that_waits_for_its_multiply_add_and_overlaps_loads():
    """The Cortex-M4F class: VFMA holds the core 3 cycles, a load takes 2 unless another access follows."""
    m4 = soc(
        core=replace(GVSOC_CORE, load_cycles=2),
        fpu=replace(PRIVATE_FPU, fma_cycles=3),
    )
    price = TeamCostModel(m4).price
    load, add = ins(Op.LOAD, 1), ins(Op.ALU, 2)
    multiply_add = ins(Op.FMA, 3, 1, 2, 3)
    assert price(alone(load, load, load, add)).cycles == 5
    assert price(alone(load, add, load, add)).cycles == 6
    assert price(alone(*[multiply_add] * 4)).cycles == 12
    assert price(alone(load, load, multiply_add)).cores[0] == CoreCost(6, 3, (("load_use", 1), ("fpu", 2)))

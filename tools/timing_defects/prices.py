# SPDX-License-Identifier: Apache-2.0
"""Defects of prices: what instructions, loops, banks, FPUs and instruction caches cost a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from arch.pricing import code_fetch, contention, pipeline, team_cost_model, window_plan
from arch.pricing.contention import ClusterModel
from arch.pricing.nest_reader import NestReader
from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window_plan import PricingWindow
from arch.spec.isa import CoreWork, Instruction, Loop, Node, Op
from arch.spec.timing import CoreTiming, FpuTiming, SocTiming
from tools.timing_defects.change import Change, Replacement, registrar

DEFECTS: dict[str, Change] = {}
_defect = registrar(DEFECTS, "prices")


def _timing(change: Callable[[SocTiming], SocTiming]) -> list[Replacement]:
    """Prices of another machine; everything that is no price keeps its own."""
    right = TeamCostModel.__init__

    def wrong(self: TeamCostModel, timing: SocTiming, *args: Any, **more: Any) -> None:
        right(self, change(timing), *args, **more)

    return [(TeamCostModel, "__init__", wrong)]


def _core(change: Callable[[CoreTiming], dict[str, int]]) -> list[Replacement]:
    return _timing(lambda timing: replace(timing, core=replace(timing.core, **change(timing.core))))


def _fpu(change: Callable[[FpuTiming], dict[str, Any]]) -> list[Replacement]:
    return _timing(lambda timing: replace(timing, fpu=replace(timing.fpu, **change(timing.fpu))))


def _machine(**wrong: Any) -> list[Replacement]:
    """Teams that are told wrongly what they share."""
    right = ClusterModel.machine

    def changed(self: ClusterModel, *args: Any) -> Any:
        return replace(right(self, *args), **wrong)

    return [(ClusterModel, "machine", changed)]


_RULES = "arch/pricing/scoreboard.py"


@_defect(_RULES, "a load-use stall is one cycle too long")
def _load_use() -> Sequence[Replacement]:
    return _core(lambda core: {"load_use_stall_cycles": core.load_use_stall_cycles + 1})


@_defect(_RULES, "a taken branch costs one cycle less")
def _branch() -> Sequence[Replacement]:
    return _core(lambda core: {"branch_taken_stall_cycles": core.branch_taken_stall_cycles - 1})


@_defect(_RULES, "a jump costs nothing")
def _jump() -> Sequence[Replacement]:
    return _core(lambda core: {"jump_stall_cycles": 0})


@_defect(_RULES, "an FMA has its result one cycle late")
def _fma() -> Sequence[Replacement]:
    return _fpu(lambda fpu: {"latency_cycles": fpu.latency_cycles + 1})


@_defect(_RULES, "a division takes half its time")
def _division() -> Sequence[Replacement]:
    return _fpu(lambda fpu: {"divsqrt_latency_cycles": fpu.divsqrt_latency_cycles // 2})


@_defect(_RULES, "an access across a word border costs nothing")
def _misaligned() -> Sequence[Replacement]:
    return _core(lambda core: {"misaligned_stall_cycles": 0})


@_defect("arch/pricing/nest_reader.py", "a hardware loop is set up in every turn")
def _set_up_each_turn() -> Sequence[Replacement]:
    right = NestReader.read
    known: dict[int, tuple[tuple[Node, ...], tuple[Node, ...]]] = {}

    def wrong(self: NestReader, work: CoreWork) -> Any:
        found = known.get(id(work.body))
        if found is None or found[0] is not work.body:
            found = known[id(work.body)] = (work.body, _with_set_up(work.body))
        return right(self, replace(work, body=found[1]))

    return [(NestReader, "read", wrong)]


def _with_set_up(body: tuple[Node, ...]) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for node in body:
        if isinstance(node, Loop):
            inner = _with_set_up(node.body)
            set_up = (Instruction(Op.HWLOOP),) if node.hardware else ()
            nodes.append(replace(node, body=(*set_up, *inner)))
        else:
            nodes.append(node)
    return tuple(nodes)


@_defect("arch/pricing/contention.py", "cores do not share FPUs")
def _fpus_unshared() -> Sequence[Replacement]:
    return _machine(fpu_shared=False)


@_defect("arch/pricing/contention.py", "cores do not share the division unit")
def _divisions_unshared() -> Sequence[Replacement]:
    return _machine(divsqrt_shared=False)


@_defect("arch/pricing/contention.py", "cores do not meet at banks")
def _banks_unshared() -> Sequence[Replacement]:
    return _machine(banks_shared=False)


@_defect("arch/pricing/contention.py", "a wait for a bank counts twice")
def _conflicts_twice() -> Sequence[Replacement]:
    right = contention._cost

    def wrong(share: Any, waited: list[int]) -> Any:
        return right(share, [2 * waited[0], *waited[1:]])

    return [(contention, "_cost", wrong)]


@_defect("arch/pricing/contention.py", "a priority at the banks that goes round stands still")
def _no_rotation() -> Sequence[Replacement]:
    return _machine(banks_rotate=0)


@_defect("arch/pricing/code_fetch.py", "a loop larger than a cache refills nothing")
def _no_refill() -> Sequence[Replacement]:
    return [(module, "icache_stall_cycles", lambda nest, icache: 0) for module in (pipeline, window_plan)]


@_defect("arch/pricing/code_fetch.py", "a refill of the private cache comes from L2")
def _far_refill() -> Sequence[Replacement]:
    return [
        (code_fetch, "refill_stall_cycles", lambda lines, icache: float(icache.shared_refill_stall_cycles))
    ]


@_defect("arch/pricing/window_plan.py", "a window ends after 2,000 instructions")
def _short_window() -> Sequence[Replacement]:
    wrong = PricingWindow(budget_instructions=2_000)
    return [(team_cost_model, "PricingWindow", lambda: wrong)]


@_defect("arch/pricing/window_plan.py", "stalls in front of the measured turns are not extrapolated")
def _not_extrapolated() -> Sequence[Replacement]:
    right = contention._loop_tables

    def wrong(plan: Any) -> Any:
        trips, extrapolated = right(plan)
        return trips, (1, 0) * (len(extrapolated) // 2)

    return [(contention, "_loop_tables", wrong)]


@_defect("arch/pricing/team_cost_model.py", "the memory of prices does not tell addresses apart")
def _key_without_addresses() -> Sequence[Replacement]:
    right = TeamCostModel._price_together
    known: dict[object, Any] = {}

    def wrong(self: TeamCostModel, work: Any, cores: Any, machine: Any, traffic: Any) -> Any:
        nests = tuple((core, nest.shape, nest.trips) for core, nest in cores)
        key = (id(self), machine, traffic, nests)
        if key not in known:
            known[key] = right(self, work, cores, machine, traffic)
        return known[key]

    return [(TeamCostModel, "_price_together", wrong)]


@_defect("arch/pricing/team_cost_model.py", "the memory of prices does not tell trip counts apart")
def _key_without_trips() -> Sequence[Replacement]:
    right = TeamCostModel._price_alone
    known: dict[object, Any] = {}

    def wrong(self: TeamCostModel, nest: Any) -> Any:
        key = (id(self), nest.shape)
        if key not in known:
            known[key] = right(self, nest)
        return known[key]

    return [(TeamCostModel, "_price_alone", wrong)]


@_defect("arch/pricing/code_fetch.py", "the fraction of a refill is rounded up")
def _rounded_up() -> Sequence[Replacement]:
    return [(code_fetch, "round", ceil)]

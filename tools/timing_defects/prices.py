# SPDX-License-Identifier: Apache-2.0
"""Defects of prices: what instructions, loops, banks, FPUs and instruction caches cost a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any

from arch.pricing import code_fetch, contention, pipeline, team_cost_model, window_plan
from arch.pricing.contention import ClusterModel
from arch.pricing.nest_reader import NestReader
from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window_plan import PricingWindow
from arch.spec.isa import CoreWork, Instruction, Loop, Node, Op
from arch.spec.timing import CoreTiming, FpuTiming, SocTiming
from configs.values import replace
from tools.timing_defects.change import Change, Replacement, around, registrar

DEFECTS: dict[str, Change] = {}
_defect = registrar(DEFECTS, "prices")


def _timing(change: Callable[[SocTiming], SocTiming]) -> list[Replacement]:
    """Prices of another machine; everything that is no price keeps its own."""

    def wrong(right: Any, self: TeamCostModel, timing: SocTiming, *args: Any, **more: Any) -> None:
        right(self, change(timing), *args, **more)

    return around(TeamCostModel, "__init__", wrong)


def _core(change: Callable[[CoreTiming], dict[str, int]]) -> list[Replacement]:
    return _timing(lambda timing: replace(timing, core=replace(timing.core, **change(timing.core))))


def _fpu(change: Callable[[FpuTiming], dict[str, Any]]) -> list[Replacement]:
    return _timing(lambda timing: replace(timing, fpu=replace(timing.fpu, **change(timing.fpu))))


def _machine(**wrong: Any) -> list[Replacement]:
    """Teams that are told wrongly what they share."""
    return around(ClusterModel, "machine", lambda right, *args: replace(right(*args), **wrong))


def _remembered(name: str, key: Callable[..., object]) -> list[Replacement]:
    """Prices by `key`: what it does not tell apart has one price."""
    prices: dict[object, Any] = {}

    def wrong(right: Any, *args: Any) -> Any:
        asked = key(*args)
        if asked not in prices:
            prices[asked] = right(*args)
        return prices[asked]

    return around(TeamCostModel, name, wrong)


_RULES = "arch/pricing/scoreboard.py"


_defect(_RULES, "a load-use stall is one cycle too long")(
    lambda: _core(lambda core: {"load_use_stall_cycles": core.load_use_stall_cycles + 1})
)
_defect(_RULES, "a taken branch costs one cycle less")(
    lambda: _core(lambda core: {"branch_taken_stall_cycles": core.branch_taken_stall_cycles - 1})
)
_defect(_RULES, "a jump costs nothing")(lambda: _core(lambda core: {"jump_stall_cycles": 0}))
_defect(_RULES, "an FMA has its result one cycle late")(
    lambda: _fpu(lambda fpu: {"latency_cycles": fpu.latency_cycles + 1})
)
_defect(_RULES, "a division takes half its time")(
    lambda: _fpu(lambda fpu: {"divsqrt_latency_cycles": fpu.divsqrt_latency_cycles // 2})
)
_defect(_RULES, "an access across a word border costs nothing")(
    lambda: _core(lambda core: {"misaligned_stall_cycles": 0})
)


@_defect("arch/pricing/nest_reader.py", "a hardware loop is set up again in every iteration")
def _set_up_each_turn() -> Sequence[Replacement]:
    known: dict[int, tuple[tuple[Node, ...], tuple[Node, ...]]] = {}

    def wrong(right: Any, self: NestReader, work: CoreWork) -> Any:
        bodies = known.get(id(work.body))
        if bodies is None or bodies[0] is not work.body:
            bodies = known[id(work.body)] = (work.body, _with_set_up(work.body))
        return right(self, replace(work, body=bodies[1]))

    def read(right: Any, self: TeamCostModel, work: Any, core: int) -> Any:
        return self._reader.read(work.core(core))

    return [*around(NestReader, "read", wrong), *around(TeamCostModel, "_read", read)]


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


_defect("arch/pricing/contention.py", "cores do not share FPUs")(lambda: _machine(fpu_shared=False))
_defect("arch/pricing/contention.py", "cores do not share the division unit")(
    lambda: _machine(divsqrt_shared=False)
)
_defect("arch/pricing/contention.py", "cores never conflict at banks")(lambda: _machine(banks_shared=False))
_defect("arch/pricing/contention.py", "a stall at a bank counts twice")(
    lambda: around(
        contention, "_cost", lambda right, share, waited: right(share, [2 * waited[0], *waited[1:]])
    )
)
_defect("arch/pricing/contention.py", "a rotating priority at the banks never rotates")(
    lambda: _machine(banks_rotate=0)
)
_defect("arch/pricing/code_fetch.py", "a loop larger than a cache refills nothing")(
    lambda: [(module, "icache_stall_cycles", lambda nest, icache: 0) for module in (pipeline, window_plan)]
)
_defect("arch/pricing/code_fetch.py", "a refill of the private cache comes from L2")(
    lambda: around(
        code_fetch,
        "refill_stall_cycles",
        lambda right, lines, icache: float(icache.shared_refill_stall_cycles),
    )
)
_defect("arch/pricing/window_plan.py", "only the first 2,000 instructions of a long kernel are simulated")(
    lambda: [(team_cost_model, "PricingWindow", partial(PricingWindow, budget_instructions=2_000))]
)


@_defect("arch/pricing/window_plan.py", "stalls of iterations that are not simulated are left out")
def _not_extrapolated() -> Sequence[Replacement]:
    def wrong(right: Any, plan: Any) -> Any:
        trips, extrapolated = right(plan)
        return trips, (1, 0) * (len(extrapolated) // 2)

    return around(contention, "_loop_tables", wrong)


@_defect("arch/pricing/team_cost_model.py", "the cache of kernel costs ignores addresses")
def _key_without_addresses() -> Sequence[Replacement]:
    def key(self: TeamCostModel, work: Any, cores: Any, machine: Any, traffic: Any) -> object:
        return id(self), machine, traffic, tuple((core, nest.shape, nest.trips) for core, nest in cores)

    return _remembered("_price_together", key)


_defect("arch/pricing/team_cost_model.py", "the cache of kernel costs ignores trip counts")(
    lambda: _remembered("_price_alone", lambda self, nest: (id(self), nest.shape))
)
_defect("arch/pricing/code_fetch.py", "the fraction of a refill is rounded up")(
    lambda: [(code_fetch, "round", ceil)]
)

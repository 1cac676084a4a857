# SPDX-License-Identifier: Apache-2.0
"""What the waits of a run for code would take with other instruction caches."""

from __future__ import annotations

from collections import Counter

from arch.blocks.code_fetch import CodeFetch
from arch.pricing.cost_model import CostModel
from arch.pricing.line_caches import NO_READS
from arch.spec.program import Compute, Program
from arch.spec.timing import SocTiming
from pulptrain.predicting.kernels import lost_cycles, shortened
from scheduler.programs.program_code import with_code
from traces.critical.activities import Activity, Graph
from traces.events import COMPUTE

Waits = Counter[tuple[str, str, bool]]
"""Cycles by op, step and whether a team waits them in a kernel."""

WORD = "icache"


def code_waits(program: Program, timing: SocTiming) -> Waits:
    """What code takes to come in an iteration after others, from L2 as far as it is not in the shared cache.

    No transfer is in its way.
    """
    program = with_code(program)
    assert program.code is not None
    fetch = CodeFetch(program, program.code, timing, lambda _: NO_READS)
    fetch.warm_up()
    waits = Waits()
    for action in program.actions:
        work = action.work
        waits[work.op, work.step, False] += fetch.before(action, 0)
        if isinstance(action, Compute):
            waits[work.op, work.step, True] += fetch.in_kernel(action, 0)
    return waits


def with_caches(
    graph: Graph, program: Program, costs: CostModel, was: SocTiming, becomes: SocTiming
) -> list[int]:
    """What all activities take with the instruction caches of another machine.

    By op the waits for code are in proportion to those without transfers, but for the refills from the shared
    cache that a kernel is priced with.
    """
    before, after = code_waits(program, was), code_waits(program, becomes)
    taken, priced = Waits(), Waits()
    for activity in graph.activities:
        taken[_key(activity)] += lost_cycles(activity, WORD)
    for action in program.actions:
        if isinstance(action, Compute):
            price = costs.price(action.team).cores
            cycles = sum(dict(core.stalls).get(WORD, 0) for core in price)
            priced[action.work.op, action.work.step, True] += cycles

    def left(activity: Activity) -> float:
        key = _key(activity)
        share = after[key] / before[key] if before[key] else 1.0
        kept = min(1.0, priced[key] / taken[key]) if taken[key] else 0.0
        return kept + (1 - kept) * share

    return shortened(WORD, left, graph)


def _key(activity: Activity) -> tuple[str, str, bool]:
    return activity.work.op, activity.work.step, activity.kind == COMPUTE

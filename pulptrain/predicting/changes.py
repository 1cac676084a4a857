# SPDX-License-Identifier: Apache-2.0
"""The what-ifs: how each changes what the activities of a run take, and how it is simulated.

Machine and prices change and the program stays: its tiles are not chosen anew. More L1 is the exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from arch.pricing.code_caches import STEADY
from arch.pricing.cost_model import TeamCostModelWhenAsked
from arch.spec.timing import SocTiming
from configs.values import replace
from pulptrain.predicting.code import with_caches
from pulptrain.predicting.evidence import Evidence, Executed
from pulptrain.predicting.kernels import (
    Change,
    Repriced,
    balanced,
    faster,
    largest_kernel,
    with_balanced,
    with_faster,
    without,
)
from pulptrain.predicting.overlap import overlapped_cycles, with_room, without_waits
from pulptrain.predicting.transfers import Engine, code_behind_loads, transfer_cycles
from scheduler.planned import Schedule
from traces.critical.activities import Graph, retimed

Ends = Callable[[Executed], int]
"""When a program ends."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A change: its name, what it is, cycles of an update as predicted from the run, and as simulated."""

    name: str
    about: str
    predicted: Callable[[], int]
    simulated: Callable[[], int]


def what_ifs(evidence: Evidence, *, more_l1: bool = True) -> list[WhatIf]:
    """The changes that a run can be asked for: a machine without bank conflicts is not rid of them.

    `more_l1` says whether the tiles may be chosen anew, for a larger L1.
    """
    larger = [_more_l1(evidence)] if more_l1 else []
    return [*_of_machine(evidence), *_of_kernels(evidence), *larger, _overlap(evidence)]


def _of_machine(evidence: Evidence) -> Iterator[WhatIf]:
    timing = evidence.timing
    wide, engine, costs = _twice_as_wide(timing), Engine(timing), evidence.prepared.cost_model

    def what_if(name: str, about: str, ends: Ends, machine: SocTiming) -> WhatIf:
        return WhatIf(
            name,
            about,
            lambda: evidence.of_all(ends),
            lambda: evidence.simulated(machine, TeamCostModelWhenAsked(machine)),
        )

    yield what_if(
        "dma-width",
        "DMA and its link to L2 twice as wide",
        lambda item: _end(item, code_behind_loads(item.graph, 0.5), engine, Engine(wide)),
        wide,
    )
    if timing.l1.bank_conflicts:
        yield what_if(
            "no-bank-conflicts",
            "no bank conflicts in L1",
            lambda item: _end(item, without("bank_conflict", item.graph), engine, engine, hindered=False),
            replace(timing, l1=replace(timing.l1, bank_conflicts=False)),
        )
    if timing.fpu.mapping != "private":
        yield what_if(
            "private-fpu",
            "an FPU for every core",
            lambda item: _end(item, without("fpu", item.graph), engine, engine),
            replace(timing, fpu=replace(timing.fpu, count=timing.cores, mapping="private")),
        )
    # Where a line from L2 takes no longer (flash stands for the shared cache) a larger one is nothing.
    far = timing.icache.line_from_l2_cycles > timing.icache.line_from_shared_cycles
    if evidence.code_start == STEADY and far:
        larger = replace(timing.icache, shared_bytes=MORE_CODE * timing.icache.shared_bytes)
        roomy = replace(timing, icache=larger)
        yield what_if(
            "shared-code",
            f"a shared instruction cache of {larger.shared_bytes / 1024:g} KiB",
            lambda item: _end(
                item, with_caches(item.graph, item.schedule.program, costs, timing, roomy), engine, engine
            ),
            roomy,
        )
    yield what_if(
        "warm-code",
        "all code in the private instruction caches",
        lambda item: _end(item, without("icache", item.graph), engine, engine),
        _without_refills(timing),
    )


def _of_kernels(evidence: Evidence) -> Iterator[WhatIf]:
    cores, engine = evidence.timing.cores, Engine(evidence.timing)
    kernel = largest_kernel((item.graph, item.times) for item in evidence.programs)

    def what_if(name: str, about: str, cycles: Callable[[Graph], list[int]], change: Change) -> WhatIf:
        prices = Repriced(evidence.prepared.cost_model, change)
        return WhatIf(
            name,
            about,
            lambda: evidence.of_all(lambda item: _end(item, cycles(item.graph), engine, engine)),
            lambda: evidence.simulated(evidence.timing, prices),
        )

    yield what_if(
        "balanced-rows",
        "the work of every kernel spread evenly over the cores",
        lambda graph: balanced(graph, cores),
        with_balanced(cores),
    )
    yield what_if(
        "faster-kernel",
        f"kernel {kernel} 20 % faster",
        lambda graph: faster(graph, kernel),
        with_faster(kernel),
    )


def _end(item: Executed, kernels: list[int], was: Engine, becomes: Engine, *, hindered: bool = True) -> int:
    """When a program ends whose kernels take other times, on a DMA that is another."""
    program = item.schedule.program
    return retimed(
        item.graph, transfer_cycles(item.graph, program, kernels, was, becomes, hindered=hindered)
    )[-1]


def _more_l1(evidence: Evidence) -> WhatIf:
    """Tiles are chosen anew. What they gain is what the estimates they won by differ in."""

    def predicted() -> int:
        pairs = zip(evidence.programs, evidence.larger.schedules, strict=True)
        return evidence.cycles - sum(
            item.times * (_estimated(item.schedule) - _estimated(larger)) for item, larger in pairs
        )

    more_kib = evidence.more_l1_bytes / 1024
    return WhatIf(
        "more-l1",
        f"{more_kib:g} KiB more of L1, tiles chosen again",
        predicted,
        evidence.simulated_larger,
    )


def _overlap(evidence: Evidence) -> WhatIf:
    timing = evidence.timing

    def ends(item: Executed) -> int:
        engine = Engine(timing)
        graph, program = item.graph, item.schedule.program
        fetched = code_behind_loads(graph, 0.0)
        cycles = transfer_cycles(graph, program, fetched, engine, engine, all_queued=True)
        return overlapped_cycles(graph, cycles)

    return WhatIf(
        "perfect-overlap",
        "no wait for transfers, except on the busiest channel",
        lambda: evidence.of_all(ends),
        lambda: evidence.simulated(
            with_room(timing),
            evidence.prepared.cost_model,
            lambda program: without_waits(program, timing),
        ),
    )


def _twice_as_wide(timing: SocTiming) -> SocTiming:
    dma = replace(timing.dma, l1_bytes_per_cycle=2 * timing.dma.l1_bytes_per_cycle)
    return replace(
        timing, dma=dma, l2=replace(timing.l2, link_bytes_per_cycle=2 * timing.l2.link_bytes_per_cycle)
    )


MORE_CODE = 4
"""Times as large as it is the shared instruction cache is asked for."""

HELD_BYTES = 1 << 20
"""A private cache that holds any program."""


def _without_refills(timing: SocTiming) -> SocTiming:
    """The private caches hold all code, and what the price of a kernel has of refills is nothing."""
    icache = replace(
        timing.icache,
        private_bytes=HELD_BYTES,
        private_refill_stall_cycles=0,
        shared_refill_stall_cycles=0,
        fetch_bytes_per_cycle=0,
    )
    return replace(timing, icache=icache)


def _estimated(schedule: Schedule) -> int:
    return sum(op.estimated_cycles for op in schedule.ops)

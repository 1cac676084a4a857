# SPDX-License-Identifier: Apache-2.0
"""What the event model must give, in closed form, and the works of a step as one tile: oracles of tests."""

from __future__ import annotations

from arch.pricing.cost_model import TeamCost
from arch.spec.isa import TeamWork
from arch.spec.timing import EventUnitTiming
from trainlib.ir.graph import TrainingGraph
from trainlib.ir.steps import KernelChoice
from trainlib.registry import lowering_of


def fork_to_join_cycles(team: TeamWork, cost: TeamCost, unit: EventUnitTiming) -> int:
    """Cycles from the fork call to the first instruction after it, as the master core sees them.

    The master starts its share when its fork code is done, the workers some cycles after the dispatch push;
    the join barrier opens `barrier_wake_cycles` after the last end. No DMA runs meanwhile.
    """
    pushed = unit.fork_push_cycles
    start = {True: max(pushed, unit.fork_master_cycles), False: pushed + unit.fork_worker_cycles}
    last_end = max(
        start[core == 0] + core_cost.cycles
        for core, (work, core_cost) in enumerate(zip(team.cores, cost.cores, strict=True))
        if work is not None
    )
    return last_end + unit.barrier_wake_cycles + unit.join_cycles


def works_of(
    graph: TrainingGraph, step: str, *, cores: int = 8, codegen: str = "clang-xpulp", apart: int = 1 << 14
) -> list[TeamWork]:
    """The works of a step as one tile, operands `apart` bytes from each other in the order of reads."""
    (op,) = (op for op in graph.ops if op.step == step)
    lowering = lowering_of(op)
    whole = {name: (0, size) for name, size in lowering.extents(op, graph.tensors).items()}
    task = lowering.tile(op, graph.tensors, whole, KernelChoice("mm", codegen, cores=cores))
    buffers = [item.name for item in (*task.inputs, *task.outputs, *task.scratch)]
    parts = {name for call in task.calls for name in (*call.reads, *call.writes)}
    places = {name: number * apart for number, name in enumerate(buffers)}
    places |= {name: places[name.partition("[")[0]] for name in parts}
    return [call.work(cores, places) for call in task.calls]

# SPDX-License-Identifier: Apache-2.0
"""The memory plan of a run on its time axis: ops become the cycles at which they began and ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from arch.spec.timing import SocTiming
from scheduler.addresses.allocation import Allocation
from scheduler.addresses.lifetimes import backward_begins
from scheduler.memory.memory_plan import MemoryPlan
from traces.memory_table import MemoryBlock
from traces.metrics import OpMetrics
from trainlib.ir.graph import TrainingGraph

AFTER = "end"
"""What stands for "after the last op" in the name of an op."""


def memory_blocks(
    graph: TrainingGraph,
    plan: MemoryPlan,
    measured: Iterable[OpMetrics],
    timing: SocTiming,
    *,
    start_cycles: int,
    end_cycles: int,
) -> list[MemoryBlock]:
    """The blocks of the program of `graph`, from `start_cycles` to `end_cycles`, by level, address and time.

    A block lives from the beginning of its first op to the end of its last; an op begins where the one
    before ends. The stacks are blocks of L1 as well.
    """
    limits = _limits(plan.ops, {op.name: op for op in measured}, start_cycles, end_cycles)
    names, begins = [*plan.ops, AFTER], backward_begins(graph)
    blocks = [
        MemoryBlock(
            item.name,
            item.level,
            item.address,
            item.size_bytes,
            names[item.first_op],
            names[item.last_op],
            limits[item.first_op],
            limits[item.last_op + 1],
            item.kind or "scratch",
            item.staged,
            " ".join(_readers(graph, begins, plan, item)),
        )
        for item in plan.allocations
    ]
    usable_bytes = timing.l1_usable_bytes + timing.l1.tables_bytes
    stack_bytes = timing.l1.size_bytes - usable_bytes
    if stack_bytes and plan.ops:
        blocks.append(
            MemoryBlock(
                "stacks", "l1", usable_bytes, stack_bytes, names[0], AFTER, start_cycles, end_cycles, "stack"
            )
        )
    return sorted(blocks, key=lambda block: (block.level, block.address, block.start_cycle, block.name))


def _readers(graph: TrainingGraph, begins: int, plan: MemoryPlan, item: Allocation) -> list[str]:
    """Which ops of the backward pass, which `begins` there, an activation is kept for in these bytes."""
    if item.kind != "kept":
        return []
    owner = plan.owners.get(item.tensor)
    backward = graph.ops[max(item.first_op, begins) : item.last_op + 1]
    return [op.name for op in backward if any(plan.owners[name] == owner for name in op.inputs)]


def _limits(
    ops: Sequence[str], measured: dict[str, OpMetrics], start_cycles: int, end_cycles: int
) -> list[int]:
    """Cycle at which op i begins; two more entries for the end of the last op and the end of the run."""
    limits = [start_cycles]
    for name in ops:
        op = measured.get(name)
        limits.append(max(limits[-1], op.end_cycles if op is not None else 0))
    return [*limits, max(limits[-1], end_cycles)]

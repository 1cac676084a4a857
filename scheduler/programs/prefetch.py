# SPDX-License-Identifier: Apache-2.0
"""Prefetch across ops: which tensors an op may begin to load while the op before it is still at work."""

from __future__ import annotations

from scheduler.memory.memory_plan import MemoryPlan
from trainlib.ir.graph import TrainingGraph


def readable_early(graph: TrainingGraph, plan: MemoryPlan, op_number: int) -> frozenset[str]:
    """Tensors op `op_number` reads that are complete in L2, in the same place, during the op before it."""
    if op_number == 0:
        return frozenset()
    before, op = graph.ops[op_number - 1], graph.ops[op_number]
    changed = {plan.owners[name] for name in before.outputs}
    return frozenset(
        name
        for name in op.inputs
        if plan.owners[name] not in changed
        and name not in plan.stream(op_number).tensors
        and plan.readable(op_number - 1, name)
    )

# SPDX-License-Identifier: Apache-2.0
"""Every weight is changed, or its gradient added to a total, as soon as that is there; then it is given up.

The numbers are those of ops at the end: a weight is changed when no op of the iteration reads it any more.
After K. Lv et al., Full Parameter Fine-tuning for Large Language Models with Limited Resources (LOMO), ACL
2024, and J. Lin et al., On-Device Training Under 256KB Memory, NeurIPS 2022 (in-place update).
"""

from __future__ import annotations

from configs.values import replace
from trainlib.ir.graph import Op, TrainingGraph

UPDATE, ADD = "UPD", "ACCUMULATE"


def at_once(graph: TrainingGraph, step: str) -> TrainingGraph:
    """The graph with every op of a step behind the last that writes what it reads or reads what it writes."""
    updates = [op for op in graph.ops if op.step == step]
    others = [op for op in graph.ops if op.step != step]
    touched: dict[str, int] = {}
    """Storage -> number of the last of the other ops that has to do with it."""
    for number, op in enumerate(others):
        touched |= dict.fromkeys((graph.storage_of(name) for name in (*op.inputs, *op.outputs)), number)
    after: dict[int, list[Op]] = {}
    for op in updates:
        last = max(touched.get(graph.storage_of(name), -1) for name in (*op.inputs, *op.outputs))
        after.setdefault(last, []).append(op)
    ops = [item for number, op in enumerate(others) for item in (op, *after.get(number, ()))]
    return replace(graph, ops=tuple(ops), fleeting=tuple(graph.gradients.values()))

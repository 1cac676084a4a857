# SPDX-License-Identifier: Apache-2.0
"""One op as a question of its own: the graph of the op alone, under names that depend on its content only."""

from __future__ import annotations

from configs.values import Struct, replace
from scheduler.search.fingerprint import fingerprint
from trainlib.ir.graph import Op, Tensor, TrainingGraph
from trainlib.training.phases import only
from trainlib.training.variants import with_variant

LAYER = "op"
"""Name of the only layer of a task."""


class Task(Struct, frozen=True):
    """An op to schedule: a graph with one op, whose tensors are called by their roles.

    Two layers of the same kind and shape give equal tasks, so that they are simulated once. `content` is the
    hash of all that a simulation of the task can depend on.
    """

    graph: TrainingGraph
    content: str

    @property
    def op(self) -> Op:
        """The op."""
        return self.graph.ops[0]

    def in_variant(self, name: str) -> Task:
        """The task in another variant (`trainlib.training.variants`). Raises `InputError` if there is
        none."""
        return _task(replace(self.graph, ops=(with_variant(self.op, name),)))


def task_of(graph: TrainingGraph, op: Op) -> Task:
    """The task of one op of a graph."""
    alone = only(graph, [op])
    names = {tensor: role for role, tensor in reversed(tuple(op.roles.items()))}
    for name in alone.tensors:
        if name not in names:
            # The storage behind a view: called after what reads it.
            names[name] = "storage of " + min(
                names[view] for view in names if view in alone.tensors and alone.storage_of(view) == name
            )
    tensors = {names[name]: _renamed(tensor, names) for name, tensor in alone.tensors.items()}
    named = replace(
        op,
        name=f"{LAYER}.{op.step}",
        layer=LAYER,
        inputs=tuple(names[name] for name in op.inputs),
        outputs=tuple(names[name] for name in op.outputs),
    )
    canonical = TrainingGraph(
        name=LAYER,
        tensors=dict(sorted(tensors.items())),
        ops=(named,),
        inputs=(),
        labels=(),
        outputs=(),
        losses=(),
        weights=(),
        gradients={},
        kept=tuple(sorted(named.outputs)),
    )
    return _task(canonical)


def _task(graph: TrainingGraph) -> Task:
    return Task(graph, fingerprint((graph.tensors, graph.ops)))


def _renamed(tensor: Tensor, names: dict[str, str]) -> Tensor:
    alias = names[tensor.alias_of] if tensor.alias_of is not None else None
    return replace(tensor, name=names[tensor.name], alias_of=alias)

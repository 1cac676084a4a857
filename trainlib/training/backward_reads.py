# SPDX-License-Identifier: Apache-2.0
"""What backward keeps: of steps that can read the input or the output, which of these they read.

The one place where that is decided, for all layers (`trainlib.primitives.definition.Step.others`). Of each
step the form is taken for which fewest bytes of the forward pass have to be kept: what another step of the
backward pass reads anyway costs nothing. Of equal ones it is the form whose tensors are made last, so that
those before them end in the forward pass. Numbers and cycles are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from trainlib.ir.graph import FED_KINDS, GIVEN_KINDS, Op, TrainingGraph
from trainlib.primitives.definition import is_forward
from trainlib.registry import step_of


def read_what_is_kept(graph: TrainingGraph) -> TrainingGraph:
    """The graph with the inputs of its backward ops so chosen that fewest bytes live beyond the forward pass.

    From one choice to the next, until none of them would save anything by itself.
    """
    made = {graph.storage_of(name): number for number, op in enumerate(graph.ops) for name in op.outputs}
    forward = {op.layer: op for op in graph.ops if op.step == "FW"}
    free = {graph.storage_of(name) for name in (*graph.results, *graph.of_kind(*GIVEN_KINDS))}
    ops = list(graph.ops)
    forms = {
        number: [op, *(_reading(op, forward[op.layer], other.reads) for other in step_of(op).others)]
        for number, op in enumerate(ops)
        if op.layer in forward and not is_forward(op.step) and step_of(op).others
    }

    def kept(op: Op) -> set[str]:
        """What an op needs of the forward pass, and nobody else has kept for good."""
        storages = {graph.storage_of(name) for name in op.inputs} - free
        return {name for name in storages if graph.tensors[name].kind in ("activation", "saved")}

    readers = Counter(
        name for op in ops if not is_forward(op.step) and op.step != "LOSS" for name in kept(op)
    )

    def price(number: int, op: Op) -> tuple[int, int]:
        alone = {name for name in kept(op) if readers[name] == (name in kept(ops[number]))}
        return _bytes(graph, alone), -max((made[name] for name in kept(op)), default=0)

    changed = True
    while changed:
        changed = False
        for number, choices in forms.items():
            best = min(choices, key=lambda op: price(number, op))
            if price(number, best) < price(number, ops[number]):
                readers.subtract(kept(ops[number]))
                readers.update(kept(best))
                ops[number], changed = best, True
    return replace(graph, ops=tuple(ops))


def reads_of_layers(graph: TrainingGraph) -> dict[str, tuple[str, ...]]:
    """Layer -> what of its forward pass its backward steps read: input, output, or roles of what is saved."""
    reads: dict[str, dict[str, None]] = {}
    kept = {*graph.of_kind(*FED_KINDS)}
    for op in graph.ops:
        if is_forward(op.step):
            kept.update(op.outputs)
        elif op.step != "LOSS":
            of_forward = [
                role.rstrip("0123456789")
                for role, name in zip(op.reads, op.inputs, strict=True)
                if graph.storage_of(name) in kept
            ]
            reads.setdefault(op.layer, {}).update(dict.fromkeys(of_forward))
    words = {"x": "input", "y": "output"}
    return {layer: tuple(words.get(role, role) for role in roles) for layer, roles in reads.items()}


def _reading(op: Op, forward: Op, roles: tuple[str, ...]) -> Op:
    """A backward op on other tensors of its layer."""
    return replace(op, reads=roles, inputs=tuple({**forward.roles, **op.roles}[role] for role in roles))


def _bytes(graph: TrainingGraph, storages: Iterable[str]) -> int:
    return sum(graph.tensors[name].size_bytes for name in storages)

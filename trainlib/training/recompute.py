# SPDX-License-Identifier: Apache-2.0
"""Activation recomputation (checkpointing): forward ops are done again for the backward pass.

What a layer marked `recompute` makes then lives only until its last reader in the forward pass; the ops that
made it come a second time just before the first backward op that reads it, from the inputs kept (or computed
again themselves). Numbers stay what they are, cycles rise and the memory plan finds shorter lives. After
T. Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from configs.values import replace
from trainlib.ir.graph import Op, Tensor, TrainingGraph
from trainlib.primitives.definition import is_forward

AGAIN = "again"
"""What the names of ops and tensors computed a second time end in."""


def layer_of(op: Op) -> str:
    """The layer whose work an op does, for the first time or again."""
    return op.layer.removesuffix(f".{AGAIN}")


def recompute(graph: TrainingGraph, layers: Iterable[str]) -> TrainingGraph:
    """The graph with the forward ops of these layers repeated where the backward pass needs their results.

    A layer whose results no backward op reads is left alone; running statistics are updated once.
    """
    chosen = set(layers)
    if not chosen:
        return graph
    work = _Work(graph, dict(graph.tensors))
    ops: list[Op] = []
    backward = False
    for op in graph.ops:
        backward = backward or op.step == "LOSS"
        if not is_forward(op.step):
            if op.step != "LOSS" and backward:
                ops.append(work.redirected(op, ops))
                continue
        elif op.layer in chosen:
            work.makers |= dict.fromkeys(op.outputs, op)
        ops.append(op)
    return replace(graph, tensors=work.tensors, ops=tuple(ops))


@dataclass(slots=True)
class _Work:
    """State of one rewriting."""

    graph: TrainingGraph
    tensors: dict[str, Tensor]
    makers: dict[str, Op] = field(default_factory=dict)
    """Tensor -> forward op that made it, of the layers chosen."""
    again: dict[str, str] = field(default_factory=dict)
    """Tensor -> its second version, as far as there is one by now."""

    def redirected(self, op: Op, ops: list[Op]) -> Op:
        """`op` on the second versions of what it reads; the ops that make them are appended first."""
        return replace(op, inputs=tuple(self._second(name, ops) for name in op.inputs))

    def _second(self, name: str, ops: list[Op]) -> str:
        if name in self.again:
            return self.again[name]
        if name in self.makers:
            self._repeat(self.makers[name], ops)
            return self.again[name]
        if self.graph.is_view(name):
            source = str(self.tensors[name].alias_of)
            second = self._second(source, ops)
            if second != source:
                self._add(replace(self.tensors[name], name=f"{name}.{AGAIN}", alias_of=second), name)
                return self.again[name]
        return name

    def _repeat(self, op: Op, ops: list[Op]) -> None:
        """Append a second run of a forward op, whose results are new tensors that nobody keeps."""
        inputs = tuple(self._second(name, ops) for name in op.inputs)
        for name in op.outputs:
            tensor = self.tensors[name]
            kind = "saved" if tensor.kind in ("buffer", "saved") else tensor.kind
            self._add(replace(tensor, name=f"{name}.{AGAIN}", kind=kind, alias_of=None), name)
        layer = f"{op.layer}.{AGAIN}"
        outputs = tuple(self.again[name] for name in op.outputs)
        ops.append(replace(op, name=f"{layer}.{op.step}", layer=layer, inputs=inputs, outputs=outputs))

    def _add(self, tensor: Tensor, first: str) -> None:
        self.tensors[tensor.name] = tensor
        self.again[first] = tensor.name

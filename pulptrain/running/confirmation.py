# SPDX-License-Identifier: Apache-2.0
"""Are the references of the ops the training of the model as it was given? Asked of `truth` (`number_check`).

`truth` imports PyTorch, so most of it is imported here only when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from configs.values import replace
from trainlib.ir.graph import Op, TrainingGraph
from trainlib.ir.numerics import FP32_TOLERANCE
from trainlib.ir.steps import Array
from trainlib.primitives.definition import is_forward
from trainlib.references.op_truth import FEW_NUDGES, MANY_NUDGES, OpTruth, TruthSlice, room
from trainlib.references.reference import complete, overwritten, views_of
from trainlib.references.verdicts import FAILED, WITHOUT_TRUTH, Judgement, Verdict
from trainlib.training.recompute import layer_of
from truth.source import Given

CANCELLED = 1e-12
"""What float64 leaves where everything cancels, relative to the largest input of an op."""


def _new_updates() -> Any:
    from truth.iteration import Updates

    return Updates()


@dataclass(slots=True)
class OwnUpdates:
    """Weights and states that `torch.optim` has of its own, and how far rounding may take ours from them."""

    optimizers: Any = field(default_factory=_new_updates)
    drift: dict[str, Array] = field(default_factory=dict)
    keep: bool = True
    """False in the last iteration that is followed: nothing has to be remembered for another one."""


class Confirmation:
    """What PyTorch makes of one program of the model, and the chain of references that must make the same.

    `values` are the given tensors, `seen` what the ops have left; both PyTorch and the references go on from
    those, so that they agree to float64 but for tensors that only a layer's own steps see. `updates` are None
    where an optimizer has states that PyTorch's does not know; `tell` is given every tensor that differs, and
    those the model trains and no op does, or the other way round. Tensors in float64 are large, so each is
    forgotten once no later op needs it. Raises `DisagreementError` as `truth.iteration.Iteration`.
    """

    def __init__(
        self,
        given: Given,
        graph: TrainingGraph,
        values: Mapping[str, Array],
        seen: Mapping[str, Array],
        updates: OwnUpdates | None,
        tell: Callable[[Verdict], None],
        losses: Sequence[float] = (),
    ) -> None:
        from truth.iteration import Iteration

        self._graph = graph
        self._seen = seen
        self._updates = updates
        self._tell = tell
        self._torch = Iteration(given, values, seen, losses)
        self.output_shapes = self._torch.output_shapes
        for name, why in self._torch.differences().items():
            tell(Verdict(name, FAILED, why=why))
        names = {*values, *self._torch.made, *(f"{name}_updated" for name in self._torch.updated)}
        for name, tensor in graph.tensors.items():
            if tensor.alias_of in names and graph.is_view(name):
                names.add(name)
        self._names = frozenset(names)
        """All tensors the truth has: given ones, those made or updated, and views of them."""
        self._views = views_of(graph)
        self._chain = dict(values)
        complete(self._views, self._chain)
        self._own: dict[tuple[str, str], Array] = {}
        """What a layer has made, unrounded: to autograd its own output is not what was stored of it."""
        self._rough: set[str] = set()
        """Layers that compute in fp32 by definition: another order of their steps gives another bit."""
        self._gone: set[str] = set()
        """Tensors whose storage has been taken over: PyTorch has them still."""
        self._added = 0
        self._reads = _LastReads(graph)

    def add(self, op: Op, truth: OpTruth | None = None) -> None:
        """Compare the results of the next op; `truth` is its truth on what was seen, if that is known."""
        graph, chain, torch = self._graph, self._chain, self._torch
        layer = layer_of(op)
        kept = {name: self._own[layer, name] for name in op.inputs if (layer, name) in self._own}
        if truth is None or kept or any(name not in self._names for name in op.inputs):
            truth = OpTruth(op, graph.tensors, {**chain, **kept})
        if truth.single:
            self._rough.add(layer)
        for name in truth.names:
            if is_forward(op.step) and (layer, name) in self._reads.by_layer:
                self._own[layer, name] = truth.output(name)
            is_known = name in self._names and name in self._seen
            if is_known or self._reads.after(self._added, name):
                chain[name] = self._seen[name] if is_known else truth.output(name)
            if is_known and graph.tensors[name].dtype.is_float and self._gone.isdisjoint(op.inputs):
                self._compare(truth, name)
            torch.made.pop(name, None)
        over = overwritten(graph, {name: chain[name] for name in truth.names if name in chain})
        chain |= over
        self._gone |= over.keys()
        complete(self._views, chain)
        for name in op.inputs:
            if self._reads.by_layer[layer, name] == self._added:
                self._own.pop((layer, name), None)
            if not self._reads.after(self._added, name):
                for other in self._reads.together(name):
                    chain.pop(other, None)
        self._added += 1

    def _compare(self, truth: OpTruth, name: str) -> None:
        """A tensor against the reference's; a weight of `torch.optim`, where roundings add up, against ours.

        What agrees is not told: the last digits of PyTorch depend on its threads.
        """
        update = truth.op.step == "UPD"
        if update and self._updates is None:
            return
        theirs = self._updated(truth.op) if update else self._torch.made[name].reshape(-1)
        verdict = self._verdict(truth, name, theirs, FEW_NUDGES)
        if verdict.verdict == FAILED:
            verdict = self._verdict(truth, name, theirs, MANY_NUDGES)
        reason = truth.undecidable(name) if verdict.verdict == FAILED else None
        if reason and truth.reads_not_finite:
            # The op does what its formula says, and PyTorch makes something else of a NaN.
            self._tell(replace(verdict, verdict=WITHOUT_TRUTH, why=reason))
        elif verdict.verdict == FAILED and not reason:
            why = "differs from torch.optim after these updates"
            why = why if update else "its NumPy reference differs from PyTorch"
            self._tell(replace(verdict, why=f"{why}: {verdict.why}"))
        if update and self._updates is not None and self._updates.keep:
            drifted = [self._drifted(truth, part) for part in truth.parts(FEW_NUDGES) if part.name == name]
            self._updates.drift[name] = np.concatenate(drifted)

    def _updated(self, op: Op) -> Array:
        """The weight of `torch.optim` after this update."""
        assert self._updates is not None
        updated = self._torch.step(
            self._graph.storage_of(op["w"]), self._updates.optimizers, keep=self._updates.keep
        )
        return updated.reshape(-1)

    def _verdict(self, truth: OpTruth, name: str, theirs: Array, nudges: int) -> Verdict:
        """How what PyTorch has `theirs` is to be judged."""
        update, seen = truth.op.step == "UPD", self._seen[name]
        judgement = Judgement(name, seen.shape, seen.dtype if update else theirs.dtype)
        while judgement.open:
            for part in truth.parts(nudges):
                if part.name != name or part.gain is None:
                    continue
                some, first = theirs[part.where], part.where.start
                if update:
                    ours, room = seen.reshape(-1)[part.where], self._drifted(truth, part)
                    judgement.add(ours, some, room, part.gain, first)
                else:
                    judgement.add(some, part.value, self._allowed(truth, part), part.gain, first)
            judgement.end()
        return judgement.verdict()

    @np.errstate(all="ignore")
    def _allowed(self, truth: OpTruth, part: TruthSlice) -> Array:
        """How far two computations in fp32 may be apart."""
        assert part.gain is not None
        dtype = self._graph.tensors[part.name].dtype
        allowed = room(truth, part, dtype, 1, kernel=False)
        allowed = allowed + CANCELLED * truth.size_of_inputs
        if layer_of(truth.op) in self._rough:
            allowed = allowed + FP32_TOLERANCE * truth.size_of(part.name)
        return allowed

    @np.errstate(all="ignore")
    def _drifted(self, truth: OpTruth, part: TruthSlice) -> Array:
        """How far roundings may have taken a weight of ours from that of `torch.optim` by now."""
        assert self._updates is not None
        step = np.spacing(np.abs(self._seen[part.name].reshape(-1)[part.where])).astype(np.float64)
        before = self._updates.drift.get(part.name)
        started = before[part.where] if before is not None else np.float64(0)
        total: Array = started + self._allowed(truth, part) + step
        return total


class _LastReads:
    """Which ops of a graph are the last to read a tensor, by their number."""

    def __init__(self, graph: TrainingGraph) -> None:
        self._storage = {name: graph.storage_of(name) for name in graph.tensors}
        self._by_storage: dict[str, int] = {}
        self._together: dict[str, list[str]] = {}
        self.by_layer: dict[tuple[str, str], int] = {}
        """Of the ops of one layer, those that are done again included."""
        for name, storage in self._storage.items():
            self._together.setdefault(storage, []).append(name)
        for number, op in enumerate(graph.ops):
            for name in op.inputs:
                self._by_storage[self._storage[name]] = number
                self.by_layer[layer_of(op), name] = number

    def after(self, number: int, name: str) -> bool:
        """Whether an op behind this one reads the tensor, or another one in the same storage."""
        return self._by_storage.get(self._storage[name], -1) > number

    def together(self, name: str) -> list[str]:
        """All tensors in the same storage."""
        return self._together[self._storage[name]]

"""Are the references of the ops the training of the network? Asked of PyTorch (see `number_check`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from configs.dtypes import is_float
from trainlib import oracle_torch
from trainlib.graph import Op, TrainingGraph
from trainlib.numerics import FP32_TOLERANCE
from trainlib.op_truth import FEW_NUDGES, MANY_NUDGES, OpTruth, op_truth, room
from trainlib.oracle_torch import TorchUpdates
from trainlib.primitives.definition import is_forward
from trainlib.reference import complete, overwritten, views_of
from trainlib.steps import Array
from trainlib.verdicts import FAILED, Verdict, judged

CANCELLED = 1e-12
"""What float64 leaves where everything cancels, relative to the largest input of an op."""


@dataclass(slots=True)
class OwnUpdates:
    """Weights and states that `torch.optim` has of its own, and how far rounding may take ours from them."""

    optimizers: TorchUpdates = field(default_factory=TorchUpdates)
    drift: dict[str, Array] = field(default_factory=dict)


class Confirmation:
    """What PyTorch makes of one program, and the chain of references that must make the same.

    `values` are the given tensors, `seen` what the ops have left; both PyTorch and the references go on from
    those, so that they agree to float64 but for tensors that only a layer's own steps see. `updates` are None
    where an optimizer has states that PyTorch's does not know; `tell` is given every tensor that differs.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        values: Mapping[str, Array],
        seen: Mapping[str, Array],
        updates: OwnUpdates | None,
        tell: Callable[[Verdict], None],
    ) -> None:
        self._graph = graph
        self._seen = seen
        self._updates = updates
        self._tell = tell
        optimizers = updates.optimizers if updates is not None else None
        self._found = oracle_torch.evaluate_torch(graph, values, "float64", seen, optimizers)
        self._views = views_of(graph)
        self._chain = dict(values)
        complete(self._views, self._chain)
        self._own: dict[tuple[str, str], Array] = {}
        """What a layer has made, unrounded: to autograd its own output is not what was stored of it."""
        self._rough: set[str] = set()
        """Layers that compute in fp32 by definition: another order of their steps gives another bit."""
        self._gone: set[str] = set()
        """Tensors whose storage has been taken over: PyTorch has them still."""

    def add(self, op: Op, truth: OpTruth | None = None) -> None:
        """Compare the results of the next op; `truth` is its truth on what was seen, if that is known."""
        graph, chain = self._graph, self._chain
        kept = {name: self._own[op.layer, name] for name in op.inputs if (op.layer, name) in self._own}
        if truth is None or kept or any(name not in self._found for name in op.inputs):
            truth = op_truth(op, graph.tensors, {**chain, **kept})
        if truth.single:
            self._rough.add(op.layer)
        for name, made in truth.outputs.items():
            if is_forward(op.step):
                self._own[op.layer, name] = made
            known = name in self._found and name in self._seen
            chain[name] = self._seen[name] if known else made
            if known and is_float(graph.tensors[name].dtype) and self._gone.isdisjoint(op.inputs):
                self._compare(truth, name)
        over = overwritten(graph, {name: chain[name] for name in truth.outputs})
        chain |= over
        self._gone |= over.keys()
        complete(self._views, chain)

    @np.errstate(all="ignore")
    def _compare(self, truth: OpTruth, name: str) -> None:
        """A tensor against the reference's; a weight of `torch.optim`, where roundings add up, against ours.

        What agrees is not told: the last digits of PyTorch depend on its threads.
        """
        if truth.op.step == "UPD" and self._updates is None:
            return
        verdict, why = self._verdict(truth, name, FEW_NUDGES)
        if verdict.verdict == FAILED:
            verdict, why = self._verdict(truth, name, MANY_NUDGES)
        if verdict.verdict == FAILED:
            self._tell(replace(verdict, why=f"{why}: {verdict.why}"))
        if self._updates is not None and truth.op.step == "UPD":
            self._updates.drift[name] = self._drifted(truth, name, FEW_NUDGES)

    def _verdict(self, truth: OpTruth, name: str, nudges: int) -> tuple[Verdict, str]:
        """The verdict, and what it means if it is a bad one."""
        made, gain = truth.outputs[name], truth.gains(nudges)[name]
        found = self._found[name].reshape(made.shape)
        if truth.op.step == "UPD":
            verdict = judged(name, self._seen[name], found, self._drifted(truth, name, nudges), gain)
            return verdict, "not what torch.optim has after these updates"
        verdict = judged(name, found, made, self._allowed(truth, name, nudges), gain)
        return verdict, "its NumPy reference differs from PyTorch"

    def _allowed(self, truth: OpTruth, name: str, nudges: int) -> Array:
        """How far two computations in fp32 may be apart."""
        gain = truth.gains(nudges)[name]
        allowed = room(truth, {name: gain}, self._graph.tensors, 1, kernel=False)[name]
        allowed = allowed + CANCELLED * max(map(_size, truth.inputs.values()), default=0.0)
        if truth.op.layer in self._rough:
            allowed = allowed + FP32_TOLERANCE * _size(truth.outputs[name])
        return allowed

    def _drifted(self, truth: OpTruth, name: str, nudges: int) -> Array:
        """How far roundings may have taken a weight of ours from that of `torch.optim` by now."""
        assert self._updates is not None
        step = np.spacing(np.abs(self._seen[name])).astype(np.float64)
        before = self._updates.drift.get(name, np.float64(0))
        total: Array = before + self._allowed(truth, name, nudges) + step
        return total


def _size(array: Array) -> float:
    return float(np.max(np.abs(array), initial=0.0, where=np.isfinite(array)))

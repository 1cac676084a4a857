# SPDX-License-Identifier: Apache-2.0
"""A training graph of somebody else's, as it is: its backward pass, its accumulation, its optimizer.

Two dialects are known: Deeploy's (weights as inputs or initializers, SGD nodes inside or in a graph of its
own) and ONNX Runtime's training artifacts. Gradients of several mini-batches are summed, as both do; the
first of them overwrites what was there (lazy reset).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np

from configs.errors import InputError, PulptrainError, UnsupportedLayerError
from configs.model_file import OptimizerSpec
from configs.values import replace
from importers.graph.draft import LAYERS, NO_FORM, CannotTakeError, Problem, model_name, refuse
from importers.graph.node import problem_of
from importers.graph.onnx_folding import computed, of_shape
from importers.graph.onnx_graph import OnnxGraph, OnnxNode
from importers.ops import NEAREST_ONNX
from importers.training import elements, layers, others
from importers.training.draft import TrainingDraft
from importers.training.layers import ACCUMULATORS, MICROSOFT, ONE_UPDATE, SGD, Handler, TrainingNode, kind_of
from trainlib.ir.graph import KEPT_KINDS, Initial, Op, Tensor, TrainingGraph
from trainlib.ir.steps import Array
from trainlib.primitives.definition import he_uniform
from trainlib.registry import optimizer_primitive
from trainlib.training.options import optimizer_options
from trainlib.training.phases import TrainingPhases

HANDLERS: Mapping[str, Handler] = {**elements.HANDLERS, **layers.HANDLERS, **others.HANDLERS}
"""By op; private ones, of com.microsoft, with and without their domain."""

BUFFER = "_grad.accumulation.buffer"
"""Ending of the total of a weight's gradients, in both dialects."""

DEFAULT_LEARNING_RATE = 0.001
"""Where neither the graph nor the user says one: that of both dialects' harnesses."""

OPTIMIZER_FILE = "optimizer_model.onnx"
"""What ONNX Runtime calls the optimizer of a folder."""


def optimizer_beside(folder: Path) -> Path | None:
    """The optimizer graph of a folder: that of `X_optimizer` beside `X_train`, or one of its own.

    The one beside goes first: it has a learning rate, and Deeploy's folders may hold ONNX Runtime's too.
    """
    stem = folder.name.removesuffix("_train")
    beside = folder.with_name(f"{stem}_optimizer") / "network.onnx"
    files = [beside] if stem != folder.name else []
    return next((file for file in (*files, folder / OPTIMIZER_FILE) if file.is_file()), None)


def is_training_graph(graph: OnnxGraph) -> bool:
    """Whether a graph has gradients of its own, their accumulation, or updates."""
    return trains_weights(graph) or any("Grad" in kind_of(node) for node in graph.nodes)


def trains_weights(graph: OnnxGraph) -> bool:
    """Whether a graph accumulates gradients or updates weights; others compute outputs from inputs."""
    return any(kind_of(node) in (*ACCUMULATORS, *SGD) for node in graph.nodes)


def is_optimizer_graph(graph: OnnxGraph) -> bool:
    """Whether a graph holds updates and nothing else."""
    return bool(graph.nodes) and all(kind_of(node) in SGD for node in graph.nodes)


@dataclass(frozen=True, slots=True)
class ImportedTraining:
    """A training graph as ours: programs, start values by tensor, and which inputs are what.

    `data` are the inputs of a sample in the order of the file, by their names there: `fed` says which tensor
    of ours each is. `weights` are those that are trained. `given` are inputs that hold start values, in the
    order of the file. `accumulates` says whether the graph adds gradients up; `learning_rate` is what the
    updates use.
    """

    phases: TrainingPhases
    values: Mapping[str, Array]
    data: tuple[str, ...]
    fed: Mapping[str, str]
    given: tuple[str, ...]
    weights: tuple[str, ...]
    flags: tuple[str, ...]
    accumulates: bool
    learning_rate: float
    nodes: int
    path: str
    notes: tuple[str, ...] = field(default=())

    def sample(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Values of a sample, by the names of the file, for the tensors of ours."""
        fed = {name: self.phases.mini_batch.tensors[self.fed[name]] for name in arrays}
        return {tensor.name: as_tensor(name, arrays[name], tensor) for name, tensor in fed.items()}

    def over(self, mini_batches: int) -> ImportedTraining:
        """The same with so many mini-batches per update; InputError if it cannot accumulate."""
        if mini_batches == 1:
            return self
        if not self.accumulates:
            raise InputError(
                f"{mini_batches} mini-batches per update, but the graph does not accumulate gradients",
                where=self.path,
                cure="use --accumulate 1, or a graph with InPlaceAccumulatorV2",
            )
        graph = self.phases.mini_batch
        ops = tuple(
            replace(op, attributes={**op.attributes, "steps": mini_batches})
            if op.step == "ACCUMULATE"
            else op
            for op in graph.ops
        )
        phases = replace(self.phases, mini_batch=replace(graph, ops=ops), mini_batches=mini_batches)
        return replace(self, phases=phases)


def import_training(
    graph: OnnxGraph, optimizer: OnnxGraph | None = None, learning_rate: float | None = None
) -> ImportedTraining:
    """A training graph, with the optimizer graph that lies beside it, as programs of ours.

    The learning rate is that of the SGD nodes, else `learning_rate`, else 0.001. Raises
    UnsupportedLayerError that lists every node that cannot be taken, and InputError for graphs without a
    loss, without a weight that is trained, or with an optimizer that does not belong to them.
    """
    reader = _Reader(graph)
    reader.read()
    try:
        return reader.finish(optimizer, learning_rate)
    except CannotTakeError as error:
        where = optimizer.path if optimizer is not None else graph.path
        raise InputError(
            f"invalid updates: {error.reason}", where=where, cure="use weights and gradients of one shape"
        ) from None


def import_nodes(graph: OnnxGraph) -> ImportedTraining:
    """A graph that trains nothing, node by node: all inputs are data, `fed` names results as well.

    So kernels are tested: an op or a gradient alone, of any number of inputs and outputs. Raises
    UnsupportedLayerError that lists every node that cannot be read.
    """
    reader = _Reader(graph, trains=False)
    reader.read()
    return reader.finish_alone()


def as_tensor(name: str, array: Array, tensor: Tensor) -> Array:
    """The input `name` of a file as our tensor. Raises InputError if it has another number of elements."""
    if array.size != prod(tensor.shape):
        raise InputError(
            f"the stored input '{name}' has shape {list(array.shape)}, not {list(tensor.shape)}",
            where="inputs.npz",
            cure="store the input in the shape that the graph declares",
        )
    return np.ascontiguousarray(array.astype(tensor.dtype)).reshape(tensor.shape)


Update = tuple[str, str, float | None]
"""A weight, its gradient or the total of it, and the learning rate if the node says one."""


class _Reader:
    """Reads the nodes of one training graph in order."""

    def __init__(self, graph: OnnxGraph, *, trains: bool = True) -> None:
        self.graph = graph
        self.trains = trains
        self.draft = TrainingDraft(graph)
        self.draft.constants = {**graph.initializers, **graph.folded}
        self.problems: list[Problem] = []
        self.updates: list[Update] = []
        """By names of the file."""
        self.unread: set[str] = set()
        accumulators = [node for node in graph.nodes if kind_of(node) in ACCUMULATORS]
        self.flags = tuple(dict.fromkeys(node.input(2) for node in accumulators if node.input(2)))
        self.totals = {node.input(0) for node in accumulators}
        self.data = self._data() if trains else graph.inputs
        others = {*self.data, *self.flags, *self.totals}
        self.given = tuple(name for name in graph.inputs if name not in others)

    def _wrong(self, reason: str, cure: str) -> InputError:
        return InputError(reason, where=self.graph.path, cure=cure)

    def _data(self) -> tuple[str, ...]:
        """Inputs of a sample: those up to the label."""
        labels = [node.input(1) for node in self.graph.nodes if kind_of(node) in others.LOSSES]
        if len(labels) != 1 or labels[0] not in self.graph.inputs:
            kinds = dict.fromkeys(node.op for node in self.graph.nodes if "Grad" in node.op)
            no_loss = f"the graph computes gradients ({', '.join(kinds)}) but has no loss"
            what = "the graph has several losses, or a label that is not an input" if labels else no_loss
            raise self._wrong(what, f"use a training graph: {' or '.join(others.LOSSES)} of one input")
        return self.graph.inputs[: self.graph.inputs.index(labels[0]) + 1]

    def read(self) -> None:
        """All nodes. Raises UnsupportedLayerError."""
        for name in self.graph.inputs:
            self._input(name)
        for node in self.graph.nodes:
            if kind_of(node) in SGD and node.input(0) in self.graph.initializers:
                self.draft.read(node.input(0))
        for node in self.graph.nodes:
            self._node(node)
        what = f"of {len(self.graph.nodes)} operations cannot be trained here"
        refuse(self.problems, what, self.graph.path, LAYERS)

    def _input(self, name: str) -> None:
        if name in self.flags:
            return
        tensor = self.graph.tensor(name)
        if not tensor.is_static or 0 in tensor.sizes:
            what = f"input '{name}' has the shape {tensor.shape_text}"
            raise self._wrong(what, "use sizes above 0")
        floats = tensor.dtype.startswith(("float", "bfloat"))
        kind, dtype = "weight", "float32"
        if name in self.totals:
            kind = "optimizer_state"
        elif name in self.data:
            kind = "label" if self.trains and name == self.data[-1] else "input"
            dtype = "float32" if floats else "int32"
        shape = tensor.sizes or (1,)
        self.draft.names[name] = self.draft.add(name, shape, kind, dtype)
        if kind == "weight":
            start = he_uniform(shape) if len(shape) > 1 else Initial("uniform", 0.1)
            weight = self.draft.builder.tensors[name]
            self.draft.builder.tensors[name] = replace(weight, initial=start)

    def _node(self, node: OnnxNode) -> None:
        if self.unread & set(node.inputs):  # the reason is in the list already
            self.unread.update(filter(None, node.outputs))
            return
        constants = self.draft.constants
        item = TrainingNode(node, self.draft, _site(node), self.graph.opset)
        try:
            if item.kind == "SGD":
                self._update(item)
                return
            if node.op in ("Shape", "Size") and node.input(0) in self.draft.names:
                constants |= of_shape(node, self.draft.shape(self.draft.names[node.input(0)])) or {}
                return
            if node.inputs and all(not name or name in constants for name in node.inputs):
                values = [constants[name] if name else None for name in node.inputs]
                results = computed(node, values, self.graph.opset)
                if results is not None:
                    constants.update(results)
                    return
            handler = HANDLERS.get(node.op.removeprefix(MICROSOFT))
            if handler is None:
                raise CannotTakeError("pulptrain cannot train the op", NEAREST_ONNX.get(node.op, NO_FORM))
            handler(item)
        except CannotTakeError as error:
            self._refuse(node, error)
        except PulptrainError as error:
            self._refuse(node, CannotTakeError(error.message, error.cure or NO_FORM))

    def _update(self, item: TrainingNode) -> None:
        weight = item.node.input(0)
        if weight in [name for updated, _, _ in self.updates for name in (updated, f"{updated}_updated")]:
            raise CannotTakeError(f"the graph updates the weight twice: '{weight}'", ONE_UPDATE)
        self.updates.append((weight, item.node.input(1), _rate(item)))

    def _refuse(self, node: OnnxNode, error: CannotTakeError) -> None:
        self.unread.update(filter(None, node.outputs))
        self.problems.append(problem_of(self.graph, node, error))

    def finish_alone(self) -> ImportedTraining:
        """One program of the nodes; its outputs are those of the file, under its names."""
        draft, graph = self.draft, self.graph
        if not graph.outputs:
            raise self._wrong("the graph has no outputs", "use a graph with at least one output")
        missing = [name for name in graph.outputs if name not in draft.names]
        if missing:
            raise self._wrong(f"no node computes the output '{missing[0]}'", "use outputs of nodes")
        results = {name: draft.lies_in(draft.names[name])[-1] for name in graph.outputs}
        draft.without_unused(results.values())
        fed = {name: draft.names[name] for name in self.data}
        program = TrainingGraph(
            name=model_name(graph.name),
            tensors=draft.builder.tensors,
            ops=tuple(draft.builder.ops),
            inputs=tuple(fed.values()),
            labels=(),
            outputs=tuple(dict.fromkeys(results.values())),
            losses=(),
            weights=draft.builder.of_kind("weight"),
            gradients={},
        )
        return ImportedTraining(
            phases=TrainingPhases(program),
            values=dict(draft.values),
            data=self.data,
            fed=fed | results,
            given=(),
            weights=(),
            flags=(),
            accumulates=False,
            learning_rate=DEFAULT_LEARNING_RATE,
            nodes=len(graph.nodes) + len(graph.folded),
            path=graph.path,
        )

    def finish(self, optimizer: OnnxGraph | None, learning_rate: float | None) -> ImportedTraining:
        """The programs: with accumulation two, else the updates behind the gradients in one."""
        draft = self.draft
        builder = draft.builder
        accumulators = [op for op in builder.ops if op.step == "ACCUMULATE"]
        gradients = {_weight_of(op["total"]): op["dw"] for op in accumulators}
        totals = {_weight_of(op["total"]): op["total"] for op in accumulators}
        for weight, gradient, _ in self.updates:
            gradients[draft.read(weight)] = draft.read(gradient)
        if not gradients:
            raise self._wrong("the graph trains no weight", "add SGD or InPlaceAccumulatorV2 nodes")
        updates = self._updates(optimizer, totals)
        rates = {rate for _, _, rate in updates if rate is not None}
        if len(rates) > 1:
            several = ", ".join(map(str, sorted(rates)))
            raise self._wrong(f"the graph has learning rates {several}", "use one for all weights")
        said = next(iter(rates), None)
        rate = said if said is not None else (learning_rate or DEFAULT_LEARNING_RATE)
        notes = []
        if said is not None and learning_rate is not None and learning_rate != said:
            notes.append(f"the graph has learning rate {said}: --learning-rate {learning_rate} is ignored")
        phases = self._phases(gradients, updates, rate, separate=bool(accumulators))
        return ImportedTraining(
            phases=phases,
            values=dict(draft.values),
            data=self.data,
            fed={name: draft.names[name] for name in self.data},
            given=self.given,
            weights=tuple(weight for weight, _, _ in updates),
            flags=self.flags,
            accumulates=bool(accumulators),
            learning_rate=rate,
            nodes=len(self.graph.nodes) + len(self.graph.folded),
            path=self.graph.path,
            notes=tuple(notes),
        )

    def _updates(self, optimizer: OnnxGraph | None, totals: Mapping[str, str]) -> list[Update]:
        """Every update by tensors of ours."""
        read = self.draft.read
        if not totals:
            return [(read(weight), read(gradient), rate) for weight, gradient, rate in self.updates]
        plain: list[Update] = [(weight, total, None) for weight, total in totals.items()]
        if optimizer is None:
            return plain
        if not is_optimizer_graph(optimizer):
            other = next((node for node in optimizer.nodes if kind_of(node) not in SGD), None)
            what = f"{other.name}: {other.op}" if other is not None else "nothing"
            raise UnsupportedLayerError(
                f"only SGD is supported as an optimizer graph: {what}",
                where=optimizer.path,
                cure="use SGD, one node per weight",
            )
        if any(kind_of(node) != "SGD" for node in optimizer.nodes):
            return plain  # one node for all weights, its learning rate an input
        updates: list[Update] = []
        for node in optimizer.nodes:
            weight = node.input(0)
            if weight not in totals:
                raise InputError(
                    f"the node updates '{weight}', whose gradient the training graph does not accumulate",
                    where=optimizer.path,
                    cure="use the optimizer graph that was exported with the training graph",
                )
            rate = _rate(TrainingNode(node, self.draft, "", optimizer.opset))
            updates.append((weight, totals[weight], rate))
        return updates

    def _phases(
        self,
        gradients: Mapping[str, str],
        updates: Sequence[Update],
        rate: float,
        *,
        separate: bool,
    ) -> TrainingPhases:
        draft, builder = self.draft, self.draft.builder
        forward = list(builder.ops)
        optimizer = optimizer_primitive("sgd")
        options = optimizer_options(OptimizerSpec("sgd", {"learning_rate": rate}, self.graph.path), optimizer)
        for weight, gradient, _ in updates:
            same = draft.view(gradient, draft.shape(weight))
            builder.update(optimizer, {weight: options}, {weight: same})
        draft.without_unused(gradients.values())
        tensors = builder.tensors
        whole = TrainingGraph(
            name=model_name(self.graph.name),
            tensors=tensors,
            ops=tuple(builder.ops),
            inputs=tuple(draft.names[name] for name in self.data[:-1]),
            labels=(draft.names[self.data[-1]],),
            outputs=tuple(op["y"] for op in builder.ops if op.step == "LOSS"),
            losses=("loss",),
            weights=builder.of_kind("weight"),
            gradients=dict(gradients),
        )
        if not separate:
            return TrainingPhases(whole)
        updating = [op for op in builder.ops if op.step == "UPD"]
        mini = self._part(whole, forward, gradients.values(), ("input", "label"))
        update = replace(self._part(whole, updating), labels=(), losses=(), outputs=(), gradients={})
        kept = {name: update.tensors[name] for name in sorted(update.of_kind(*KEPT_KINDS))}
        return TrainingPhases(replace(mini, tensors={**kept, **mini.tensors}), 1, update)

    def _part(
        self, graph: TrainingGraph, ops: Sequence[Op], named: Iterable[str] = (), kinds: Sequence[str] = ()
    ) -> TrainingGraph:
        """Some ops of a graph with the tensors they touch, and what else `TrainingDraft.touched` keeps."""
        tensors = self.draft.touched(ops, named, kinds)
        weights = tuple(name for name in graph.weights if name in tensors)
        return replace(graph, tensors=tensors, ops=tuple(ops), weights=weights)


def _weight_of(total: str) -> str:
    return total.removesuffix(BUFFER)


def _rate(item: TrainingNode) -> float | None:
    """The learning rate that an update says, if it does."""
    return item.number("lr", 0.0) if item.has("lr") else None


def _site(node: OnnxNode) -> str:
    """The name of a node as that of a layer."""
    kept = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in node.name)
    return kept.strip("_") or kind_of(node)

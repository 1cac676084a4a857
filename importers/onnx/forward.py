# SPDX-License-Identifier: Apache-2.0
"""A forward ONNX graph as a model of ours: layers, where they start, loss and optimizer as asked for.

Every node is read once, in order: constants are followed to the weights they are made of, activations are
views of what our layers store (`importers.graph.views`). What cannot be read is collected, and refused all
at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.errors import InputError, UnsupportedLayerError
from configs.model_file import LossSpec, ModelSpec, OptimizerSpec
from configs.values import replace
from importers.graph.arranging import Site, as_seen
from importers.graph.draft import CHECKED, NO_FORM, CannotTakeError, Draft, model_name
from importers.graph.node import Handler, Node, Unknown, problem_of
from importers.graph.onnx_folding import computed
from importers.graph.onnx_fusion import fused
from importers.graph.onnx_graph import OnnxGraph, OnnxNode
from importers.graph.terms import Terms
from importers.graph.views import BATCH, View
from importers.graph.weights import Constant, Given, WeightNumbers
from importers.onnx import elements, layers, moves
from importers.onnx.losses import LOSSES, handlers
from importers.ops import NEAREST_ONNX
from importers.place.losses import default_loss, losses_of
from trainlib.ir.steps import Array

HANDLERS: Mapping[str, Handler] = {**elements.HANDLERS, **layers.HANDLERS, **moves.HANDLERS}
"""By op, private ones behind their domain."""

MOVES = {
    *("Concat", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze"),
    *("Transpose", "Unsqueeze", "com.microsoft:ConcatTraining"),
}
"""Ops that only move elements about: what they make of a weight is still that weight."""


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model of somebody else's as one of ours: `values` are the starts of its weights and buffers.

    `sources` says from which tensor of theirs one of ours is, and where each element lies there; `places`
    counts them over all weights of the file. `nodes` counts the nodes of the file. `feeds` names their input
    for each input and label of ours, `loss` their output that is a loss, if one is. `batch_dim` is the
    dimension of their input that counts samples; None if it is one sample.
    """

    spec: ModelSpec
    values: Mapping[str, Array]
    sources: Mapping[str, Given]
    nodes: int
    places: WeightNumbers
    feeds: Mapping[str, str]
    loss: str = ""
    batch_dim: int | None = 0

    def sample(self, array: Array) -> Array:
        """An input of theirs as ours: the batch first, and something behind it."""
        if self.batch_dim is None:
            return array[np.newaxis]
        return np.moveaxis(array, self.batch_dim, 0) if array.ndim > 1 else array.reshape(-1, 1)

    def theirs(self, values: Mapping[str, Array], start: Mapping[str, Array]) -> dict[str, Array]:
        """Weights of ours under their names and in their shapes; `start` are theirs before training."""
        weights = {name: array.copy() for name, array in start.items()}
        for tensor, given in self.sources.items():
            if tensor in values and given.source in weights and given.places is not None:
                flat = weights[given.source].reshape(-1)
                flat[given.places.reshape(-1)] = values[tensor].reshape(-1)
        return weights


def import_forward(
    graph: OnnxGraph,
    *,
    loss: LossSpec | None = None,
    optimizer: OptimizerSpec | None = None,
    trained: Collection[str] | None = None,
    classes: int = 0,
) -> ImportedModel:
    """A forward graph as a model: cross-entropy (hard labels) of a vector of logits, else mse; SGD at 0.01.

    Of several outputs each has that loss. A graph that ends in a loss is trained on it: `loss` is None then.
    `trained` names the weights that are trained, all of floats if it is None; `classes` bounds inputs of
    integers. Raises UnsupportedLayerError that lists every node that cannot be taken: its name, op, shape,
    the reason and the nearest form that can; InputError for a graph without input or output.
    """
    if not graph.inputs or not graph.outputs:
        raise InputError(
            f"the graph has the inputs {', '.join(graph.inputs) or 'none'} and the outputs "
            f"{', '.join(graph.outputs) or 'none'}",
            where=graph.path,
            cure="use a network with at least one input and one output",
        )
    batches = {name: graph.tensor(name).shape or ("?",) for name in graph.inputs}
    if len({str(shape[:1]) for shape in batches.values()}) > 1:
        text = ", ".join(f"{name} {shape[0] if shape else 'none'}" for name, shape in batches.items())
        raise InputError(
            f"the inputs of the graph have different batch sizes: {text}",
            where=graph.path,
            cure="use the same first dimension for all inputs; store weights as initializers, not as inputs",
        )
    problems: list[InputError] = []
    for batch_dim in _batch_dims(graph, trains=trained is None or bool(trained)):
        reader = ForwardReader(graph, trained, batch_dim)
        try:
            losses = reader.read(loss)
        except InputError as error:
            problems.append(error)
        else:
            return reader.model(losses, optimizer, classes)
    raise min(problems, key=lambda error: isinstance(error, UnsupportedLayerError))


def _batch_dims(graph: OnnxGraph, *, trains: bool) -> Iterator[int | None]:
    """Where the batch may be: first; second if a recurrent layer, which has the time first, may read it.

    Where nothing trains all may be one sample (None): only gradients are means over a batch.
    """
    yield 0
    recurrent = any(node.op in ("GRU", "LSTM", "RNN") for node in graph.nodes)
    shape = graph.tensor(graph.inputs[0]).shape or ()
    if recurrent and len(shape) == 3 and len(graph.inputs) == 1:
        yield 1
    if not trains:
        yield None


class ForwardReader:
    """Reads the nodes of one graph in order into a draft.

    `known` has what each tensor of the file is (a view, a constant, nothing that can be said), `origin` the
    node that each layer was made for, `feeds` their input for each input and label of ours, `loss` their
    output that is a loss.
    """

    def __init__(
        self, graph: OnnxGraph, trained: Collection[str] | None = None, batch_dim: int | None = 0
    ) -> None:
        self.graph = fused(graph)
        self.nodes = len(graph.nodes) + len(graph.folded)
        self.batch_dim = batch_dim
        weights = {name: graph.initializers[name] for name in graph.trainable}
        self.places = WeightNumbers.of({name: value.shape for name, value in weights.items()})
        self.apart = frozenset[str]()
        """Weights that layers cut and turn."""
        self.readers = self.graph.readers
        ends = any(node.op in LOSSES for node in graph.nodes) or any(
            graph.tensor(name).shape == () for name in graph.outputs
        )
        trains = bool(graph.trainable) and (trained is None or bool(trained))
        self.handlers = handlers(HANDLERS) if ends and trains else HANDLERS
        self._constants: dict[str, Any] = {
            name: Constant(value) for name, value in (*graph.initializers.items(), *graph.folded.items())
        }
        for name, value in weights.items():
            # A number alone is a constant that an exporter has put there, unless somebody says otherwise.
            asked = value.ndim > 0 if trained is None else name in trained
            self._constants[name] = Constant(value, self.places.places(name), asked)
        self._begin()

    def _begin(self) -> None:
        self.draft = Draft(self.graph.path, weights=self.places)
        self.origin: dict[str, OnnxNode] = {}
        self.feeds: dict[str, str] = {}
        self.loss = ""
        self.known = dict(self._constants)

    def read(self, loss: LossSpec | None) -> list[LossSpec]:
        """The losses of what the draft ends in. Raises UnsupportedLayerError, InputError."""
        self.read_nodes()
        while parts := self.draft.share_weights() - self.apart:
            self.apart |= parts
            self._begin()
            self.read_nodes()
        self.draft.refuse_problems(len(self.graph.nodes))
        losses = self._losses(loss)
        read = {word for layer in self.draft.layers for word in layer.inputs or ()}
        read |= {word for item in losses for word in (item.of, item.target) if word is not None}
        self.draft.inputs = [word for word in self.draft.inputs if word in read]
        return losses

    def model(
        self, losses: Sequence[LossSpec], optimizer: OptimizerSpec | None, classes: int
    ) -> ImportedModel:
        """What has been read, with these losses."""
        draft, path = self.draft, self.graph.path
        spec = draft.model(
            model_name(self.graph.name),
            losses,
            optimizer or OptimizerSpec("sgd", {"learning_rate": 0.01}, path),
            lambda word: classes or draft.smallest_table(word) or 2,
            description=f"imported from {path}",
            source=path,
        )
        fed = {*draft.inputs, *(str(item.label) for item in losses if not item.target)}
        feeds = {ours: theirs for ours, theirs in self.feeds.items() if ours in fed}
        made = dict(draft.values), dict(draft.sources), self.nodes, self.places, feeds, self.loss
        return ImportedModel(spec, *made, self.batch_dim)

    def read_nodes(self) -> None:
        """All nodes; what cannot be read of them is a problem of the draft. Raises InputError."""
        for name in sorted(self.graph.inputs, key=self._is_label):
            self.known[name] = self._input(name)
        for name in self.apart:
            weight = self.known[name]
            self.known[name] = Constant.of(self.draft.one_sample(weight, name), weight.value)
        for node in self.graph.nodes:
            before = len(self.draft.layers)
            results = self._node(node)
            self.origin |= {layer.name: node for layer in self.draft.layers[before:]}
            results = results if isinstance(results, list) else [results]
            for index, name in enumerate(node.outputs):
                self.known[name] = results[index] if index < len(results) else Unknown()

    def _is_label(self, name: str) -> bool:
        """Whether only losses read an input, as what they compare with."""
        return all(node.op in LOSSES and node.input(1) == name for node in self.readers.get(name, ()))

    def _losses(self, loss: LossSpec | None) -> list[LossSpec]:
        terms = [name for name in self.graph.outputs if isinstance(self.known[name], Terms)]
        if len(terms) > 1 or (terms and loss is not None):
            what, cure = "in several losses", "use one output: the sum of the losses"
            if len(terms) == 1:
                what, cure = (
                    "in a loss already, so --loss cannot be used",
                    "remove --loss, or export the graph without its loss",
                )
            raise self._wrong(f"the graph ends {what}: {', '.join(map(repr, terms))}", cure)
        if terms:
            (self.loss,) = terms
            losses, labels = losses_of(self.draft, self.known[self.loss], self._end, self._stored)
            self.feeds |= {name: self.feeds[word] for word, name in labels.items()}
            return losses
        if len(self.graph.outputs) == 1:
            return [self._of_output(self.output(), loss)]
        words = [self._end(self._activation(name)) for name in self.graph.outputs]
        self.draft.without_unused(*words)
        return [replace(self._of_output(word, loss), of=word, label=None, target=None) for word in words]

    def _of_output(self, word: str, loss: LossSpec | None) -> LossSpec:
        return loss or default_loss(self.draft.tensors[word].shape)

    def _wrong(
        self, reason: str, cure: str = "use a graph that computes its output from an input"
    ) -> InputError:
        return InputError(reason, where=self.graph.path, cure=cure)

    def output(self) -> str:
        """The word of the output, that of the last layer of a draft that keeps nothing else.

        Raises InputError.
        """
        word = self._end(self._activation(self.graph.outputs[0]))
        if "." in word:
            raise self._wrong("the last node has several outputs", "end the graph in a node with one output")
        self.draft.without_unused(word)
        last = next(layer for layer in self.draft.layers if layer.name == word)
        self.draft.layers.remove(last)
        self.draft.layers.append(last)
        return word

    def _activation(self, name: str) -> View:
        output = self.known[name]
        if not isinstance(output, View):
            raise self._wrong(f"output '{name}' does not depend on an input")
        return output

    def _end(self, output: View) -> str:
        """The word of an output, which a layer makes."""
        word = self._stored(output)
        if word in self.draft.inputs:
            raise self._wrong("the graph has no layer")
        return word

    def _stored(self, output: View) -> str:
        """The word of a tensor stored batch first."""
        if not output.batch_leads:
            raise self._wrong("the batch is not the first dimension of the output", "add a Transpose")
        try:
            return as_seen(Site(self.draft, "output", self.graph.path), output)
        except CannotTakeError as error:
            raise self._wrong(f"the output: {error.reason}") from None

    def _input(self, name: str) -> View:
        tensor = self.graph.tensor(name)
        several = len(self.graph.inputs) > 1
        if not tensor.is_static or min(tensor.sizes, default=0) < 1:
            cure = "use --input SIZES, batch first, e.g. --input 1,3,32,32"
            raise self._wrong(f"input '{name}' has the shape {tensor.shape_text}", cure)
        sizes, at = tensor.sizes, self.batch_dim
        if at is None:
            stored = (1, *(sizes or (1,)))
        else:
            sizes = sizes if len(sizes) > 1 else (*sizes, 1)
            stored = (sizes[at], *sizes[:at], *sizes[at + 1 :])
        dtype = tensor.dtype or "float32"
        floats = dtype in ("float16", "float32", "float64", "bfloat16")
        word = self.draft.free_name(name) if several else "input"
        self.draft.inputs.append(word)
        self.feeds[word] = name
        view = self.draft.feed(word, stored, "float32" if floats else "int32")
        dims = list(view.dims[1:])
        if at is not None:
            dims.insert(at, (BATCH,))
        return replace(view, dims=tuple(dims[: len(tensor.sizes)]))

    def _node(self, node: OnnxNode) -> Any:
        arguments = [self.known.get(name) if name else None for name in node.inputs]
        if any(isinstance(item, Unknown) for item in arguments):
            return Unknown()
        try:
            if not any(isinstance(item, (View, Terms)) for item in arguments):
                return self._constant(node, arguments)
            results = self._handler(node)(self._read(node, arguments))
            self._check(node, results)
            return results
        except CannotTakeError as error:
            self.draft.problems.append(problem_of(self.graph, node, error))
        return Unknown()

    def _handler(self, node: OnnxNode) -> Handler:
        if node.op not in self.handlers:
            raise CannotTakeError("pulptrain has no layer for this op", NEAREST_ONNX.get(node.op, NO_FORM))
        return self.handlers[node.op]

    def _read(self, node: OnnxNode, arguments: Sequence[Any]) -> Node:
        """The node as a handler sees it: inputs by number, attributes by name."""
        given: dict[Any, Any] = dict(node.attributes)
        given |= {index: item for index, item in enumerate(arguments) if item is not None}
        outputs = [self.graph.tensor(name) for name in node.outputs]
        return Node(
            self.draft,
            self._layer_name(node),
            self.graph.path,
            node.op,
            given,
            tuple(item.sizes if item.is_static else None for item in outputs),
            frozenset(
                index
                for index, name in enumerate(node.outputs)
                if name and (name in self.readers or name in self.graph.outputs)
            ),
            self.graph.opset,
        )

    def _check(self, node: OnnxNode, results: Any) -> None:
        """What a handler has made must have the shape that the file and onnx's inference say."""
        first = results[0] if isinstance(results, list) else results
        said = self.graph.tensor(node.outputs[0]) if node.outputs else None
        if isinstance(first, View) and said is not None and said.is_static and first.shape != said.sizes:
            raise CannotTakeError(
                f"the node computes shape {list(first.shape)}, but the file declares {said.shape_text}",
                "remove the declared shape: onnx.shape_inference finds the right one",
            )

    def _layer_name(self, node: OnnxNode) -> str:
        """That of the node; of a long path the end, which says most."""
        return node.name.strip("/").replace("/", "_").replace(".", "_") or node.op.rpartition(":")[2]

    def _constant(self, node: OnnxNode, arguments: Sequence[Any]) -> Any:
        """A node that reads no activation, computed; elements that only move stay those of their weight."""
        constants = [item for item in arguments if isinstance(item, Constant)]
        results = computed(node, [item.value if item else None for item in arguments], self.graph.opset)
        if results is None:
            raise CannotTakeError("an unsupported op computes a constant", "store the result as initializer")
        if not any(item.trained for item in constants):
            return [Constant(results[name]) if name else None for name in node.outputs]
        # Others than floats are indices and shapes.
        mixed = any(not item.trained and np.issubdtype(item.value.dtype, np.floating) for item in constants)
        if node.op not in MOVES or mixed or any(item.made is not None for item in constants):
            return self._computed(node, arguments, results)

        def places(item: Any) -> Array | None:
            if not isinstance(item, Constant):
                return None
            return item.places if item.places is not None else item.value

        moved = computed(node, [places(item) for item in arguments], self.graph.opset)
        if moved is None:  # in a file whose types are wrong
            raise CannotTakeError("rearranging a weight: an input has the wrong type", CHECKED)
        if node.op == "Gather" and any(np.unique(item).size < item.size for item in moved.values()):
            return self._computed(node, arguments, results)  # rows of a table
        return [Constant(results[name], moved[name], True) if name else None for name in node.outputs]

    def _computed(self, node: OnnxNode, arguments: Sequence[Any], results: Mapping[str, Array]) -> Any:
        """Arithmetic on trained weights: layers of one sample, which start with the numbers `results`."""
        handler = self._handler(node)
        views = [
            item
            if item is None or not item.trained or node.op == "Gather"
            else self.draft.one_sample(item, f"{node.name}_weight")
            for item in arguments
        ]
        made = handler(replace(self._read(node, views), held=dict(enumerate(arguments))))
        several = made if isinstance(made, list) else [made]
        return [
            Constant.of(part, results[name]) if isinstance(part, View) else part
            for part, name in zip(several, node.outputs, strict=False)
        ]

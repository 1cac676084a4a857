# SPDX-License-Identifier: Apache-2.0
"""An ONNX file that is a chain of layers, as layers for BARVINN, with what can be folded into them.

What a node is, is decided where models are read (`importers.onnx.forward`). Batch norm, biases, products and
sums with constants go into gain and offset of the layer before, ReLU into its comparator; max-pool is a layer
of its own; Flatten and what else moves no number is seen through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from barvinn.mapping.layers import LayerShape
from barvinn.mapping.network import RealLayer, Reals
from configs.errors import InputError, ShapeError, UnsupportedLayerError
from configs.model_file import LayerSpec
from configs.values import replace
from importers.graph.draft import CHECKED, CannotTakeError
from importers.graph.onnx_graph import OnnxGraph, OnnxNode
from importers.graph.weights import Constant
from importers.onnx.forward import ForwardReader
from importers.place.convolution import each


def read_network(graph: OnnxGraph, input_shape: Sequence[int] | None = None) -> list[RealLayer]:
    """The layers of a graph that is one chain, for an input of batch 1.

    `input_shape` (without batch) has to be what the file says. Raises `InputError` naming the node for a
    branch or residual, an op that is not supported, a group convolution, a batch, a shape that is not fixed.
    """
    return _Chain(ForwardReader(graph, trained=()), input_map(graph, input_shape)).layers()


def input_map(graph: OnnxGraph, input_shape: Sequence[int] | None) -> tuple[int, int, int]:
    """Channels, rows and columns of the input; a vector is one pixel. Raises `InputError`."""
    if len(graph.inputs) != 1:
        names = ", ".join(graph.inputs) or "none"
        raise InputError(
            f"the model has {len(graph.inputs)} inputs ({names}), but must have one",
            where=graph.path,
            cure="use a model with one input",
        )
    name = graph.inputs[0]
    where = f"{graph.path}: input '{name}'"
    tensor = graph.tensor(name)
    if not tensor.is_static:
        raise ShapeError(
            f"the shape {tensor.shape_text} of the input is not fixed",
            where=where,
            cure="export the model with fixed sizes",
        )
    batch, *sizes = tensor.sizes
    given = list(input_shape or sizes)
    if len(given) == len(sizes) + 1 and given[0] == 1:
        given = given[1:]
    if given != sizes:
        cure = f"use --input {','.join(map(str, sizes))}"
        raise ShapeError(
            f"the file has input sizes {sizes}, but --input specifies {given}", where=where, cure=cure
        )
    if len(sizes) == 2 and batch == 1:
        # [1, M, K]: M vectors, one below the other
        return (sizes[1], sizes[0], 1)
    if len(sizes) == 1:
        return (sizes[0], batch, 1)
    if batch != 1:
        raise ShapeError(
            f"the batch size is {batch}, but must be 1",
            where=where,
            cure="export the model with a batch size of 1",
        )
    if len(sizes) != 3:
        raise ShapeError(
            f"the input has the unsupported shape {tensor.shape_text}",
            where=where,
            cure="use an input of shape 1,C,H,W or 1,C",
        )
    return (sizes[0], sizes[1], sizes[2])


def _check_chained(reader: ForwardReader) -> None:
    """Raise `UnsupportedLayerError` for two results of a node, two nodes of a result, one not read."""
    graph, problems = reader.graph, {problem.name: problem for problem in reader.draft.problems}
    for node in graph.nodes:
        read = [name for name in node.inputs if name and not isinstance(reader.known[name], Constant)]
        others = [f"'{user.name}'" for name in read for user in reader.readers[name] if user is not node]
        others += ["the output of the graph" for name in read if name in graph.outputs]
        cure = "use a network without residual connections, where each result is read once"
        if len(read) > 1:
            both = f"{read[0]!r} twice" if read[0] == read[1] else f"{read[0]!r} and {read[1]!r}"
            reason = f"{node.op} reads {both}, but all inputs except one must be constants: residual "
            reason += "connections and products of activations are not supported"
        elif others:
            reason = (
                f"{read[0]!r} is also read by {', '.join(others)}; residual connections are not supported"
            )
        elif node.name in problems:
            reason, cure = problems[node.name].reason, problems[node.name].nearest
        else:
            continue
        raise UnsupportedLayerError(reason, where=_where(graph, node), cure=cure)


def _where(graph: OnnxGraph, node: OnnxNode) -> str:
    return f"{graph.path}: node '{node.name}' ({node.op})"


class _Chain:
    """Walks the layers of a draft. One result goes on: its map [c, h, w], whether it has become a row.

    The last of the layers read may still take an affine step or a ReLU.
    """

    def __init__(self, reader: ForwardReader, sizes: tuple[int, int, int]) -> None:
        self._reader, self._draft, self._graph = reader, reader.draft, reader.graph
        self._map = sizes
        self._is_row = len(self._graph.tensor(self._graph.inputs[0]).sizes) < 4
        self._constants: dict[str, Reals] = {}
        self._layers: list[RealLayer] = []
        self._open = False
        self._node = OnnxNode("", "", (), ())

    def layers(self) -> list[RealLayer]:
        """All layers, in order."""
        self._reader.read_nodes()
        _check_chained(self._reader)
        self._reader.output()
        for layer in self._draft.layers:
            self._node = self._reader.origin.get(layer.name, self._node)
            where = _where(self._graph, self._node)
            try:
                self._step(layer)
            except CannotTakeError as error:
                raise UnsupportedLayerError(error.reason, where=where, cure=error.nearest) from None
            except ShapeError as error:
                raise UnsupportedLayerError(error.message, where=where, cure=error.cure or CHECKED) from None
        if not any(layer.shape.kind != "pool" for layer in self._layers):
            raise UnsupportedLayerError(
                "the model has no Conv, Gemm or MatMul, so there is no layer to map", where=self._graph.path
            )
        return self._layers

    def _step(self, layer: LayerSpec) -> None:
        if layer.type not in STEPS:
            raise CannotTakeError(f"BARVINN does not support op {self._node.op}", f"use one of {OPS}")
        STEPS[layer.type](self, layer)

    def _values(self, layer: LayerSpec, role: str, default: float = 0.0) -> Reals:
        start = self._draft.start(layer.name, role)
        return np.asarray(default if start is None else start, np.float64)

    def _convolution(self, layer: LayerSpec) -> None:
        weights = self._values(layer, "w")
        if layer.type == "depthwise" or layer.attributes.get("groups", 1) != 1:
            groups = layer.attributes.get("groups", len(weights))
            raise CannotTakeError(
                f"a convolution with {groups} groups is not supported", "use a convolution with group = 1"
            )
        kernel = (*weights.shape[2:], 1, 1)[:2]
        self._add(layer, "conv", weights.reshape(*weights.shape[:2], *kernel), **_window(layer, stride=1))

    def _linear(self, layer: LayerSpec) -> None:
        """A matrix [co, inputs]: a kernel that covers the whole map, or one pixel below the other."""
        matrix, (channels, rows, columns) = self._values(layer, "w"), self._map
        kernel = (1, 1) if matrix.shape[1] == channels and columns == 1 else (rows, columns)
        self._add(layer, "matmul", matrix.reshape(len(matrix), channels, *kernel))

    def _pool(self, layer: LayerSpec) -> None:
        kernel = tuple(each(layer.attributes["kernel"], 2))
        weights = np.zeros((0, 0, 0, 0))
        self._add(layer, "pool", weights, kernel=kernel, **_window(layer, stride=layer.attributes["kernel"]))
        self._layers[-1] = replace(self._layers[-1], relu=True)
        self._open = False

    def _add(self, layer: LayerSpec, kind: Any, weights: Reals, **sizes: Any) -> None:
        is_pool = kind == "pool"
        outputs = self._map[0] if is_pool else len(weights)
        name, parameter = self._node.name, "" if is_pool else self._node.input(1)
        # That of its weights, as the public tool has it, if it is one of PyTorch's.
        stem, dot, role = parameter.rpartition(".")
        if dot and role == "weight" and stem and all(stem != made.shape.name for made in self._layers):
            name = stem
        shape = LayerShape(
            name, kind, *self._map, outputs, parameter=parameter, **{"kernel": weights.shape[2:], **sizes}
        )
        shape.check()
        offset = np.broadcast_to(self._values(layer, "b"), outputs).astype(np.float64)
        where = _where(self._graph, self._node)
        self._layers.append(RealLayer(shape, weights, np.ones(outputs), offset, relu=False, where=where))
        self._open = True
        self._map = (outputs, shape.ho, shape.wo)

    def _norm(self, layer: LayerSpec) -> None:
        w, b, mean, variance = (
            self._values(layer, role, default)
            for role, default in (("w", 1), ("b", 0), ("running_mean", 0), ("running_var", 1))
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            # What is not finite is refused where the layer is quantised; the published table needs no gain.
            gain = w / np.sqrt(variance + layer.attributes.get("eps", 1e-5))
        self._affine(gain, b - mean * gain)

    def _sum(self, layer: LayerSpec) -> None:
        self._affine(1.0, self._constant(layer))

    def _product(self, layer: LayerSpec) -> None:
        self._affine(self._constant(layer), 0.0)

    def _difference(self, layer: LayerSpec) -> None:
        first = layer.inputs is not None and layer.inputs[0] in self._constants
        sign = -1.0 if first else 1.0
        self._affine(sign, -sign * self._constant(layer))

    def _constant(self, layer: LayerSpec) -> Reals:
        """The constant that a layer holds, or the one that it reads."""
        held = self._draft.start(layer.name, "w")
        if held is not None:
            return np.asarray(held, np.float64)
        (word,) = (word for word in layer.inputs or () if word in self._constants)
        return self._constants[word]

    def _affine(self, gain: Reals | float, offset: Reals | float) -> None:
        """y = gain · x + offset, of the last layer's result."""
        if not self._open:
            reason = f"{self._node.op} must follow a Conv, Gemm or MatMul directly, to be merged with it"
            raise CannotTakeError(reason, "move the node directly after a Conv, Gemm or MatMul")
        last = self._layers[-1]
        factor, summand = (self._channels(np.asarray(each), last.shape.co) for each in (gain, offset))
        self._layers[-1] = replace(last, gain=last.gain * factor, offset=last.offset * factor + summand)

    def _channels(self, values: Reals, channels: int) -> Reals:
        """One number per output channel of a constant that is broadcast to the result."""
        if values.size == 1 or values.shape == (channels,):
            return np.broadcast_to(values.ravel(), channels)
        axis = values.ndim - (1 if self._is_row else 3)
        if not 0 <= axis < values.ndim or not values.shape[axis] == channels == values.size:
            raise CannotTakeError(
                f"the constant has shape {list(values.shape)}, which is not supported",
                f"use a constant with 1 element, or {channels} (one per output channel)",
            )
        return values.ravel()

    def _relu(self, layer: LayerSpec) -> None:
        # The largest of a window is limited as its pixels are.
        at = next((at for at, made in enumerate(self._layers[::-1]) if made.shape.kind != "pool"), None)
        if at is None:
            raise CannotTakeError(
                "a ReLU before the first layer is not supported", "remove it: inputs are not negative"
            )
        self._layers[-1 - at] = replace(self._layers[-1 - at], relu=True)
        self._open = False

    def _row(self, layer: LayerSpec) -> None:
        """All values of the one sample in a row."""
        channels, rows, columns = self._map
        made = self._draft.tensors[layer.name].shape
        if self._is_row and columns == 1 and made[-1] == channels:
            return
        if made != (1, channels * rows * columns):
            whole = [1, channels * rows * columns]
            raise CannotTakeError(
                f"{layer.name!r} reshapes {[1, *self._map]} to {list(made)}, but must reshape to {whole}",
                "use Flatten instead of that node",
            )
        self._is_row = True
        self._open = False

    def _hold(self, layer: LayerSpec) -> None:
        """A constant; what repeats it to the shape of an activation says nothing more."""
        self._constants[layer.name] = self._constant(layer)


def _window(layer: LayerSpec, stride: Any) -> dict[str, tuple[int, ...]]:
    """The window of a layer, whose options name what is not as it is left out."""
    sides = each(layer.attributes.get("padding", 0), 4)
    return {
        "strides": tuple(each(layer.attributes.get("stride", stride), 2)),
        "pads": (*sides[::2], *sides[1::2]),
        "dilations": tuple(each(layer.attributes.get("dilation", 1), 2)),
    }


STEPS: dict[str, Callable[[_Chain, LayerSpec], None]] = {
    **dict.fromkeys(("conv2d", "pointwise", "depthwise"), _Chain._convolution),
    "linear": _Chain._linear,
    "batch_norm": _Chain._norm,
    "relu": _Chain._relu,
    "max_pool2d": _Chain._pool,
    "scale": lambda chain, layer: chain._affine(layer.attributes["factor"], 0.0),
    "shift": lambda chain, layer: chain._affine(1.0, layer.attributes["offset"]),
    **dict.fromkeys(("add", "broadcast_add", "position"), _Chain._sum),
    "multiply": _Chain._product,
    "subtract": _Chain._difference,
    **dict.fromkeys(("flatten", "reshape"), _Chain._row),
    **dict.fromkeys(("parameter", "expand"), _Chain._hold),
}
"""Layers that a chain may have."""

OPS = "Conv, Gemm, MatMul, BatchNormalization, Relu, MaxPool, Add, Sub, Mul, Div, Flatten, Reshape"
"""What they are in ONNX."""

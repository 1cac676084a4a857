# SPDX-License-Identifier: Apache-2.0
"""A chain of ONNX nodes as layers for BARVINN: Conv, Gemm, MatMul, with what can be folded into them.

Batch norm, biases, Mul and Add by constants go into gain and offset of the layer before; ReLU into its
comparator; max-pool is a layer of its own; Flatten, Reshape to a row, Identity, Dropout are seen through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from barvinn.mapping.layers import Kind, LayerShape
from barvinn.mapping.network import RealLayer, Reals
from configs.errors import InputError, ShapeError, UnsupportedLayerError
from importers.graph.draft import CannotTakeError
from importers.graph.node import FileNode
from importers.graph.onnx_graph import OnnxGraph, OnnxNode
from importers.onnx.layers import window_of
from importers.place.convolution import Window

CURE = "correct the model; onnx.checker.check_model finds much of this"


def read_network(graph: OnnxGraph, input_shape: Sequence[int] | None = None) -> list[RealLayer]:
    """The layers of a graph that is one chain, for an input of batch 1.

    `input_shape` (without batch) has to be what the file says. Raises `InputError` naming the node for a
    branch or residual, an op that is not supported, a group convolution, a batch, a shape that is not fixed.
    """
    return _Reader(graph, input_shape).layers()


def input_map(graph: OnnxGraph, input_shape: Sequence[int] | None) -> tuple[int, int, int]:
    """Channels, rows and columns of the input; a vector is one pixel. Raises `InputError`."""
    if len(graph.inputs) != 1:
        names = ", ".join(graph.inputs) or "none"
        raise InputError(f"has the inputs {names}", where=graph.path, cure="a model with one input")
    name = graph.inputs[0]
    where = f"{graph.path}: input '{name}'"
    tensor = graph.tensor(name)
    if not tensor.is_static:
        raise ShapeError(
            f"the shape {tensor.shape_text} is not fixed: jobs are made for one size",
            where=where,
            cure="export the model with fixed sizes",
        )
    batch, *sizes = tensor.sizes
    given = list(input_shape or sizes)
    if len(given) == len(sizes) + 1 and given[0] == 1:
        given = given[1:]
    if given != sizes:
        cure = f"--input {','.join(map(str, sizes))}"
        raise ShapeError(f"the file says {sizes}, --input says {given}", where=where, cure=cure)
    if len(sizes) == 2 and batch == 1:
        # [1, M, K]: M vectors, one below the other
        return (sizes[1], sizes[0], 1)
    if len(sizes) == 1:
        return (sizes[0], batch, 1)
    if batch != 1:
        raise ShapeError(f"a batch of {batch}", where=where, cure="export it with a batch of 1")
    if len(sizes) != 3:
        raise ShapeError(f"an input of shape {tensor.shape_text}", where=where, cure="1, C, H, W or 1, C")
    return (sizes[0], sizes[1], sizes[2])


@dataclass(frozen=True, slots=True)
class _Link(FileNode):
    """A node of the chain, and the constants it reads."""

    node: OnnxNode
    graph: OnnxGraph
    writer: dict[str, OnnxNode]

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.graph.path}: node '{self.node.name}' ({self.node.op})"

    def is_constant(self, name: str) -> bool:
        """Whether a tensor does not depend on the input."""
        if self.graph.constant(name) is not None:
            return True
        node = self.writer.get(name)
        return node is not None and all(self.is_constant(each) for each in node.inputs if each)

    def values(self, index: int) -> Reals:
        """A constant input in float64; one that is stored as integers and a scale is multiplied out."""
        name = self.node.input(index)
        value = self.graph.constant(name)
        source = self.writer.get(name)
        if value is None and source is not None and source.op == "DequantizeLinear":
            value = _Link(source, self.graph, self.writer).dequantised()
        if value is None:
            raise CannotTakeError(f"the input '{name}' is no constant that is stored", "an initializer")
        if value.dtype.kind not in "fiub" and value.dtype.name != "bfloat16":
            raise CannotTakeError(f"the input '{name}' is of type {value.dtype}", "real numbers")
        return np.asarray(value, np.float64)

    def dequantised(self) -> Reals:
        """What a DequantizeLinear of constants makes."""
        values, scale, *zeros = (self.graph.constant(name) for name in (*self.node.inputs, "")[:3])
        if values is None or scale is None:
            raise CannotTakeError("is no product of stored integers and scales", "stored constants")
        zero = np.zeros_like(scale) if zeros[0] is None else zeros[0]
        axis = self.integer("axis", 1)
        shape = [-1 if at == axis % max(values.ndim, 1) else 1 for at in range(values.ndim)]
        if scale.size > 1 and -values.ndim <= axis < values.ndim:
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        try:
            made = (np.asarray(values, np.float64) - np.asarray(zero, np.float64)) * scale.astype(np.float64)
            return np.broadcast_to(made, values.shape)
        except ValueError as error:
            raise CannotTakeError(f"its scale does not fit: {error}", "one scale, or one per axis") from None

    def weights(self) -> Reals:
        """Its second input, which must be a constant of two axes or more."""
        name = self.node.input(1)
        if not self.is_constant(name):
            raise CannotTakeError(f"weights '{name}' that are no constant", "an initializer")
        values = self.values(1)
        if values.ndim < 2 or not values.size:
            raise CannotTakeError(f"weights of shape {list(values.shape)}", CURE)
        return values

    def bias(self, channels: int) -> Reals:
        """Its third input, a number per output; zeros where it is left out."""
        values = self.values(2) if self.has(2) else np.zeros(1)
        if values.size not in (1, channels):
            raise CannotTakeError(f"a bias of shape {list(values.shape)} for {channels} outputs", CURE)
        return np.broadcast_to(values.ravel(), channels).astype(np.float64)


class _Reader:
    """Walks the chain. One result goes on: its tensor, its map [c, h, w], whether it has become a row.

    The last of the layers read may still take an affine step or a ReLU.
    """

    def __init__(self, graph: OnnxGraph, input_shape: Sequence[int] | None) -> None:
        self._graph, self._readers, self._writer = graph, graph.readers, graph.writer
        self._map = input_map(graph, input_shape)
        self._tensor = graph.inputs[0]
        self._is_row = len(graph.tensor(self._tensor).sizes) < 4
        self._layers: list[RealLayer] = []
        self._open = False

    def layers(self) -> list[RealLayer]:
        """All layers, in order."""
        for node in self._graph.nodes:
            link = _Link(node, self._graph, self._writer)
            if all(link.is_constant(name) for name in node.inputs if name):
                continue
            try:
                self._step(link)
            except CannotTakeError as error:
                raise UnsupportedLayerError(error.reason, where=link.where, cure=error.nearest) from None
            except ShapeError as error:
                cure = error.cure or CURE
                raise UnsupportedLayerError(error.message, where=link.where, cure=cure) from None
        if not any(layer.shape.kind != "pool" for layer in self._layers):
            raise UnsupportedLayerError("has no Conv, Gemm or MatMul", where=self._graph.path)
        if self._tensor not in self._graph.outputs:
            raise UnsupportedLayerError(
                f"the chain ends in '{self._tensor}', which is no output of the model",
                where=self._graph.path,
                cure="a model with one output",
            )
        return self._layers

    def _step(self, link: _Link) -> None:
        node = link.node
        if node.op not in STEPS:
            raise CannotTakeError(f"op {node.op} is not supported", f"one of {', '.join(STEPS)}")
        changing = [name for name in node.inputs if name and not link.is_constant(name)]
        shortcuts = "a network without shortcuts (residual distillation trains one)"
        if len(changing) > 1:
            raise CannotTakeError(
                f"{node.op} reads the two results {changing[0]!r} and {changing[1]!r}: residual connections "
                "and products of activations are not supported",
                shortcuts,
            )
        if changing[0] != self._tensor:
            raise CannotTakeError(
                f"reads '{changing[0]}', not '{self._tensor}': the graph is no chain",
                "a network of one layer after the other",
            )
        users = self._readers.get(changing[0], [])
        if len(users) > 1 or (users and changing[0] in self._graph.outputs):
            others = ", ".join(f"'{user.name}'" for user in users if user.name != node.name) or "the caller"
            raise CannotTakeError(
                f"'{changing[0]}' is also read by {others}: residual connections are not supported", shortcuts
            )
        STEPS[node.op](self, link)
        self._tensor = node.output(0)

    def _conv(self, link: _Link) -> None:
        weights = link.weights()
        channels, rows, columns = self._map
        if weights.ndim != 4 or self._is_row:
            raise CannotTakeError(f"a convolution of {weights.ndim - 2} axes", "2-D convolutions")
        group = link.integer("group", 1)
        if group != 1:
            raise CannotTakeError(f"a convolution of {group} groups", "group = 1")
        if weights.shape[1] != channels:
            raise CannotTakeError(f"weights for {weights.shape[1]} channels, the map has {channels}", CURE)
        kernel = weights.shape[2:]
        if link.sizes("kernel_shape", kernel) != kernel:
            raise CannotTakeError(f"kernel_shape is not that of the weights, {list(kernel)}", CURE)
        found = window_of(link, (rows, columns), kernel)
        shape = self._shape(link, "conv", len(weights), found)
        self._add(link, shape, weights, link.bias(len(weights)))

    def _shape(self, link: _Link, kind: Kind, outputs: int, window: Window) -> LayerShape:
        if min(window.pads) < 0:
            raise CannotTakeError(f"pads {list(window.pads)}", "four pads of 0 or more")
        up, down, left, right = window.pads
        name, parameter = self._name(link), link.node.input(1)
        if kind == "pool":
            name, parameter = link.node.name, ""
        sizes: Any = (window.kernel, window.stride, (up, left, down, right), window.dilation, parameter)
        return LayerShape(name, kind, *self._map, outputs, *sizes)

    def _gemm(self, link: _Link) -> None:
        if link.integer("transA", 0):
            raise CannotTakeError("a transposed input (transA = 1)", "transA = 0")
        matrix = link.weights() if link.integer("transB", 0) else link.weights().T
        alpha, beta = (link.real(key, 1.0) for key in ("alpha", "beta"))
        self._product(link, matrix, beta * link.bias(len(matrix)), alpha)

    def _matmul(self, link: _Link) -> None:
        if link.is_constant(link.node.input(0)):
            raise CannotTakeError("the constant comes first", "input times weights")
        matrix = link.weights().T
        self._product(link, matrix, np.zeros(len(matrix)), 1.0)

    def _product(self, link: _Link, matrix: Reals, offset: Reals, gain: float) -> None:
        """A matrix [co, inputs]: a kernel that covers the whole map, or one pixel below the other."""
        channels, rows, columns = self._map
        if matrix.ndim != 2:
            raise CannotTakeError(f"weights of {matrix.ndim} axes", "a matrix")
        if not self._is_row:
            raise CannotTakeError("reads a map, not a vector", "Flatten before it")
        outputs, inputs = matrix.shape
        kernel = (1, 1) if inputs == channels and columns == 1 else (rows, columns)
        if inputs != channels * kernel[0] * kernel[1]:
            raise CannotTakeError(f"weights for {inputs} inputs, there are {channels * rows * columns}", CURE)
        parameter = link.node.input(1)
        shape = LayerShape(self._name(link), "matmul", *self._map, outputs, kernel, parameter=parameter)
        self._add(link, shape, matrix.reshape(outputs, channels, *kernel), offset, gain)

    def _norm(self, link: _Link) -> None:
        layer = self._foldable(link)
        values = [link.values(index) for index in (1, 2, 3, 4)]
        if any(each.shape != (layer.shape.co,) for each in values):
            raise CannotTakeError(f"parameters that are not of {layer.shape.co} channels", CURE)
        gamma, beta, mean, variance = values
        with np.errstate(invalid="ignore", divide="ignore"):
            # What is not finite is refused where the layer is quantised; the published table needs no gain.
            gain = gamma / np.sqrt(variance + link.real("epsilon", 1e-5))
        self._layers[-1] = replace(layer, gain=layer.gain * gain, offset=(layer.offset - mean) * gain + beta)

    def _affine(self, link: _Link) -> None:
        layer, op = self._foldable(link), link.node.op
        first = link.is_constant(link.node.input(0))
        values = self._channels(link.values(0 if first else 1), layer.shape.co)
        gain, offset = layer.gain, layer.offset
        if op == "Add":
            offset = offset + values
        elif op == "Sub":
            gain, offset = (-gain, values - offset) if first else (gain, offset - values)
        elif op == "Mul":
            gain, offset = gain * values, offset * values
        elif first or not values.all():
            raise CannotTakeError("a division by the result, or by zero", "a product with a constant")
        else:
            gain, offset = gain / values, offset / values
        self._layers[-1] = replace(layer, gain=gain, offset=offset)

    def _channels(self, values: Reals, channels: int) -> Reals:
        """One number per output channel of a constant that is broadcast to the result."""
        axis = values.ndim - (1 if self._is_row else 3)
        others = [size for at, size in enumerate(values.shape) if at != axis]
        if values.size == 1:
            return np.full(channels, values.ravel()[0])
        if not 0 <= axis < values.ndim or values.shape[axis] != channels or any(size != 1 for size in others):
            raise CannotTakeError(
                f"a constant of shape {list(values.shape)}", "one number, or one per output channel"
            )
        return values.ravel()

    def _foldable(self, link: _Link) -> RealLayer:
        if not self._open:
            reason = f"{link.node.op} does not follow a Conv, Gemm or MatMul directly"
            raise CannotTakeError(f"{reason}, so it cannot be folded into one", "put it before the ReLU")
        return self._layers[-1]

    def _relu(self, link: _Link) -> None:
        # The largest of a window is limited as its pixels are.
        at = next((at for at, layer in enumerate(self._layers[::-1]) if layer.shape.kind != "pool"), None)
        if at is None:
            raise CannotTakeError("a ReLU before any layer", "leave it out: the input is not negative")
        self._layers[-1 - at] = replace(self._layers[-1 - at], relu=True)
        self._open = False

    def _pool(self, link: _Link) -> None:
        kernel, node = link.sizes("kernel_shape"), link.node
        if len(kernel) != 2 or self._is_row:
            raise CannotTakeError("a pool that is not 2-D", "2-D max-pool")
        found = window_of(link, self._map[1:], kernel)
        if found.dilation != (1, 1):
            raise CannotTakeError(f"dilations {list(found.dilation)}", "dilations of 1")
        if node.output(1) and (node.output(1) in self._readers or node.output(1) in self._graph.outputs):
            raise CannotTakeError("the indices are used", "only the values of the pool")
        channels = self._map[0]
        shape = self._shape(link, "pool", channels, found)
        shape.check()
        expected = self._graph.tensor(node.output(0))
        if expected.is_static and expected.sizes[2:] != (shape.ho, shape.wo):
            raise CannotTakeError(
                f"ceil_mode = 1 makes a map of {expected.shape_text}", "ceil_mode = 0, or more padding"
            )
        self._add(link, shape, np.zeros((0, 0, 0, 0)), np.zeros(channels))
        self._layers[-1] = replace(self._layers[-1], relu=True)
        self._open = False

    def _row(self, link: _Link) -> None:
        """All values of the one sample in a row."""
        channels, rows, columns = self._map
        tensor = self._graph.tensor(link.node.output(0))
        if not tensor.is_static:
            raise CannotTakeError(f"the shape {tensor.shape_text} is not fixed", "fixed sizes")
        if self._is_row and columns == 1 and tensor.sizes[-1:] == (channels,):
            return
        if tensor.sizes != (1, channels * rows * columns):
            raise CannotTakeError(f"makes {tensor.shape_text} of {self._map}", "a row: [1, C*H*W]")
        self._is_row = True
        self._open = False

    def _pass(self, link: _Link) -> None:
        """Nothing: the numbers go on as they are."""

    def _add(self, link: _Link, shape: LayerShape, weights: Reals, offset: Reals, gain: float = 1.0) -> None:
        shape.check()
        gains = np.full(shape.co, gain)
        self._layers.append(RealLayer(shape, weights, gains, offset, relu=False, where=link.where))
        self._open = True
        self._map = (shape.co, shape.ho, shape.wo)

    def _name(self, link: _Link) -> str:
        """The name of a layer: that of its weights, as the public tool has it, if it is one of PyTorch's."""
        stem, dot, kind = link.node.input(1).rpartition(".")
        taken = {layer.shape.name for layer in self._layers}
        return stem if dot and kind == "weight" and stem and stem not in taken else link.node.name


STEPS: dict[str, Callable[[_Reader, _Link], None]] = {
    "Conv": _Reader._conv,
    "Gemm": _Reader._gemm,
    "MatMul": _Reader._matmul,
    "BatchNormalization": _Reader._norm,
    "Relu": _Reader._relu,
    "MaxPool": _Reader._pool,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _Reader._affine),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze"), _Reader._row),
    **dict.fromkeys(("Identity", "Dropout"), _Reader._pass),
}
"""Ops of ONNX that a chain may have."""

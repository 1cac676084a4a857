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

from configs.errors import InputError, PulptrainError, ShapeError, UnsupportedLayerError
from importers.graph.onnx_graph import OnnxGraph, OnnxNode
from scheduler.barvinn.layers import LayerShape
from scheduler.barvinn.network import RealLayer, Reals

SUPPORTED = (
    *("Conv", "Gemm", "MatMul", "BatchNormalization", "Relu", "MaxPool", "Add", "Sub", "Mul", "Div"),
    *("Flatten", "Reshape", "Squeeze", "Identity", "Dropout"),
)
"""Ops of ONNX that a chain may have."""

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
        raise ShapeError(
            f"the file says {sizes}, --input says {given}", where=where, cure=f"--input {_commas(sizes)}"
        )
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


def _commas(sizes: Sequence[int]) -> str:
    return ",".join(map(str, sizes))


@dataclass(slots=True)
class _Flow:
    """The one result that goes on: its tensor, its map [c, h, w], and whether it has become a row."""

    tensor: str
    map: tuple[int, int, int]
    is_row: bool


class _Reader:
    """Walks the chain; the last of the layers read may still take an affine step or a ReLU."""

    def __init__(self, graph: OnnxGraph, input_shape: Sequence[int] | None) -> None:
        self._graph = graph
        self._readers = graph.readers
        self._writer = graph.writer
        shape = input_map(graph, input_shape)
        is_row = len(graph.tensor(graph.inputs[0]).sizes) < 4
        self._flow = _Flow(graph.inputs[0], shape, is_row)
        self._layers: list[RealLayer] = []
        self._open = False
        self._steps: dict[str, Callable[[OnnxNode], None]] = {
            "Conv": self._conv,
            "Gemm": self._gemm,
            "MatMul": self._matmul,
            "BatchNormalization": self._norm,
            "Relu": self._relu,
            "MaxPool": self._pool,
            **dict.fromkeys(("Add", "Sub", "Mul", "Div"), self._affine),
            **dict.fromkeys(("Flatten", "Reshape", "Squeeze"), self._row),
            **dict.fromkeys(("Identity", "Dropout"), lambda node: None),
        }

    def layers(self) -> list[RealLayer]:
        """All layers, in order."""
        for node in self._graph.nodes:
            if not all(self._is_constant(name) for name in node.inputs if name):
                self._step(node)
        if not any(layer.shape.kind != "pool" for layer in self._layers):
            raise UnsupportedLayerError("has no Conv, Gemm or MatMul", where=self._graph.path)
        if self._flow.tensor not in self._graph.outputs:
            raise UnsupportedLayerError(
                f"the chain ends in '{self._flow.tensor}', which is no output of the model",
                where=self._graph.path,
                cure="a model with one output",
            )
        return self._layers

    def _is_constant(self, name: str) -> bool:
        if self._graph.constant(name) is not None:
            return True
        node = self._writer.get(name)
        return node is not None and all(self._is_constant(each) for each in node.inputs if each)

    def _step(self, node: OnnxNode) -> None:
        if node.op not in self._steps:
            raise self._error(
                node,
                f"op {node.op} is not supported",
                f"one of {', '.join(SUPPORTED)}",
            )
        changing = [name for name in node.inputs if name and not self._is_constant(name)]
        if len(changing) > 1:
            raise self._error(
                node,
                f"{node.op} reads the two results {changing[0]!r} and {changing[1]!r}: residual connections "
                "and products of activations are not supported",
                "a network without shortcuts (residual distillation trains one)",
            )
        if changing[0] != self._flow.tensor:
            raise self._error(
                node,
                f"reads '{changing[0]}', not '{self._flow.tensor}': the graph is no chain",
                "a network of one layer after the other",
            )
        users = self._readers.get(changing[0], [])
        if len(users) > 1 or (users and changing[0] in self._graph.outputs):
            others = ", ".join(f"'{user.name}'" for user in users if user.name != node.name) or "the caller"
            raise self._error(
                node,
                f"'{changing[0]}' is also read by {others}: residual connections are not supported",
                "a network without shortcuts (residual distillation trains one)",
            )
        self._steps[node.op](node)
        self._flow.tensor = node.output(0)

    def _conv(self, node: OnnxNode) -> None:
        weights = self._weights(node, 1)
        channels, rows, columns = self._flow.map
        if weights.ndim != 4 or self._flow.is_row:
            raise self._error(node, f"a convolution of {weights.ndim - 2} axes", "2-D convolutions")
        group = node.attributes.get("group", 1)
        if group != 1:
            raise self._error(node, f"a convolution of {group} groups", "group = 1")
        if weights.shape[1] != channels:
            raise self._error(node, f"weights for {weights.shape[1]} channels, the map has {channels}", "")
        kernel = _two(weights.shape[2:])
        if _two(node.attributes.get("kernel_shape", kernel)) != kernel:
            raise self._error(node, f"kernel_shape is not that of the weights, {list(kernel)}", "")
        strides = _two(node.attributes.get("strides", (1, 1)))
        dilations = _two(node.attributes.get("dilations", (1, 1)))
        pads = self._pads(node, kernel, strides, dilations, (rows, columns))
        self._add(
            node,
            LayerShape(
                self._name(node),
                "conv",
                *(channels, rows, columns, len(weights)),
                *(kernel, strides, pads, dilations),
                parameter=node.input(1),
            ),
            weights,
            self._bias(node, 2, len(weights)),
        )

    def _pads(
        self,
        node: OnnxNode,
        kernel: tuple[int, int],
        strides: tuple[int, int],
        dilations: tuple[int, int],
        size: tuple[int, int],
    ) -> tuple[int, int, int, int]:
        kind = node.attributes.get("auto_pad", "NOTSET")
        if kind in ("NOTSET", ""):
            pads = node.attributes.get("pads", (0, 0, 0, 0))
            if not _are_whole(pads, 4) or min(pads) < 0:
                raise self._error(node, f"pads {pads}", "four pads of 0 or more")
            return (pads[0], pads[1], pads[2], pads[3])
        if kind == "VALID":
            return (0, 0, 0, 0)
        if min(strides) < 1:
            raise self._error(node, f"strides {list(strides)}", "strides of 1 or more")
        whole = [
            max(0, (-(-extent // stride) - 1) * stride + (taps - 1) * dilation + 1 - extent)
            for extent, stride, taps, dilation in zip(size, strides, kernel, dilations, strict=True)
        ]
        less, more = [each // 2 for each in whole], [each - each // 2 for each in whole]
        first, last = (less, more) if kind == "SAME_UPPER" else (more, less)
        return (first[0], first[1], last[0], last[1])

    def _gemm(self, node: OnnxNode) -> None:
        if node.attributes.get("transA", 0):
            raise self._error(node, "a transposed input (transA = 1)", "transA = 0")
        matrix = self._weights(node, 1)
        if not node.attributes.get("transB", 0):
            matrix = matrix.T
        alpha, beta = (self._real(node, key, 1.0) for key in ("alpha", "beta"))
        self._product(node, matrix, beta * self._bias(node, 2, len(matrix)), alpha)

    def _matmul(self, node: OnnxNode) -> None:
        if self._is_constant(node.input(0)):
            raise self._error(node, "the constant comes first", "input times weights")
        matrix = self._weights(node, 1)
        if matrix.ndim != 2:
            raise self._error(node, f"weights of {matrix.ndim} axes", "a matrix")
        self._product(node, matrix.T, np.zeros(matrix.shape[1]), 1.0)

    def _product(self, node: OnnxNode, matrix: Reals, offset: Reals, gain: float) -> None:
        """A matrix [co, inputs]: a kernel that covers the whole map, or one pixel below the other."""
        channels, rows, columns = self._flow.map
        if not self._flow.is_row:
            raise self._error(node, "reads a map, not a vector", "Flatten before it")
        outputs, inputs = matrix.shape
        kernel = (1, 1) if inputs == channels and columns == 1 else (rows, columns)
        if inputs != channels * kernel[0] * kernel[1]:
            raise self._error(node, f"weights for {inputs} inputs, there are {channels * rows * columns}", "")
        shape = LayerShape(
            self._name(node), "matmul", channels, rows, columns, outputs, kernel, parameter=node.input(1)
        )
        self._add(node, shape, matrix.reshape(outputs, channels, *kernel), offset, gain)

    def _norm(self, node: OnnxNode) -> None:
        layer = self._foldable(node)
        values = [self._constant(node, index) for index in (1, 2, 3, 4)]
        channels = layer.shape.co
        if any(each.shape != (channels,) for each in values):
            raise self._error(node, f"parameters that are not of {channels} channels", "")
        gamma, beta, mean, variance = values
        with np.errstate(invalid="ignore", divide="ignore"):
            # What is not finite is refused where the layer is quantised; the published table needs no gain.
            gain = gamma / np.sqrt(variance + self._real(node, "epsilon", 1e-5))
        self._layers[-1] = replace(layer, gain=layer.gain * gain, offset=(layer.offset - mean) * gain + beta)

    def _affine(self, node: OnnxNode) -> None:
        layer = self._foldable(node)
        first = self._is_constant(node.input(0))
        values = self._channels(node, self._constant(node, 0 if first else 1), layer.shape.co)
        gain, offset = layer.gain, layer.offset
        if node.op == "Add":
            offset = offset + values
        elif node.op == "Sub":
            gain, offset = (-gain, values - offset) if first else (gain, offset - values)
        elif node.op == "Mul":
            gain, offset = gain * values, offset * values
        elif first or not values.all():
            raise self._error(node, "a division by the result, or by zero", "a product with a constant")
        else:
            gain, offset = gain / values, offset / values
        self._layers[-1] = replace(layer, gain=gain, offset=offset)

    def _channels(self, node: OnnxNode, values: Reals, channels: int) -> Reals:
        """One number per output channel of a constant that is broadcast to the result."""
        rank = 2 if self._flow.is_row else 4
        axis = values.ndim - 1 if rank == 2 else values.ndim - 3
        others = [size for at, size in enumerate(values.shape) if at != axis]
        if values.size == 1:
            return np.full(channels, values.ravel()[0])
        if not 0 <= axis < values.ndim or values.shape[axis] != channels or any(size != 1 for size in others):
            raise self._error(
                node, f"a constant of shape {list(values.shape)}", "one number, or one per output channel"
            )
        return values.ravel()

    def _foldable(self, node: OnnxNode) -> RealLayer:
        if not self._open:
            raise self._error(
                node,
                f"{node.op} does not follow a Conv, Gemm or MatMul directly, so it cannot be folded into one",
                "put it before the ReLU",
            )
        return self._layers[-1]

    def _relu(self, node: OnnxNode) -> None:
        at = len(self._layers) - 1
        while at >= 0 and self._layers[at].shape.kind == "pool":
            at -= 1  # the largest of a window is limited as its pixels are
        if at < 0:
            raise self._error(node, "a ReLU before any layer", "leave it out: the input is not negative")
        self._layers[at] = replace(self._layers[at], relu=True)
        self._open = False

    def _pool(self, node: OnnxNode) -> None:
        channels, rows, columns = self._flow.map
        kernel = _two(node.attributes.get("kernel_shape", ()))
        if kernel == (0, 0) or self._flow.is_row:
            raise self._error(node, "a pool that is not 2-D", "2-D max-pool")
        strides = _two(node.attributes.get("strides", (1, 1)))
        dilations = _two(node.attributes.get("dilations", (1, 1)))
        if dilations != (1, 1):
            raise self._error(node, f"dilations {list(dilations)}", "dilations of 1")
        if node.output(1) and (node.output(1) in self._readers or node.output(1) in self._graph.outputs):
            raise self._error(node, "the indices are used", "only the values of the pool")
        pads = self._pads(node, kernel, strides, dilations, (rows, columns))
        shape = LayerShape(node.name, "pool", channels, rows, columns, channels, kernel, strides, pads)
        self._check(node, shape)
        expected = self._graph.tensor(node.output(0))
        if expected.is_static and expected.sizes[2:] != (shape.ho, shape.wo):
            raise self._error(
                node, f"ceil_mode = 1 makes a map of {expected.shape_text}", "ceil_mode = 0, or more padding"
            )
        nothing = np.zeros((0, 0, 0, 0))
        ones = np.ones(channels)
        self._layers.append(RealLayer(shape, nothing, ones, 0 * ones, relu=True, where=self._where(node)))
        self._open = False
        self._flow.map = (channels, shape.ho, shape.wo)

    def _row(self, node: OnnxNode) -> None:
        """All values of the one sample in a row."""
        channels, rows, columns = self._flow.map
        tensor = self._graph.tensor(node.output(0))
        if not tensor.is_static:
            raise self._error(node, f"the shape {tensor.shape_text} is not fixed", "fixed sizes")
        if self._flow.is_row and columns == 1 and tensor.sizes[-1] == channels:
            return
        if tensor.sizes != (1, channels * rows * columns):
            raise self._error(node, f"makes {tensor.shape_text} of {self._flow.map}", "a row: [1, C*H*W]")
        self._flow.is_row = True
        self._open = False

    def _add(
        self, node: OnnxNode, shape: LayerShape, weights: Reals, offset: Reals, gain: float = 1.0
    ) -> None:
        self._check(node, shape)
        gains = np.full(shape.co, gain)
        self._layers.append(RealLayer(shape, weights, gains, offset, relu=False, where=self._where(node)))
        self._open = True
        self._flow.map = (shape.co, shape.ho, shape.wo)

    def _check(self, node: OnnxNode, shape: LayerShape) -> None:
        try:
            shape.check()
        except ShapeError as error:
            raise self._error(node, error.message, error.cure or "") from None

    def _weights(self, node: OnnxNode, index: int) -> Reals:
        name = node.input(index)
        if not self._is_constant(name):
            raise self._error(node, f"weights '{name}' that are no constant", "an initializer")
        values = self._constant(node, index)
        if values.ndim < 2 or not values.size:
            raise self._error(node, f"weights of shape {list(values.shape)}", "")
        return values

    def _bias(self, node: OnnxNode, index: int, channels: int) -> Reals:
        if not node.input(index):
            return np.zeros(channels)
        values = self._constant(node, index)
        if values.size not in (1, channels):
            raise self._error(node, f"a bias of shape {list(values.shape)} for {channels} outputs", "")
        return np.broadcast_to(values.ravel(), channels).astype(np.float64)

    def _constant(self, node: OnnxNode, index: int) -> Reals:
        """A constant input in float64; one that is stored as integers and a scale is multiplied out."""
        name = node.input(index)
        value = self._graph.constant(name)
        if value is None:
            source = self._writer.get(name)
            if source is None or source.op != "DequantizeLinear":
                raise self._error(node, f"the input '{name}' is no constant that is stored", "an initializer")
            value = self._dequantised(source)
        if value.dtype.kind not in "fiub" and value.dtype.name != "bfloat16":
            raise self._error(node, f"the input '{name}' is of type {value.dtype}", "real numbers")
        return np.asarray(value, np.float64)

    def _dequantised(self, node: OnnxNode) -> Reals:
        given: list[Any] = [self._graph.constant(name) for name in node.inputs]
        if given[0] is None or given[1] is None:
            raise self._error(node, "is no product of stored integers and scales", "stored constants")
        values, scale = (np.asarray(each, np.float64) for each in given[:2])
        zero = np.asarray(given[2], np.float64) if len(given) > 2 and given[2] is not None else 0.0 * scale
        axis = node.attributes.get("axis", 1)
        if scale.size > 1 and type(axis) is int and -values.ndim <= axis < values.ndim:
            shape = [1] * values.ndim
            shape[axis] = -1
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        try:
            return np.broadcast_to((values - zero) * scale, values.shape)
        except ValueError as error:
            raise self._error(
                node, f"its scale does not fit: {error}", "one scale, or one per axis"
            ) from None

    def _real(self, node: OnnxNode, key: str, default: float) -> float:
        value = node.attributes.get(key, default)
        if not isinstance(value, int | float):
            raise self._error(node, f"{key} is {value!r}", "a number")
        return float(value)

    def _error(self, node: OnnxNode, message: str, cure: str) -> PulptrainError:
        return UnsupportedLayerError(message, where=self._where(node), cure=cure or CURE)

    def _where(self, node: OnnxNode) -> str:
        return f"{self._graph.path}: node '{node.name}' ({node.op})"

    def _name(self, node: OnnxNode) -> str:
        """The name of a layer: that of its weights, as the public tool has it, if it is one of PyTorch's."""
        stem, dot, kind = node.input(1).rpartition(".")
        taken = {layer.shape.name for layer in self._layers}
        return stem if dot and kind == "weight" and stem and stem not in taken else node.name


def _are_whole(sizes: Any, count: int) -> bool:
    return (
        isinstance(sizes, tuple | list) and len(sizes) == count and all(type(each) is int for each in sizes)
    )


def _two(sizes: Any) -> tuple[int, int]:
    """A pair of an attribute; zeros, which no layer may have, for anything else."""
    return (sizes[0], sizes[1]) if _are_whole(sizes, 2) else (0, 0)

# SPDX-License-Identifier: Apache-2.0
"""Nodes whose result follows from constants alone are computed once, by onnx's reference implementation.

These are the calculations with shapes that exporters leave in a graph. Weights are not folded: what is made
of an initializer of floats stays a node, so that the weight keeps its name and can be trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, prod
from typing import Any

import numpy as np

from configs.values import replace
from importers.graph.onnx_graph import Array, OnnxGraph, OnnxNode, OnnxTensor

MOST_FOLDED_ELEMENTS = 1 << 20
"""Larger results stay nodes: they are no shapes."""

_GROWING: dict[str, tuple[int, Callable[[Sequence[Array]], int]]] = {
    "ConstantOfShape": (1, lambda values: _product(values[0])),
    "Expand": (2, lambda values: _product(values[1]) * max(1, values[0].size)),
    "Tile": (2, lambda values: _product(values[1]) * values[0].size),
    "Range": (3, lambda values: _steps(*values)),
}
"""Ops whose result may be far larger than what they are given -> their inputs, and its elements."""

_FOLDED = {
    *("Abs", "Add", "And", "Cast", "Ceil", "Concat", "ConstantOfShape", "Div", "Equal", "Exp", "Expand"),
    *("Flatten", "Floor", "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max"),
    *("Min", "Mod", "Mul", "Neg", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "Reshape", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose"),
    *("Unsqueeze", "Where"),
}


def fold_constants(graph: OnnxGraph) -> OnnxGraph:
    """The graph without the nodes that follow from constants, their results among `folded`.

    Constant, Shape and Size are folded wherever they can be; the ops of `_FOLDED` if all that they read is
    constant and no initializer of floats, and the result is small.
    """
    folded: dict[str, Array] = dict(graph.folded)
    trainable = {name for name in graph.trainable if graph.initializers[name].size > 1}
    shapes: dict[str, OnnxTensor] = dict(graph.tensors)
    left: list[OnnxNode] = []
    for node in graph.nodes:
        results = _results(node, graph, folded, trainable, shapes)
        if results is None:
            left.append(node)
            continue
        for name, value in results.items():
            folded[name] = value
            shapes[name] = OnnxTensor(name, value.shape, value.dtype.name)
    return replace(graph, nodes=tuple(left), tensors=shapes, folded=folded)


def _results(
    node: OnnxNode,
    graph: OnnxGraph,
    folded: Mapping[str, Array],
    trainable: set[str],
    shapes: Mapping[str, OnnxTensor],
) -> dict[str, Array] | None:
    """What the node writes, None if that is not known before it runs."""
    if node.op == "Constant":
        value = _constant(node)
        return None if value is None else {node.output(0): value}
    if node.op in ("Shape", "Size"):
        tensor = shapes.get(node.input(0))
        return None if tensor is None or not tensor.is_static else of_shape(node, tensor.sizes)
    if node.op not in _FOLDED or not node.inputs:
        return None
    constants = {**folded, **graph.initializers, "": None}
    if any(name not in constants or name in trainable for name in node.inputs):
        return None
    return computed(node, [constants[name] for name in node.inputs], graph.opset)


def of_shape(node: OnnxNode, sizes: tuple[int, ...]) -> dict[str, Array] | None:
    """What Shape or Size writes, by name; None if it does not say which dimensions."""
    if node.op == "Size":
        return {node.output(0): np.array(prod(sizes), np.int64)}
    start, end = node.attributes.get("start", 0), node.attributes.get("end", len(sizes))
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    return {node.output(0): np.array(sizes[start:end], np.int64)}


def _constant(node: OnnxNode) -> Array | None:
    """The value of a Constant node, None for strings and sparse ones."""
    for ending, types in (("", (int, float)), ("s", (tuple,))):
        for key, kind in (("value_float", np.float32), ("value_int", np.int64)):
            if isinstance(node.attributes.get(key + ending), types):
                return np.array(node.attributes[key + ending], kind)
    value = node.attributes.get("value")
    return value if isinstance(value, np.ndarray) else None


def computed(node: OnnxNode, values: Sequence[Array | None], opset: int) -> dict[str, Array] | None:
    """What one node writes, by name; None if it is too large, or does not fit what it is given."""
    given = [value for value in values if value is not None]
    if _elements(node, given) > max(MOST_FOLDED_ELEMENTS, sum(value.size for value in given)):
        return None
    results = _evaluate(node, values, opset)
    return None if results is None else dict(zip(filter(None, node.outputs), results, strict=True))


def _elements(node: OnnxNode, given: Sequence[Array]) -> int:
    """How many elements the result has at most, before it is made; 0 of a node that does not fit them."""
    count, growing = _GROWING.get(node.op, (0, None))
    if growing is not None:
        return growing(given) if len(given) == count else 0
    if node.op not in _BROADCAST:
        return sum(value.size for value in given)
    try:
        return prod(np.broadcast_shapes(*(value.shape for value in given)))
    except ValueError:
        return 0


_BROADCAST = {
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min"),
    *("Mod", "Mul", "Or", "Pow", "Sub", "Where"),
}


def _steps(*values: Array) -> int:
    if any(value.size != 1 for value in values):
        return 0
    start, stop, step = (float(value.ravel()[0]) for value in values)
    count = (stop - start) / step if step else 0.0
    return int(count) + 1 if isfinite(count) else 2 * MOST_FOLDED_ELEMENTS


def _product(sizes: Array) -> int:
    return prod(int(size) for size in sizes.ravel())


def _evaluate(node: OnnxNode, values: Sequence[Array | None], opset: int) -> list[Any] | None:
    """One node by onnx.reference, as a graph of its own; None if it cannot be computed so."""
    fed = {f"i{number}": value for number, value in enumerate(values) if value is not None}
    try:
        results = _by_onnx(node, values, opset, fed)
    except Exception:  # of the onnx package, for a node that does not fit: whoever maps the node says so
        return None
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    return [np.asarray(result) for result in results]


def _by_onnx(
    node: OnnxNode, values: Sequence[Array | None], opset: int, fed: Mapping[str, Array]
) -> list[Any]:
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    names = [f"i{number}" if value is not None else "" for number, value in enumerate(values)]
    outputs = [f"o{number}" if name else "" for number, name in enumerate(node.outputs)]
    attributes = {
        key: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for key, value in node.attributes.items()
    }
    proto = helper.make_node(node.op, names, outputs, **attributes)
    graph = helper.make_graph(
        [proto],
        "folded",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in fed.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs if name],
    )
    opset = max(opset, _COMPUTED_SINCE.get(node.op, opset))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    results: list[Any] = ReferenceEvaluator(model).run(None, fed)
    return results


_COMPUTED_SINCE = {"DequantizeLinear": 19}
"""Ops that onnx.reference has from an opset on that means the same as those before."""

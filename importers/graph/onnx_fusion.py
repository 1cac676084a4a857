# SPDX-License-Identifier: Apache-2.0
"""What an exporter took apart is put together again where we have it as one layer.

A linear layer without a matrix form of its own (MatMul, Add), SiLU (x · Sigmoid(x)), hard-swish (x ·
HardSigmoid(x)), GELU by its error function, layer norm before opset 17, group norm before opset 18. A pattern
counts only if nobody else reads what lies inside of it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from importers.graph.onnx_graph import OnnxGraph, OnnxNode

OWN = "importer:"
"""Domain of the ops that fusion makes."""


_OF_TWO = ("Add", "Div", "MatMul", "Mul", "Pow", "Reshape", "Sub")
"""Ops that are not theirs with fewer inputs."""


def fused(graph: OnnxGraph) -> OnnxGraph:
    """The graph with patterns replaced by single nodes, in the place of their last one."""
    found = _Fusion(graph)
    nodes = list(graph.nodes)
    for pattern in (_layer_norm, _affine, _group_norm, _gelu, _gated, _linear):
        for node in list(nodes):
            if node.name in found.gone:
                continue
            new = pattern(found, node)
            if new is not None:
                nodes[nodes.index(node)] = new
                found.replace(node, new)
        nodes = [node for node in nodes if node.name not in found.gone]
    return replace(graph, nodes=tuple(nodes))


class _Fusion:
    """The graph as it is being changed: writers, readers, and nodes that are part of another now."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self.writer = graph.writer
        self.readers = graph.readers
        self.outputs = set(graph.outputs)
        self.gone: set[str] = set()

    def replace(self, old: OnnxNode, new: OnnxNode) -> None:
        for name in old.outputs:
            self.writer[name] = new

    def made_by(self, name: str, *ops: str) -> OnnxNode | None:
        """The node that writes a tensor, if it is of one of these ops."""
        node = self.writer.get(name)
        if node is None or node.op not in ops or node.name in self.gone:
            return None
        return node if len(node.inputs) > 1 or node.op not in _OF_TWO else None

    def inside(self, name: str, *readers: OnnxNode) -> bool:
        """Whether only these nodes read a tensor."""
        names = {node.name for node in readers}
        return name not in self.outputs and {node.name for node in self.readers.get(name, ())} <= names

    def number(self, name: str) -> float | None:
        """The value of a tensor that is one number."""
        value = self.graph.constant(name)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def _other(node: OnnxNode, name: str) -> str:
    return node.inputs[1] if node.inputs[0] == name else node.inputs[0]


def _linear(found: _Fusion, node: OnnxNode) -> OnnxNode | None:
    """MatMul with a matrix of weights, then Add of a vector."""
    if node.op != "Add" or len(node.inputs) != 2:
        return None
    for name in node.inputs:
        product = found.made_by(name, "MatMul")
        if product is None or not found.inside(name, node):
            continue
        weight, bias = found.graph.constant(product.inputs[1]), found.graph.constant(_other(node, name))
        if weight is None or bias is None or weight.ndim != 2 or bias.shape != weight.shape[1:]:
            continue
        found.gone.add(product.name)
        return replace(
            node,
            op=f"{OWN}Linear",
            inputs=(*product.inputs, _other(node, name)),
            name=product.name + "_Linear",
        )
    return None


def _gated(found: _Fusion, node: OnnxNode) -> OnnxNode | None:
    """x · Sigmoid(x), x · HardSigmoid(x)."""
    if node.op != "Mul" or len(node.inputs) != 2:
        return None
    for name in node.inputs:
        gate = found.made_by(name, "Sigmoid", "HardSigmoid")
        x = _other(node, name)
        if gate is None or gate.inputs[0] != x or not found.inside(name, node):
            continue
        if gate.op == "HardSigmoid" and not (
            abs(gate.attributes.get("alpha", 0.2) - 1 / 6) < 1e-6 and gate.attributes.get("beta", 0.5) == 0.5
        ):
            continue
        found.gone.add(gate.name)
        op = f"{OWN}Silu" if gate.op == "Sigmoid" else "HardSwish"
        return replace(node, op=op, inputs=(x,))
    return None


def _gelu(found: _Fusion, node: OnnxNode) -> OnnxNode | None:
    """x · (1 + Erf(x / sqrt(2))) · 0.5, in the orders that exporters write it."""
    if node.op != "Mul" or len(node.inputs) != 2:
        return None
    product, _ = _with_number(found, node, 0.5)
    for name in (product,) if product is not None else node.inputs:
        times = found.made_by(name, "Mul")
        if times is None or not found.inside(name, node):
            continue
        if product is None:  # (x · 0.5) · (1 + Erf): the half belongs to the inner product
            half_of, _ = _with_number(found, times, 0.5)
            pairs = [(half_of, _other(node, name))]
        else:
            pairs = [(_other(times, item), item) for item in times.inputs]
        for x, total in pairs:
            inner = _erf_of(found, x or "", total, (times, node))
            if inner is not None:
                found.gone.update(item.name for item in (times, *inner))
                return replace(node, op="Gelu", inputs=(x or "",))
    return None


def _erf_of(
    found: _Fusion, x: str, total: str, users: tuple[OnnxNode, ...]
) -> tuple[OnnxNode, OnnxNode, OnnxNode] | None:
    """The nodes of 1 + Erf(x / sqrt(2)), if that is what writes `total` and only `users` read it."""
    plus = found.made_by(total, "Add")
    if plus is None or not found.inside(total, *users):
        return None
    erf = found.made_by(_with_number(found, plus, 1.0)[0] or "", "Erf")
    root = found.made_by(erf.inputs[0], "Div", "Mul") if erf is not None else None
    if erf is None or root is None or x not in root.inputs:
        return None
    if not found.inside(erf.outputs[0], plus) or not found.inside(root.outputs[0], erf):
        return None
    number, wanted = found.number(_other(root, x)), np.sqrt(2) if root.op == "Div" else np.sqrt(0.5)
    if number is None or abs(number - wanted) > 1e-4 or (root.op == "Div" and root.inputs[0] != x):
        return None
    return plus, erf, root


def _with_number(found: _Fusion, node: OnnxNode, number: float) -> tuple[str | None, str]:
    """(the operand, the constant) of a node that has this number as one of two operands."""
    for name in node.inputs:
        if found.number(name) == number:
            return _other(node, name), name
    return None, ""


def _layer_norm(found: _Fusion, node: OnnxNode) -> OnnxNode | None:
    """(x - mean) / sqrt(mean of squares + eps)."""
    if node.op != "Div" or len(node.inputs) != 2:
        return None
    parts = _norm_parts(found, node)
    if parts is None:
        return None
    eps, inner = parts
    difference, mean, square, variance = inner[:4]
    squared = found.number(square.inputs[1]) == 2
    if square.op == "Mul":
        squared = square.inputs[1] == difference.outputs[0]
    axes = _axes(found, mean)
    rank = len(found.graph.tensor(mean.inputs[0]).shape or ())
    last = bool(rank) and sorted(axis % rank for axis in axes) == list(range(rank - len(axes), rank))
    users = {item.name for item in (*inner, node)}
    read = {reader.name for item in inner for reader in found.readers.get(item.outputs[0], ())}
    if not squared or not axes or axes != _axes(found, variance) or not last or read - users:
        return None
    found.gone.update(item.name for item in inner)
    attributes = {"axis": -len(axes), "epsilon": eps}
    return replace(node, op="LayerNormalization", inputs=difference.inputs[:1], attributes=attributes)


def _norm_parts(found: _Fusion, node: OnnxNode) -> tuple[float, list[OnnxNode]] | None:
    """eps, and the nodes inside of a norm: difference, mean, square, mean of squares, sum with eps, root."""
    difference, root = found.made_by(node.inputs[0], "Sub"), found.made_by(node.inputs[1], "Sqrt")
    shifted = found.made_by(root.inputs[0], "Add") if root is not None else None
    if difference is None or root is None or shifted is None:
        return None
    name = next((name for name in shifted.inputs if found.made_by(name, "ReduceMean")), "")
    variance, mean = found.made_by(name, "ReduceMean"), found.made_by(difference.inputs[1], "ReduceMean")
    eps = found.number(_other(shifted, name)) if name else None
    square = found.made_by(variance.inputs[0], "Pow", "Mul") if variance is not None else None
    if variance is None or mean is None or square is None or eps is None:
        return None
    if mean.inputs[0] != difference.inputs[0] or square.inputs[0] != difference.outputs[0]:
        return None
    return eps, [difference, mean, square, variance, shifted, root]


def _affine(found: _Fusion, node: OnnxNode) -> OnnxNode | None:
    """Scale and shift behind a layer norm that was put together above."""
    if node.op != "Add" or len(node.inputs) != 2:
        return None
    for name in node.inputs:
        product = found.made_by(name, "Mul")
        if product is None or not found.inside(name, node):
            continue
        for inner in product.inputs:
            norm = found.made_by(inner, "LayerNormalization")
            weights = [_other(product, inner), _other(node, name)]
            if norm is None or len(norm.inputs) != 1 or not found.inside(inner, product):
                continue
            if any(found.graph.constant(weight) is None for weight in weights):
                continue
            found.gone.update((product.name, norm.name))
            return replace(norm, name=node.name, inputs=(*norm.inputs, *weights), outputs=node.outputs)
    return None


def _group_norm(found: _Fusion, node: OnnxNode) -> OnnxNode | None:
    """Groups as instances (Reshape, InstanceNormalization, Reshape), then Mul and Add per channel."""
    if node.op != "Add" or len(node.inputs) != 2:
        return None
    for name in node.inputs:
        product = found.made_by(name, "Mul")
        for inner in product.inputs if product is not None else ():
            back = found.made_by(inner, "Reshape")
            norm = found.made_by(back.inputs[0], "InstanceNormalization") if back is not None else None
            groups = found.made_by(norm.inputs[0], "Reshape") if norm is not None else None
            if product is None or back is None or norm is None or groups is None:
                continue
            chain = (groups, norm, back, product, node)
            if not all(found.inside(one.outputs[0], two) for one, two in pairwise(chain)):
                continue
            x = found.graph.tensor(groups.inputs[0])
            shape, split = x.shape or (), found.graph.tensor(groups.outputs[0]).shape or ()
            weights = (_other(product, inner), _other(node, name))
            if len(shape) < 2 or len(split) != 3 or split[0] != shape[0] or not _is_plain(found, norm):
                continue
            if (
                not _divides(split[1], shape[1])
                or found.graph.tensor(inner).shape != shape
                or not all(_per_channel(found, weight, shape) for weight in weights)
            ):
                continue
            found.gone.update(one.name for one in chain[:-1])
            attributes = {"num_groups": split[1], "epsilon": norm.attributes.get("epsilon", 1e-5)}
            return replace(node, op="GroupNormalization", inputs=(x.name, *weights), attributes=attributes)
    return None


def _divides(groups: int | str, channels: int | str) -> bool:
    """Whether groups are of whole channels: instances may be cut from a sample anywhere."""
    return isinstance(groups, int) and isinstance(channels, int) and channels % groups == 0


def _is_plain(found: _Fusion, norm: OnnxNode) -> bool:
    """Whether it neither scales nor shifts, and nobody trains what would."""
    scale, shift = (found.graph.folded.get(name) for name in norm.inputs[1:])
    return scale is not None and shift is not None and bool((scale == 1).all() and (shift == 0).all())


def _per_channel(found: _Fusion, name: str, shape: tuple[int | str, ...]) -> bool:
    """Whether a tensor is a constant for each channel of a shape [batch, channels, ...]."""
    value = found.graph.constant(name)
    return value is not None and value.shape == (shape[1], *(1,) * (len(shape) - 2))


def _axes(found: _Fusion, node: OnnxNode) -> tuple[int, ...]:
    given = node.attributes.get("axes")
    if given is None and len(node.inputs) > 1:
        value = found.graph.constant(node.inputs[1])
        given = tuple(int(axis) for axis in value.ravel()) if value is not None else None
    kept = node.attributes.get("keepdims", 1)
    return tuple(given) if given is not None and kept else ()

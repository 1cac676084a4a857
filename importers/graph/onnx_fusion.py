# SPDX-License-Identifier: Apache-2.0
"""What an exporter took apart is put together again where we have it as one layer.

A linear layer without a matrix form of its own (MatMul, Add), SiLU (x · Sigmoid(x)), hard-swish (x ·
HardSigmoid(x)), GELU by its error function, layer norm before opset 17, group norm before opset 18. A pattern
counts only if nobody else reads what lies inside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.values import replace
from importers.graph.onnx_graph import OnnxGraph, OnnxNode

OWN = "importer:"
"""Domain of the ops that fusion makes."""

_COMMUTES = ("Add", "Mul")

_ERF = ("Add", ("Erf", [("Div", "x", 2**0.5), ("Mul", "x", 0.5**0.5)]), 1.0)
_NORM = (
    "Div",
    ("Sub:away", "x", ("ReduceMean:mean", "x", "...")),
    ("Sqrt", ("Add", ("ReduceMean:variance", [("Pow", "away", 2.0), ("Mul", "away", "away")], "..."), "eps")),
)
_GROUPS = ("Reshape:back", ("InstanceNormalization:norm", ("Reshape:groups", "x", "..."), "s", "t"), "...")


@dataclass(frozen=True, slots=True)
class _Found:
    """Tensors by the letters of a pattern, and the nodes that it took."""

    tensors: Mapping[str, str]
    nodes: tuple[OnnxNode, ...] = ()


class _Fusion:
    """The graph as it is being changed: writers, readers, and nodes that are part of another now.

    A pattern is (op, patterns of its inputs), with ``op:letter`` for a node that is asked for later and
    ``...`` for inputs that may follow; a list of patterns, any of which will do; a number; or a letter, for a
    tensor, the same wherever it stands (``=w``: a constant).
    """

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self.writer = graph.writer
        self.readers = graph.readers
        self.gone: set[str] = set()

    def match(self, node: OnnxNode, pattern: Any) -> _Found | None:
        """What a pattern found that ends in this node, and of which nobody else reads what lies inside."""
        for match in self._of_node(node, pattern, _Found({})):
            names = {item.name for item in match.nodes}
            inner = [item.outputs[0] for item in match.nodes if item is not node]
            read = {reader.name for name in inner for reader in self.readers.get(name, ())}
            if read <= names and not set(inner) & set(self.graph.outputs):
                return match
        return None

    def _of_node(self, node: OnnxNode, pattern: Any, before: _Found) -> Iterator[_Found]:
        op, _, letter = pattern[0].partition(":")
        wanted = [item for item in pattern[1:] if item != "..."]
        count = len(node.inputs)
        if node.op != op or (count != len(wanted) and (count < len(wanted) or pattern[-1] != "...")):
            return
        tensors = {**before.tensors, letter: node.output(0)} if letter else before.tensors
        start = _Found(tensors, (*before.nodes, node))
        for order in (node.inputs, node.inputs[::-1])[: 2 if op in _COMMUTES else 1]:
            ways = [start]
            for part, tensor in zip(wanted, order, strict=False):
                ways = [further for way in ways for further in self._of_tensor(tensor, part, way)]
            yield from ways

    def _of_tensor(self, tensor: str, pattern: Any, before: _Found) -> Iterator[_Found]:
        if isinstance(pattern, list):
            for each in pattern:
                yield from self._of_tensor(tensor, each, before)
        elif isinstance(pattern, float):
            number, exact = self.number(tensor), pattern % 0.5 == 0
            if number is not None and abs(number - pattern) <= (0 if exact else 1e-4):
                yield before
        elif isinstance(pattern, tuple):
            node = self.writer.get(tensor)
            if node is not None and node.name not in self.gone:
                yield from self._of_node(node, pattern, before)
        elif before.tensors.get(pattern, tensor) == tensor and (
            pattern[0] != "=" or self.graph.constant(tensor) is not None
        ):
            yield _Found({**before.tensors, pattern: tensor}, before.nodes)

    def number(self, name: str) -> float | None:
        """The value of a tensor that is one number."""
        value = self.graph.constant(name)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None


def fused(graph: OnnxGraph) -> OnnxGraph:
    """The graph with patterns replaced by single nodes, in the place of their last one."""
    fusion = _Fusion(graph)
    nodes = list(graph.nodes)
    for patterns, made in _PATTERNS:
        for place, node in enumerate(nodes):
            if node.name in fusion.gone:
                continue
            for pattern in patterns:
                match = fusion.match(node, pattern)
                new = made(fusion, node, match) if match is not None else None
                if match is None or new is None:
                    continue
                fusion.gone.update(item.name for item in match.nodes if item is not node)
                fusion.writer.update(dict.fromkeys(node.outputs, new))
                nodes[place] = new
                break
        nodes = [node for node in nodes if node.name not in fusion.gone]
    return replace(graph, nodes=tuple(nodes))


def _layer_norm(fusion: _Fusion, node: OnnxNode, match: _Found) -> OnnxNode | None:
    """(x - mean) / sqrt(mean of squares + eps)."""
    mean, variance = (fusion.writer[match.tensors[letter]] for letter in ("mean", "variance"))
    axes, eps = _axes(fusion, mean), fusion.number(match.tensors["eps"])
    rank = len(fusion.graph.tensor(match.tensors["x"]).shape or ())
    last = bool(rank) and sorted(axis % rank for axis in axes) == list(range(rank - len(axes), rank))
    if eps is None or not axes or axes != _axes(fusion, variance) or not last:
        return None
    attributes = {"axis": -len(axes), "epsilon": eps}
    return replace(node, op="LayerNormalization", inputs=(match.tensors["x"],), attributes=attributes)


def _axes(fusion: _Fusion, node: OnnxNode) -> tuple[int, ...]:
    given = node.attributes.get("axes")
    if given is None and len(node.inputs) > 1:
        value = fusion.graph.constant(node.inputs[1])
        given = tuple(int(axis) for axis in value.ravel()) if value is not None else None
    kept = node.attributes.get("keepdims", 1)
    return tuple(given) if isinstance(given, tuple) and kept else ()


def _affine(fusion: _Fusion, node: OnnxNode, match: _Found) -> OnnxNode | None:
    """Scale and shift behind a layer norm that was put together above."""
    norm = fusion.writer[match.tensors["norm"]]
    inputs = (*norm.inputs, match.tensors["=w"], match.tensors["=b"])
    return replace(norm, name=node.name, inputs=inputs, outputs=node.outputs)


def _group_norm(fusion: _Fusion, node: OnnxNode, match: _Found) -> OnnxNode | None:
    """Groups as instances (Reshape, InstanceNormalization, Reshape), then Mul and Add per channel."""
    tensors, graph = match.tensors, fusion.graph
    x, split = graph.tensor(tensors["x"]), graph.tensor(tensors["groups"]).shape or ()
    norm, shape, weights = fusion.writer[tensors["norm"]], x.shape or (), (tensors["=w"], tensors["=b"])
    if (
        len(shape) < 2
        or len(split) != 3
        or split[0] != shape[0]
        or graph.tensor(tensors["back"]).shape != shape
    ):
        return None
    scale, shift = (graph.folded.get(tensors[letter]) for letter in ("s", "t"))
    if scale is None or shift is None or (scale != 1).any() or (shift != 0).any():
        return None  # it scales or shifts, or somebody trains what would
    each = (shape[1], *(1,) * (len(shape) - 2))
    groups, channels = split[1], shape[1]
    if not isinstance(groups, int) or not isinstance(channels, int) or channels % groups:
        return None  # instances may be cut from a sample anywhere, groups are of whole channels
    if any(_shape(graph.constant(name)) != each for name in weights):
        return None
    attributes = {"num_groups": split[1], "epsilon": norm.attributes.get("epsilon", 1e-5)}
    return replace(node, op="GroupNormalization", inputs=(x.name, *weights), attributes=attributes)


def _shape(value: Any) -> tuple[int, ...] | None:
    return None if value is None else np.shape(value)


def _gated(fusion: _Fusion, node: OnnxNode, match: _Found) -> OnnxNode | None:
    """x · Sigmoid(x), x · HardSigmoid(x)."""
    gate = fusion.writer[match.tensors["gate"]]
    alpha, beta = (gate.attributes.get(key, default) for key, default in (("alpha", 0.2), ("beta", 0.5)))
    if gate.op == "Sigmoid":
        return replace(node, op=f"{OWN}Silu", inputs=(match.tensors["x"],))
    is_swish = isinstance(alpha, float) and abs(alpha - 1 / 6) < 1e-6 and beta == 0.5
    return replace(node, op="HardSwish", inputs=(match.tensors["x"],)) if is_swish else None


def _linear(fusion: _Fusion, node: OnnxNode, match: _Found) -> OnnxNode | None:
    """MatMul with a matrix of weights, then Add of a vector."""
    weight, bias = (_shape(fusion.graph.constant(match.tensors[letter])) or () for letter in ("=w", "=b"))
    if len(weight) != 2 or bias != weight[1:]:
        return None
    inputs = tuple(match.tensors[letter] for letter in ("x", "=w", "=b"))
    name = fusion.writer[match.tensors["product"]].name
    return replace(node, op=f"{OWN}Linear", inputs=inputs, name=f"{name}_Linear")


_PATTERNS: Sequence[tuple[Sequence[Any], Callable[[_Fusion, OnnxNode, _Found], OnnxNode | None]]] = (
    ([_NORM], _layer_norm),
    ([("Add", ("Mul", ("LayerNormalization:norm", "x"), "=w"), "=b")], _affine),
    ([("Add", ("Mul", _GROUPS, "=w"), "=b")], _group_norm),
    (
        [("Mul", ("Mul", "x", _ERF), 0.5), ("Mul", ("Mul", "x", 0.5), _ERF)],
        lambda fusion, node, match: replace(node, op="Gelu", inputs=(match.tensors["x"],)),
    ),
    ([("Mul", "x", ("Sigmoid:gate", "x")), ("Mul", "x", ("HardSigmoid:gate", "x"))], _gated),
    ([("Add", ("MatMul:product", "x", "=w"), "=b")], _linear),
)
"""What stands for one node -> what that is, or None; those before may be part of those behind."""

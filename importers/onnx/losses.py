# SPDX-License-Identifier: Apache-2.0
"""ONNX ops at the end of a graph that is a loss: its nodes of losses, means over all samples, their sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from importers.graph.draft import CannotTakeError
from importers.graph.node import Attributes, Handler, Node
from importers.graph.terms import Term, Terms
from importers.graph.views import View
from importers.onnx.elements import reduced_axes, row_softmax
from importers.place.losses import added, divided, either, met, multiplied

LOSSES = {"SoftmaxCrossEntropyLoss": "cross_entropy", "NegativeLogLikelihoodLoss": "nll"}
"""Ops that are losses of ours, of scores and numbers of classes."""

_OF_DIFFERENCE = {"square": "mse", "absolute": "l1"}
"""What a mean or sum of this of a difference is."""


def class_options(node: Attributes) -> dict[str, Any]:
    """Options of a loss of classes."""
    options: dict[str, Any] = {"reduction": node.text("reduction", "mean")}
    if options["reduction"] not in ("mean", "sum"):
        raise CannotTakeError("a loss per sample is not supported", "set reduction mean or sum")
    if node.has("ignore_index"):
        options["ignore_index"] = node.integer("ignore_index", 0)
    if node.has(2):
        weights = node.values(2)
        if weights is None:
            raise CannotTakeError("the class weights are not constant", "store the weights as an initializer")
        options["class_weights"] = weights.ravel().tolist()
    return options


def _of_classes(node: Node) -> Any:
    scores, kind, last = node.x, LOSSES[node.op], node.rank - 1
    hard = {"labels": "hard"} if kind == "cross_entropy" else {}
    terms = Terms((Term(kind, {**hard, **class_options(node)}, scores, node.view(1)),))
    if 1 not in node.used:
        return terms
    return [terms, row_softmax(node, scores.swapped(1, last), "log_softmax").swapped(1, last)]


def _reduced(node: Node) -> Terms | None:
    kind, dims = node.op.removeprefix("Reduce").lower(), reduced_axes(node, node.rank)
    terms = met(node, node.x, dims, kind, keep=node.integer("keepdims", 1) and node.shape)
    return None if terms is None else _of_difference(node, terms)


def _of_difference(node: Node, terms: Terms) -> Terms:
    """As a loss that has labels, where one side of a difference is an input of the network."""
    (term,), layers = terms.items, {layer.name: layer for layer in node.draft.layers}
    outer = layers.get(term.view.word)
    inner = layers.get((outer.inputs or ("",))[0]) if outer is not None else None
    if outer is None or outer.type not in _OF_DIFFERENCE or inner is None or inner.type != "subtract":
        return terms
    fed, made = sorted(inner.inputs or (), key=lambda word: node.draft.root(word) not in node.draft.inputs)
    if node.draft.root(fed) not in node.draft.inputs or node.draft.root(made) in node.draft.inputs:
        return terms
    output, target = (View.of(word, node.draft.tensors[word].shape) for word in (made, node.draft.root(fed)))
    return Terms((Term(_OF_DIFFERENCE[outer.type], term.options, output, target),))


def _summed(node: Node) -> Terms | None:
    total, *others = node.inputs
    for item in others:
        total = None if total is None else added(total, item)
    return total if isinstance(total, Terms) else None


_EITHER: Mapping[str, Callable[[Node], Terms | None]] = {
    "ReduceMean": _reduced,
    "ReduceSum": _reduced,
    "Add": _summed,
    "Sum": _summed,
    "Sub": lambda node: added(node.get(0), node.get(1), -1.0),
    "Mul": lambda node: multiplied(node.get(0), node.get(1)),
    "Div": lambda node: divided(node.get(0), node.get(1)),
    **dict.fromkeys(("Identity", "Cast", "Squeeze", "Reshape"), lambda node: multiplied(node.get(0), 1.0)),
    "Neg": lambda node: multiplied(node.get(0), -1.0),
}


def handlers(plain: Mapping[str, Handler]) -> dict[str, Handler]:
    """`plain` and those of losses, for a graph that ends in one."""
    of_classes = dict.fromkeys(LOSSES, _of_classes)
    return {**plain, **of_classes, **{op: either(special, plain[op]) for op, special in _EITHER.items()}}

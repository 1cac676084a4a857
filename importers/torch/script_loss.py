# SPDX-License-Identifier: Apache-2.0
"""A loss written in PyTorch, captured with the module: what its ops become, and the losses it is a sum of.

A loss of PyTorch that is one of ours stays one. What a script computes itself is layers, and at the end a
mean or a sum over all samples, the loss `output`. Such numbers may be added, and multiplied by numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from configs.errors import UnsupportedLayerError
from importers.extras import require_extra
from importers.graph.draft import CannotTakeError
from importers.graph.node import Handler, Node
from importers.graph.terms import Term, Terms
from importers.graph.views import View
from importers.place.losses import added, divided, either, met, multiplied
from importers.place.pairs import applied, difference, power
from importers.torch.losses import LOSSES, spec_of

TAKEN_APART = (
    "cosine_embedding_loss",
    "cosine_similarity",
    "margin_ranking_loss",
    "pairwise_distance",
    "triplet_margin_loss",
)
"""Ops that are taken as what PyTorch says they are made of."""

_SYMMETRIC = ("huber_loss", "l1_loss", "mse_loss", "smooth_l1_loss")
"""Losses that do not change when output and target change places."""

_REDUCTIONS = ("none", "mean", "sum")


def handlers(plain: Mapping[str, Handler]) -> dict[str, Handler]:
    """`plain` and those of losses; where an op may be either, it is a loss where all samples meet."""
    ways: dict[str, Callable[[Node], Any]] = {
        "mean": _reduced,
        "sum": _reduced,
        "add": _added,
        "sub": _subtracted,
        "rsub": _subtracted,
        "mul": lambda node: multiplied(node["self"], node["other"]),
        "div": lambda node: None if node.get("rounding_mode") else divided(node["self"], node["other"]),
        "neg": lambda node: node["self"].times(-1.0) if isinstance(node["self"], Terms) else None,
    }
    return {
        **plain,
        **{op: either(special, plain.get(op)) for op, special in ways.items()},
        **dict.fromkeys(LOSSES, _loss),
        "broadcast_tensors": _alike,
        **{op: either(_detached, plain[op]) for op in ("detach", "detach_")},
    }


def _reduced(node: Node) -> Terms | None:
    over = node.dims() if node.has("dim") else range(node.rank)
    return met(node, node.x, over, node.op, keep=node.get("keepdim"))


def _added(node: Node, sign: float = 1.0) -> Terms | None:
    return added(node["self"], node["other"], sign * float(node.get("alpha", 1)))


def _subtracted(node: Node) -> Terms | None:
    terms = _added(node, -1.0)
    return terms.times(-1.0) if terms is not None and node.op == "rsub" else terms


def _detached(node: Node) -> View | None:
    """An output that a loss compares with, or that no parameter before it is trained by."""
    return node.x if node.only_compared or "self" not in node.moving else None


def _alike(node: Node) -> Any:
    items = node["tensors"]
    if len({item.shape for item in items}) > 1:
        raise CannotTakeError("the shapes of target and output differ", "use a target of the same shape")
    return list(items)


def _loss(node: Node) -> Terms:
    """A loss of PyTorch."""
    view, target = node["self"] if node.has("self") else node["input"], node["target"]
    said = {key: item for key, item in node.arguments.items() if isinstance(key, str)}
    said["reduction"] = _REDUCTIONS[said["reduction"]]
    if node.op in _SYMMETRIC and "self" not in node.moving:
        view, target = target, view
    view = node.as_view(view, "output")
    if {"self", "target"} <= node.moving:
        if node.op in ("l1_loss", "mse_loss"):
            return _of_difference(node, view, target, said["reduction"])
        raise CannotTakeError("the target of the loss depends on trained weights", "use target.detach()")
    torch = require_extra("torch")
    for key in ("weight", "pos_weight"):
        if said.get(key) is not None:
            said[key] = torch.from_numpy(node.needed(key).value)
    try:
        spec = spec_of(torch, node.op, said, view.shape)
    except UnsupportedLayerError as error:
        raise CannotTakeError(error.message, error.cure or "") from None
    options = dict(spec.options)
    weight = options.pop("weight", 1.0)
    return Terms((Term(spec.name, options, view, node.as_view(target, "target"), weight),))


def _of_difference(node: Node, left: View, right: View, reduction: str) -> Terms:
    """Of two outputs that are trained alike: of the layers that a loss of one output stands for."""
    apart = difference(node, left, right)
    error = applied(node, "absolute", apart) if node.op == "l1_loss" else power(node, apart, 2)
    return Terms((Term("output", {"reduction": reduction}, error),))

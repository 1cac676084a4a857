# SPDX-License-Identifier: Apache-2.0
"""A loss written in PyTorch, captured with the module: what its ops become, and the losses it is a sum of.

A loss of PyTorch that is one of ours stays one. What a script computes itself is layers, and at the end a
mean or a sum over all samples, the loss `output`. Such numbers may be added, and multiplied by numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from configs.errors import UnsupportedLayerError
from configs.model_file import LossSpec
from importers.extras import require_extra
from importers.graph.arranging import Site
from importers.graph.draft import CannotTakeError, Draft, elements
from importers.graph.node import Handler, Node
from importers.graph.terms import Term, Terms
from importers.graph.views import BATCH, View
from importers.place.pairs import applied, difference, number_of, power, scaled, shifted
from importers.torch.losses import spec_of

_LOSSES: Mapping[str, str] = {
    "binary_cross_entropy": "binary_cross_entropy",
    "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
    "cross_entropy_loss": "cross_entropy",
    "hinge_embedding_loss": "hinge_embedding_loss",
    "huber_loss": "huber_loss",
    "kl_div": "kl_div",
    "l1_loss": "l1_loss",
    "mse_loss": "mse_loss",
    "nll_loss": "nll_loss",
    "nll_loss_nd": "nll_loss",
    "poisson_nll_loss": "poisson_nll_loss",
    "smooth_l1_loss": "smooth_l1_loss",
    "soft_margin_loss": "soft_margin_loss",
}
"""ATen op -> function of torch.nn.functional, which `losses` knows."""

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

_NO_LOSS = "is a loss of all samples, which the network cannot read"


def handlers(plain: Mapping[str, Handler]) -> dict[str, Handler]:
    """`plain` and those of losses; where an op may be either, it is a loss where all samples meet."""
    either: dict[str, Callable[[Node], Any]] = {
        "mean": _reduced,
        "sum": _reduced,
        "add": _added,
        "sub": _subtracted,
        "rsub": _subtracted,
        "mul": _multiplied,
        "div": _divided,
        "neg": lambda node: node["self"].times(-1.0) if isinstance(node["self"], Terms) else None,
    }
    return {
        **plain,
        **{op: _over(special, plain.get(op)) for op, special in either.items()},
        **dict.fromkeys(_LOSSES, _loss),
        "broadcast_tensors": _alike,
        **{op: _over(_detached, plain[op]) for op in ("detach", "detach_")},
    }


def _over(special: Callable[[Node], Any], plain: Handler | None) -> Handler:
    def read(node: Node) -> Any:
        found = special(node)
        if found is not None:
            return found
        if plain is None or any(isinstance(item, Terms) for item in node.arguments.values()):
            raise CannotTakeError(_NO_LOSS, "sums of losses, and products with numbers")
        return plain(node)

    return read


def _reduced(node: Node) -> Terms | None:
    """The mean or sum of everything that all samples have; None for what each sample has of its own."""
    view = node.view("self")
    dims = node.get("dim")
    over = range(len(view.dims)) if dims is None else [dim % len(view.dims) for dim in _listed(dims)]
    if not any(BATCH in view.dims[dim] for dim in over) and (view.batch > 1 or node.shape):
        return None
    if any(size != 1 for dim, size in enumerate(view.shape) if dim not in over) or node.get("keepdim"):
        raise CannotTakeError(
            "a mean or sum over the samples that leaves more than one number",
            "a mean or sum over everything, at the end of the loss",
        )
    return Terms((Term("output", {"reduction": node.op}, view),))


def _listed(dims: Any) -> list[int]:
    return list(dims) if isinstance(dims, (list, tuple)) else [dims]


def _added(node: Node, sign: float = 1.0) -> Terms | None:
    left, right = node["self"], node["other"]
    factor = sign * float(node.get("alpha", 1))
    if isinstance(left, Terms) and isinstance(right, Terms):
        return left.plus(right.times(factor))
    if isinstance(left, Terms) and (number := number_of(right)) is not None:
        return left.plus(Terms((), factor * number))
    if isinstance(right, Terms) and (number := number_of(left)) is not None:
        return Terms((), number).plus(right.times(factor))
    return None


def _subtracted(node: Node) -> Terms | None:
    found = _added(node, -1.0)
    return found.times(-1.0) if found is not None and node.op == "rsub" else found


def _multiplied(node: Node) -> Terms | None:
    for one, other in ((node["self"], node["other"]), (node["other"], node["self"])):
        if isinstance(one, Terms) and (number := _number(other)) is not None:
            return one.times(number)
    return None


def _divided(node: Node) -> Terms | None:
    number = _number(node["other"])
    if not isinstance(node["self"], Terms) or not number or node.get("rounding_mode"):
        return None
    return node["self"].times(1 / number)


def _number(item: Any) -> float | None:
    return None if isinstance(item, Terms) else number_of(item)


def _detached(node: Node) -> View | None:
    """An output that a loss compares with, or that no parameter before it is trained by."""
    return node.view("self") if node.only_compared or "self" not in node.moving else None


def _alike(node: Node) -> Any:
    items = node["tensors"]
    if len({item.shape for item in items}) > 1:
        raise CannotTakeError("a target of another shape than the output", "a target of the same shape")
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
        raise CannotTakeError(
            "a target that is trained as well", "target.detach(), or the formula written out"
        )
    torch = require_extra("torch")
    for key in ("weight", "pos_weight"):
        if said.get(key) is not None:
            said[key] = torch.from_numpy(node.needed(key).value)
    try:
        spec = spec_of(torch, _LOSSES[node.op], said, view.shape)
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


def specs(draft: Draft, terms: Terms) -> list[tuple[LossSpec, View, View | None]]:
    """The losses, and the output and target of each as they are stored; the constant is in one of them.

    Raises UnsupportedLayerError for what cannot be a sum of losses with weights above 0.
    """
    items = [
        _positive(draft, item, number) for number, item in enumerate(terms.items, start=1) if item.weight
    ]
    if terms.constant:
        index = next((index for index, item in enumerate(items) if item.name == "output"), None)
        if index is None:
            raise UnsupportedLayerError(
                f"the number {terms.constant:g} is added to the loss",
                where="loss",
                cure="the loss without it",
            )
        items[index] = _with(draft, items[index], terms.constant)
    if not items:
        raise UnsupportedLayerError(
            "the loss does not depend on the module", where="loss", cure="one that does"
        )
    return [(_spec(item), item.view, item.target) for item in items]


def _spec(item: Term) -> LossSpec:
    weight = {} if item.weight == 1 else {"weight": item.weight}
    return LossSpec(item.name, {**item.options, **weight}, "loss")


def _positive(draft: Draft, item: Term, number: int) -> Term:
    """With a weight above 0: a sum of negatives is the negative of a sum."""
    if item.weight > 0:
        return item
    if item.name != "output":
        raise UnsupportedLayerError(
            f"the loss {item.name} is subtracted",
            where="loss",
            cure="a weight above 0, or the formula written out",
        )
    turned = scaled(Site(draft, f"loss_{number}", "loss"), item.view, -1.0, suffix="_turned")
    return replace(item, view=turned, weight=-item.weight)


def _with(draft: Draft, item: Term, constant: float) -> Term:
    """A loss that is the output itself, with a constant as part of it."""
    share = constant / item.weight
    if item.options["reduction"] == "sum":
        share /= elements(item.view.shape)
    return replace(item, view=shifted(Site(draft, "loss", "loss"), item.view, share, suffix="_constant"))

# SPDX-License-Identifier: Apache-2.0
"""ATen ops that are matrix products: matmul, einsum, scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np

from importers.graph.draft import CannotTakeError
from importers.graph.node import Handler, Node
from importers.graph.views import View
from importers.graph.weights import Constant
from importers.place.elements import softmax
from importers.place.pairs import applied, scaled, with_constant
from importers.place.products import bilinear, einsum, multiplied, product, running_sum
from importers.torch.elements import LARGE, before_softmax


def _matmul(node: Node) -> View:
    names = [name for name in ("self", "other", "mat2", "vec", "tensor") if name in node.arguments]
    left, right = (node[name] for name in names[:2])
    return multiplied(node, left, right)


def _attention(node: Node) -> View:
    query, key, value = (node.view(name) for name in ("query", "key", "value"))
    if node.get("enable_gqa"):
        raise CannotTakeError(
            "fewer key heads than query heads are not supported", "use equal numbers of heads"
        )
    factor = node.get("scale", 1 / sqrt(query.shape[-1]))
    rank = len(key.dims)
    scores = product(node, query, key.swapped(rank - 2, rank - 1), suffix="_scores")
    scores = scaled(node, scores, factor, suffix="_scale")
    mask = node.get("attn_mask")
    if node["is_causal"]:
        mask = Constant(np.tril(np.ones(scores.shape[-2:], bool)))
    if isinstance(mask, Constant):
        scores = with_constant(node, "add", scores, _added(mask), suffix="_mask")
    elif mask is not None:
        raise CannotTakeError(
            "the attention mask must not depend on the network's input",
            "use a buffer, or compute the mask from sizes",
        )
    weights = softmax(node, scores, len(scores.dims) - 1, suffix="_softmax")
    if node["dropout_p"]:
        weights = applied(node, "dropout", weights, {"p": node["dropout_p"]}, suffix="_dropout")
    return product(node, weights, value)


def _added(mask: Constant) -> Constant:
    """What a mask adds to scores: of one that says which keys are seen, 0 where one is."""
    if mask.value.dtype != bool:
        return before_softmax(mask)
    if not mask.value.any(axis=-1).all():
        raise CannotTakeError("the attention mask hides all keys of a query", "leave a key for each query")
    return Constant(np.where(mask.value, 0, -LARGE).astype(np.float32))


def _in_one(node: Node) -> Any:
    raise CannotTakeError("a sum and a product in one op are not supported", "use a product, then an add")


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("matmul", "mm", "mv", "dot", "vdot", "bmm"), _matmul),
    "baddbmm": _in_one,
    "einsum": lambda node: einsum(node, node["equation"], node["tensors"]),
    "cumsum": lambda node: running_sum(node, node.x, node.dim()),
    "bilinear": lambda node: bilinear(
        node, node.x, node.view("input2"), node.needed("weight"), node.constant("bias")
    ),
    "scaled_dot_product_attention": _attention,
}

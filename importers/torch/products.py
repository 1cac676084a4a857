# SPDX-License-Identifier: Apache-2.0
"""ATen ops that are matrix products: matmul, einsum, scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from importers.graph.arranging import viewed
from importers.graph.draft import CannotTakeError, elements
from importers.graph.node import Handler, Node
from importers.graph.views import View
from importers.graph.weights import Constant
from importers.place.elements import softmax
from importers.place.pairs import applied, scaled, with_constant
from importers.place.products import bilinear, linear, multiplied, product
from importers.torch.elements import LARGE, before_softmax


def _matmul(node: Node) -> View:
    names = [name for name in ("self", "other", "mat2", "vec", "tensor") if name in node.arguments]
    left, right = (node[name] for name in names[:2])
    return multiplied(node, left, right)


def _einsum(node: Node) -> View:
    equation, operands = node["equation"].replace(" ", ""), node["tensors"]
    if "..." in equation or len(operands) != 2:
        raise CannotTakeError(f"einsum '{equation}'", "use two operands, with every dimension named")
    terms, _, result = equation.partition("->")
    words = terms.split(",")
    result = result or "".join(
        sorted(letter for letter in set("".join(words)) if "".join(words).count(letter) == 1)
    )
    if any(len(set(word)) != len(word) for word in (*words, result)):
        raise CannotTakeError(f"einsum '{equation}' with a diagonal", "matmul")
    if isinstance(operands[0], Constant):
        words, operands = words[::-1], operands[::-1]
    first, second = words
    shared = [letter for letter in first if letter in second and letter in result]
    inner = [letter for letter in first if letter in second and letter not in result]
    rows = [letter for letter in first if letter not in second]
    columns = [letter for letter in second if letter not in first]
    if any(letter not in result for letter in (*rows, *columns)):
        raise CannotTakeError(f"einsum '{equation}' with an extra sum", "sum first, then multiply")
    view = node.as_view(operands[0])
    sizes = dict(zip(first, view.shape, strict=True)) | dict(zip(second, operands[1].shape, strict=True))

    def joined(operand: View, word: str, *groups: Sequence[str]) -> View:
        order = [word.index(letter) for group in groups for letter in group]
        shape = [sizes[letter] for letter in groups[0]]
        shape += [elements([sizes[letter] for letter in group]) for group in groups[1:]]
        return viewed(node, operand.permuted(order), shape)

    if isinstance(operands[1], Constant):
        if shared:
            raise CannotTakeError(f"einsum '{equation}' with a parameter element by element", "mul")
        order = [second.index(letter) for letter in (*columns, *inner)]
        outputs = elements([sizes[letter] for letter in columns])
        matrix = operands[1].moved(lambda array: array.transpose(order).reshape(outputs, -1))
        made = linear(node, joined(view, first, rows, inner), matrix, None)
    else:
        left = joined(view, first, shared, rows, inner)
        made = product(node, left, joined(node.as_view(operands[1]), second, shared, inner, columns))
    every = (*shared, *rows, *columns)
    seen = viewed(node, made, [sizes[letter] for letter in every])
    return seen.permuted([every.index(letter) for letter in result])


def _attention(node: Node) -> View:
    query, key, value = (node.view(name) for name in ("query", "key", "value"))
    if node.get("enable_gqa"):
        raise CannotTakeError("fewer heads of keys than of queries", "the same number of heads")
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
            "an attention mask that is computed from the input",
            "a registered buffer, or a mask computed from sizes",
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
        raise CannotTakeError("a query with all keys masked", "a mask with a key for each query")
    return Constant(np.where(mask.value, 0, -LARGE).astype(np.float32))


def _in_one(node: Node) -> Any:
    raise CannotTakeError("a combined sum and product", "a product, then an add")


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(("matmul", "mm", "mv", "dot", "vdot", "bmm"), _matmul),
    **dict.fromkeys(("baddbmm", "addcmul"), _in_one),
    "einsum": _einsum,
    "bilinear": lambda node: bilinear(
        node, node.x, node.view("input2"), node.needed("weight"), node.constant("bias")
    ),
    "scaled_dot_product_attention": _attention,
}

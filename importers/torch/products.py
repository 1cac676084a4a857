# SPDX-License-Identifier: Apache-2.0
"""ATen ops that are matrix products: matmul, einsum, scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np

from importers.graph.arranging import in_order, viewed
from importers.graph.draft import CannotTakeError, Given, elements
from importers.graph.views import BATCH, Shape, View
from importers.place.pairs import with_constant
from importers.torch.capture import NEAREST, Call, Constant, register
from importers.torch.elements import LARGE, before_softmax, scaled, softmax
from importers.torch.layers import linear

NEAREST.update(
    {"bilinear": "matmul and linear", "cdist": "matmul", "linalg_vector_norm": "square, sum, sqrt"}
)


def product(call: Call, left: View, right: View, *, suffix: str = "") -> View:
    """[..., n, k] times [..., k, m], leading dimensions repeated to each other's, the batch among them."""
    lead = max(len(left.dims), len(right.dims)) - 2
    while len(left.dims) < lead + 2:
        left = left.with_dim(0)
    while len(right.dims) < lead + 2:
        right = right.with_dim(0)
    for view in (left, right):
        if any(BATCH in dim for dim in view.dims[-2:]) and view.batch > 1:
            raise CannotTakeError("a product that mixes samples", "the batch among the leading dimensions")
    # Leading dimensions without those that count samples, which both have in the same place.
    pieces = [[piece for dim in view.dims[:-2] for piece in dim if piece != BATCH] for view in (left, right)]
    sizes = [[view.pieces[piece] for piece in own] for view, own in zip((left, right), pieces, strict=True)]
    same = _leading(left) == _leading(right)
    if not same:
        left, right = _aligned(call, left, right)
        pieces = [
            [piece for dim in view.dims[:-2] for piece in dim if piece != BATCH] for view in (left, right)
        ]
        own_sizes = [_lead_sizes(view) for view in (left, right)]
    else:
        own_sizes = [(elements(own),) if own else () for own in sizes]
    # A second operand that lies transposed is read so.
    turned = _lies(right, pieces[1], right.dims[-2], right.dims[-1]) > _lies(
        right, pieces[1], right.dims[-1], right.dims[-2]
    )
    last = (right.dims[-1], right.dims[-2]) if turned else (right.dims[-2], right.dims[-1])
    words = []
    for view, own, matrix, leading in (
        (left, pieces[0], left.dims[-2:], own_sizes[0]),
        (right, pieces[1], last, own_sizes[1]),
    ):
        groups = [*([own] if own else []), *matrix]
        word = call.stored(view, groups)
        shape = (view.batch, *leading, *(view.size(dim) for dim in matrix))
        words.append(call.draft.reshaped(word, shape, call.name, call.where))
    made = call.layer("matmul", words, {"transpose_b": True} if turned else {}, suffix=suffix)
    return _seen(made, left, right, same=same)


def _leading(view: View) -> list[tuple[int, ...]]:
    """The pieces of the leading dimensions by size; -1 where several samples are counted."""
    return [
        tuple(-1 if piece == BATCH else view.pieces[piece] for piece in dim if view.pieces[piece] > 1)
        for dim in view.dims[:-2]
    ]


def _batch_place(view: View) -> int | None:
    return view.batch_dim if view.batch > 1 else None


def _lead_sizes(view: View) -> Shape:
    return tuple(
        size for index, size in enumerate(view.shape[:-2]) if index != view.batch_dim or view.batch == 1
    )


def _aligned(call: Call, left: View, right: View) -> tuple[View, View]:
    """Both in the order they are seen; the batch, if any, must be a dimension of its own and the same."""
    found = []
    for view in (left, right):
        if view.batch > 1 and (view.batch_dim is None or not view.samples_only(view.batch_dim)):
            raise CannotTakeError("leading dimensions with samples merged into them", "the batch in front")
        found.append(in_order(call, view) if any(len(dim) > 1 for dim in view.dims[:-2]) else view)
    if _batch_place(found[0]) != _batch_place(found[1]):
        raise CannotTakeError("operands with the batch in different dimensions", "the batch in front")
    return found[0], found[1]


def _lies(view: View, lead: Sequence[int], first: Sequence[int], second: Sequence[int]) -> int:
    """How many transposes this order of the pieces needs: 0 or 1."""
    flat = [*lead, *first, *second]
    return int(flat != sorted(flat))


def _seen(made: View, left: View, right: View, *, same: bool) -> View:
    """The product [batch, leading..., n, m] as the module sees it."""
    n, m = left.size(left.dims[-2]), right.size(right.dims[-1])
    if same:
        own = [piece for dim in left.dims[:-2] for piece in dim if piece != BATCH]
        number = {BATCH: BATCH} | {piece: 1 + index for index, piece in enumerate(own)}
        pieces = [left.batch, *(left.pieces[piece] for piece in own)]
        dims = [tuple(number[piece] for piece in dim) for dim in left.dims[:-2]]
    else:
        shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        batch_dim = _batch_place(left)
        pieces, dims = [left.batch], []
        for index, size in enumerate(shape):
            if index == batch_dim:
                dims.append((BATCH,))
            else:
                dims.append((len(pieces),) if size > 1 else ())
                pieces += [size] if size > 1 else []
    for size in (n, m):
        dims.append((len(pieces),) if size > 1 else ())
        pieces += [size] if size > 1 else []
    return View(made.word, made.stored, tuple(pieces), tuple(dims))


def multiplied(call: Call, left: Any, right: Any) -> View:
    """matmul by PyTorch's rules; an operand that is a constant or a parameter becomes a linear layer."""
    if isinstance(left, View) and isinstance(right, View):
        drop_left, drop_right = len(left.dims) == 1, len(right.dims) == 1
        left = left.with_dim(0) if drop_left else left
        right = right.with_dim(1) if drop_right else right
        found = product(call, left, right)
        if drop_right:
            found = found.without_dim(len(found.dims) - 1)
        return found.without_dim(len(found.dims) - 2) if drop_left else found
    if isinstance(left, View):
        matrix = _matrix(call, right)
        column = matrix.value.ndim == 1
        weights = matrix.moved(lambda array: array.reshape(1, -1) if column else array.T)
        made = linear(call, left, weights, None)
        return made.without_dim(len(made.dims) - 1) if column else made
    matrix = _matrix(call, left)
    row = matrix.value.ndim == 1
    weights = matrix.moved(lambda array: array.reshape(1, -1)) if row else matrix
    view = call.as_view(right)
    last = len(view.dims) - 1
    made = linear(call, view.swapped(last - 1, last), weights, None).swapped(last - 1, last)
    return made.without_dim(last - 1) if row else made


def _matrix(call: Call, found: Any) -> Given:
    given = call.as_given(found, "matrix")
    assert given is not None
    while given.value.ndim > 2 and given.value.shape[0] == 1:
        given = given.moved(lambda array: array[0])
    if given.value.ndim > 2:
        raise CannotTakeError("a stack of matrices as a parameter", "one matrix (linear) for each")
    return given


@register("matmul", "mm", "mv", "dot")
def _matmul(call: Call) -> Any:
    names = [name for name in ("self", "other", "mat2", "vec", "tensor") if name in call.arguments]
    left, right = (call[name] for name in names[:2])
    return multiplied(call, left, right)


@register("bmm")
def _bmm(call: Call) -> Any:
    return multiplied(call, call["self"], call["mat2"])


@register("baddbmm")
def _baddbmm(call: Call) -> Any:
    raise CannotTakeError("a sum and a product in one", "bmm and add")


@register("einsum")
def _einsum(call: Call) -> Any:
    equation, operands = call["equation"].replace(" ", ""), call["tensors"]
    if "..." in equation or len(operands) != 2:
        raise CannotTakeError(f"einsum '{equation}'", "two operands, every dimension named")
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
        raise CannotTakeError(f"einsum '{equation}' with a sum of its own", "sum first, then a product")
    view = call.as_view(operands[0])
    sizes = dict(zip(first, view.shape, strict=True)) | dict(zip(second, operands[1].shape, strict=True))

    def joined(found: View, word: str, *groups: Sequence[str]) -> View:
        order = [word.index(letter) for group in groups for letter in group]
        shape = [sizes[letter] for letter in groups[0]]
        shape += [elements([sizes[letter] for letter in group]) for group in groups[1:]]
        return viewed(call, found.permuted(order), shape)

    if isinstance(operands[1], Constant):
        if shared:
            raise CannotTakeError(f"einsum '{equation}' with a parameter element by element", "mul")
        order = [second.index(letter) for letter in (*columns, *inner)]
        outputs = elements([sizes[letter] for letter in columns])
        matrix = operands[1].given().moved(lambda array: array.transpose(order).reshape(outputs, -1))
        made = linear(call, joined(view, first, rows, inner), matrix, None)
        found = viewed(call, made, [sizes[letter] for letter in (*rows, *columns)])
        return found.permuted([(*rows, *columns).index(letter) for letter in result])
    left = joined(view, first, shared, rows, inner)
    right = joined(call.as_view(operands[1]), second, shared, inner, columns)
    found = viewed(call, product(call, left, right), [sizes[item] for item in (*shared, *rows, *columns)])
    return found.permuted([(*shared, *rows, *columns).index(letter) for letter in result])


@register("scaled_dot_product_attention")
def _attention(call: Call) -> Any:
    query, key, value = (call.view(name) for name in ("query", "key", "value"))
    if call["dropout_p"]:
        raise CannotTakeError("dropout of the weights of attention", "dropout_p=0, Dropout around it")
    if call.get("enable_gqa"):
        raise CannotTakeError("fewer heads of keys than of queries", "as many heads of each")
    scale = call.get("scale")
    factor = scale if scale is not None else 1 / sqrt(query.shape[-1])
    rank = len(key.dims)
    scores = product(call, query, key.swapped(rank - 2, rank - 1), suffix="_scores")
    scores = scaled(call, scores, factor, suffix="_scale")
    mask = call.get("attn_mask")
    if call["is_causal"]:
        rows, columns = scores.shape[-2:]
        seen = np.tril(np.ones((rows, columns), bool))
        scores = with_constant(call, "add", scores, _mask(seen), suffix="_mask")
    elif isinstance(mask, Constant):
        array = mask.given().value
        if array.dtype == bool and not array.any(axis=-1).all():
            raise CannotTakeError("a query that sees no key", "a mask with a key for each query")
        given = _mask(array) if array.dtype == bool else before_softmax(mask.given())
        scores = with_constant(call, "add", scores, given, suffix="_mask")
    elif mask is not None:
        raise CannotTakeError("a mask that is computed", "a mask that is a buffer or made of sizes")
    weights = softmax(call, scores, len(scores.dims) - 1, suffix="_softmax")
    return product(call, weights, value)


def _mask(seen: Any) -> Given:
    """What is added to scores: 0 where a key is seen."""
    return Given(np.where(seen, 0, -LARGE).astype(np.float32))

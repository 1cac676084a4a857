# SPDX-License-Identifier: Apache-2.0
"""Products of matrices as layers of ours, of activations and of weights, and tables of weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from configs.values import replace
from importers.graph.arranging import Site, in_order, regrouped, rows, viewed
from importers.graph.draft import CannotTakeError, elements
from importers.graph.views import BATCH, Shape, View
from importers.graph.weights import Constant
from importers.place.convolution import biased
from importers.place.moves import chosen
from importers.place.pairs import total, wider
from trainlib.ir.steps import Array


def linear(site: Site, view: View, weight: Constant, bias: Constant | None, *, suffix: str = "") -> View:
    """Every row of the last dimension times the rows of a matrix [out, in]."""
    word, rest = rows(site, view, len(view.dims) - 1)
    made = biased(site, "linear", word, {"out_features": weight.shape[0]}, weight, bias, suffix=suffix)
    return regrouped(view, made, rest, weight.shape[0])


def multiplied(site: Site, left: Any, right: Any, *, as_stored: bool = False) -> View:
    """matmul, of which one operand at least is an activation; one that is constant becomes a linear layer.

    `as_stored` as for `product`.
    """
    if isinstance(left, View) and isinstance(right, View):
        drop_left, drop_right = len(left.dims) == 1, len(right.dims) == 1
        left = left.with_dim(0) if drop_left else left
        right = right.with_dim(1) if drop_right else right
        made = product(site, left, right, as_stored=as_stored)
        made = made.without_dim(len(made.dims) - 2) if drop_left else made
        return made.without_dim(len(made.dims) - 1) if drop_right else made
    if isinstance(left, View):
        matrix = _matrix(right)
        column = len(matrix.shape) == 1
        made = linear(
            site, left, matrix.moved(lambda array: array.reshape(1, -1) if column else array.T), None
        )
        return made.without_dim(len(made.dims) - 1) if column else made
    matrix = _matrix(left)
    row = len(matrix.shape) == 1
    last = len(right.dims) - 1
    weights = matrix.moved(lambda array: array.reshape(1, -1)) if row else matrix
    made = along(site, right, last - 1, weights)
    return made.without_dim(max(last - 1, 0)) if row else made


def along(site: Site, view: View, dim: int, matrix: Constant, *, suffix: str = "") -> View:
    """A product of a matrix [outputs, inputs] with one dimension of an activation."""
    last = len(view.dims) - 1
    return linear(site, view.swapped(dim, last), matrix, None, suffix=suffix).swapped(dim, last)


def bilinear(site: Site, left: View, right: View, weight: Constant, bias: Constant | None) -> View:
    """left · W · right for each matrix of a weight [outputs, features of left, features of right]."""
    outputs, _, columns = weight.shape
    rows_of_both = weight.moved(lambda array: array.swapaxes(1, 2).reshape(outputs * columns, -1))
    half = viewed(site, linear(site, left, rows_of_both, None), (*left.shape[:-1], outputs, columns))
    made = product(site, half, right.with_dim(len(right.dims)), suffix="_product")
    made = made.without_dim(len(made.dims) - 1)
    return total(site, made, bias, suffix="_bias") if bias is not None else made


def einsum(site: Site, equation: str, operands: Sequence[Any]) -> View:
    """Two operands by an equation, as a product of matrices; one that is constant becomes a linear layer."""
    equation = equation.replace(" ", "")
    if "..." in equation or len(operands) != 2:
        raise CannotTakeError(
            f"einsum '{equation}' is not supported", "use two operands, name every dimension"
        )
    terms, _, result = equation.partition("->")
    words = terms.split(",")
    result = result or "".join(
        sorted(letter for letter in set("".join(words)) if "".join(words).count(letter) == 1)
    )
    if any(len(set(word)) != len(word) for word in (*words, result)):
        raise CannotTakeError(f"einsum '{equation}' reads a diagonal, which is not supported", "use matmul")
    if isinstance(operands[0], Constant):
        words, operands = words[::-1], operands[::-1]
    first, second = words
    ranks = [len(operand.shape) for operand in operands]
    if [len(first), len(second)] != ranks or set(result) - set(first + second):
        raise CannotTakeError(
            f"einsum '{equation}' does not fit its operands of {ranks[0]} and {ranks[1]} dimensions",
            "use a letter for every dimension of an operand",
        )
    shared = [letter for letter in first if letter in second and letter in result]
    inner = [letter for letter in first if letter in second and letter not in result]
    rows = [letter for letter in first if letter not in second]
    columns = [letter for letter in second if letter not in first]
    if any(letter not in result for letter in (*rows, *columns)):
        raise CannotTakeError(
            f"einsum '{equation}' sums within one operand, which is not supported", "sum first, then multiply"
        )
    view = operands[0]
    sizes = dict(zip(first, view.shape, strict=True)) | dict(zip(second, operands[1].shape, strict=True))

    def joined(operand: View, word: str, *groups: Sequence[str]) -> View:
        order = [word.index(letter) for group in groups for letter in group]
        shape = [sizes[letter] for letter in groups[0]]
        shape += [elements([sizes[letter] for letter in group]) for group in groups[1:]]
        return viewed(site, operand.permuted(order), shape)

    if isinstance(operands[1], Constant):
        if shared:
            raise CannotTakeError(
                f"einsum '{equation}' multiplies parameters elementwise, which is not supported", "use mul"
            )
        order = [second.index(letter) for letter in (*columns, *inner)]
        outputs = elements([sizes[letter] for letter in columns])
        matrix = operands[1].moved(lambda array: array.transpose(order).reshape(outputs, -1))
        made = linear(site, joined(view, first, rows, inner), matrix, None)
    else:
        left = joined(view, first, shared, rows, inner)
        made = product(site, left, joined(operands[1], second, shared, inner, columns))
    every = (*shared, *rows, *columns)
    seen = viewed(site, made, [sizes[letter] for letter in every])
    return seen.permuted([every.index(letter) for letter in result])


def _matrix(constant: Constant) -> Constant:
    while len(constant.shape) > 2 and constant.shape[0] == 1:
        constant = constant.moved(lambda array: array[0])
    if len(constant.shape) > 2:
        raise CannotTakeError("a stack of weight matrices is not supported", "use a linear layer per matrix")
    return constant


def product(site: Site, left: View, right: View, *, as_stored: bool = False, suffix: str = "") -> View:
    """[..., n, k] times [..., k, m], leading dimensions repeated to each other's, the batch among them.

    A second operand that lies transposed is read so: where that saves storing it anew, or, `as_stored`,
    wherever its columns lie before its rows.
    """
    lead = max(len(left.dims), len(right.dims)) - 2
    left, right = wider(left, lead + 2), wider(right, lead + 2)
    for view in (left, right):
        if any(BATCH in dim for dim in view.dims[-2:]) and view.batch > 1:
            raise CannotTakeError("the product mixes samples of the batch", "put the batch first")
    same = _leading(left) == _leading(right)
    if not same:
        left, right = _aligned(site, left, right)
    # Leading dimensions without those that count samples, which both have in the same place.
    pieces = [[piece for dim in view.dims[:-2] for piece in dim if piece != BATCH] for view in (left, right)]
    straight, across = ([*pieces[1], *first, *then] for first, then in (right.dims[-2:], right.dims[:-3:-1]))
    turned = straight != sorted(straight) and across == sorted(across)
    if as_stored:
        turned = len(right.dims[-1]) == len(right.dims[-2]) == 1 and right.dims[-1] < right.dims[-2]
    last = (right.dims[-1], right.dims[-2]) if turned else (right.dims[-2], right.dims[-1])
    words = []
    for view, outer, matrix in ((left, pieces[0], left.dims[-2:]), (right, pieces[1], last)):
        # A batch of 1 may stand in the matrix, as after a transpose without `perm`: it has no extent there.
        own = [tuple(piece for piece in dim if piece != BATCH) for dim in matrix]
        word = site.stored(view, [*([outer] if outer else []), *own])
        leading = ((view.size(outer),) if outer else ()) if same else _lead_sizes(view)
        shape = (view.batch, *leading, *(view.size(dim) for dim in matrix))
        words.append(site.reshaped(word, shape))
    made = site.layer("matmul", words, {"transpose_b": turned}, suffix=suffix)
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


def _aligned(site: Site, left: View, right: View) -> tuple[View, View]:
    """Both in the order they are seen; the batch, if any, must be a dimension of its own and the same."""
    aligned = []
    for view in (left, right):
        if view.batch > 1 and (view.batch_dim is None or not view.samples_only(view.batch_dim)):
            raise CannotTakeError("the batch is merged with another dimension", "keep the batch separate")
        aligned.append(in_order(site, view) if any(len(dim) > 1 for dim in view.dims[:-2]) else view)
    if _batch_place(aligned[0]) != _batch_place(aligned[1]):
        raise CannotTakeError("the operands have the batch in different dimensions", "put the batch first")
    return aligned[0], aligned[1]


def _seen(made: View, left: View, right: View, *, same: bool) -> View:
    """The product [batch, leading..., n, m] as the module sees it."""
    pieces, dims = [left.batch], list[tuple[int, ...]]()

    def added(size: int) -> tuple[int, ...]:
        pieces.extend([size] if size > 1 else [])
        return (len(pieces) - 1,) if size > 1 else ()

    if same:
        for dim in left.dims[:-2]:
            dims.append(tuple(BATCH if piece == BATCH else added(left.pieces[piece])[0] for piece in dim))
    else:
        for index, size in enumerate(np.broadcast_shapes(left.shape[:-2], right.shape[:-2])):
            dims.append((BATCH,) if index == _batch_place(left) else added(size))
    dims += [added(left.size(left.dims[-2])), added(right.size(right.dims[-1]))]
    return View(made.word, made.stored, tuple(pieces), tuple(dims))


def running_sum(site: Site, view: View, dim: int, *, less: bool = False, back: bool = False) -> View:
    """Sums of all elements of a dimension up to each, `less` without it, `back` from it on."""
    triangle = np.tril(np.ones((view.shape[dim],) * 2, np.float32), -1 if less else 0)
    return along(site, view, dim, Constant(triangle.T if back else triangle))


def gathered(site: Site, table: Constant, numbers: Array) -> View:
    """Rows of a weight [rows, columns] by constant numbers: [numbers, columns], one sample."""
    options: dict[str, Any] = {"shape": [numbers.size], "once": True, "integers": True}
    given = {"w": Constant(numbers.astype(np.int32).ravel())}
    held = site.layer("parameter", (site.draft.first_input,), options, given, suffix="_numbers")
    sizes = {"vocabulary": table.shape[0], "features": table.shape[1]}
    made = site.layer("embedding", (held.word,), sizes, {"w": table})
    return replace(made, dims=made.dims[1:])


def picked(site: Site, operand: Any, shape: Sequence[int], dim: int, numbers: Array) -> View:
    """Elements of a dimension of an operand, seen in a shape, by numbers; of a weight they are rows."""
    dim %= len(shape)
    if isinstance(operand, View):
        return chosen(site, viewed(site, operand, shape), dim, numbers.tolist())
    rest = [size for place, size in enumerate(shape) if place != dim]
    table = operand.moved(
        lambda array: np.moveaxis(array.reshape(shape), dim, 0).reshape(shape[dim], elements(rest))
    )
    made = viewed(site, gathered(site, table, numbers), (numbers.size, *rest))
    order = list(range(1, len(shape)))
    order.insert(dim, 0)
    return made.permuted(order)


def looked_up(site: Site, view: View, table: Constant, padding: int = -1) -> View:
    """Rows of a table [words, features] by their numbers; that of `padding` gets no gradient."""
    words, features = table.shape
    options: dict[str, Any] = {"vocabulary": words, "features": features}
    if padding >= 0:
        options["padding_id"] = padding
    made = site.layer("embedding", (in_order(site, view).word,), options, {"w": table})
    return viewed(site, made, (*view.shape, features))

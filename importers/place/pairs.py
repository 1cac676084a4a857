# SPDX-License-Identifier: Apache-2.0
"""Two operands element by element: activations of different shape, or an activation and a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from configs.values import replace
from importers.graph.arranging import Site, in_order, under
from importers.graph.draft import CHECKED, CannotTakeError, elements
from importers.graph.node import meant
from importers.graph.terms import Terms
from importers.graph.views import Shape, View
from importers.graph.weights import Constant
from importers.ops import POWERS


def applied(site: Site, kind: str, view: View, options: Any = None, *, suffix: str = "") -> View:
    """A layer of one input that works on every element alone, whatever their order."""
    return replace(view, word=site.layer(kind, (view.word,), options, suffix=suffix).word)


def scaled(site: Site, view: View, factor: float, *, suffix: str = "") -> View:
    """A number times a tensor."""
    return view if factor == 1 else applied(site, "scale", view, {"factor": float(factor)}, suffix=suffix)


def shifted(site: Site, view: View, offset: float, *, suffix: str = "") -> View:
    """A number plus a tensor."""
    return view if offset == 0 else applied(site, "shift", view, {"offset": float(offset)}, suffix=suffix)


def wider(view: View, rank: int) -> View:
    """With dimensions of size 1 in front."""
    while len(view.dims) < rank:
        view = view.with_dim(0)
    return view


def common_shape(*shapes: Sequence[int]) -> Shape:
    """What shapes are repeated to. Raises `CannotTakeError` if they do not fit."""
    try:
        return tuple(np.broadcast_shapes(*(tuple(shape) for shape in shapes)))
    except ValueError:
        texts = " and ".join(str(list(shape)) for shape in shapes)
        raise CannotTakeError(f"operands of shapes {texts} cannot be broadcast", CHECKED) from None


def _sample(view: View, batch_dim: int | None) -> Shape:
    """[batch, the other dimensions]."""
    return (view.batch, *(size for index, size in enumerate(view.shape) if index != batch_dim))


def two_operands(site: Site, kind: str, left: View, right: View, *, suffix: str = "") -> View:
    """An elementwise layer of two tensors, repeated to each other's shape where they differ."""
    rank = len(common_shape(left.shape, right.shape))
    if (left.pieces, left.dims) == (right.pieces, right.dims):
        other = site.reshaped(right.word, left.stored)
        made = site.layer(kind, (left.word, other), suffix=suffix)
        return View(made.word, made.stored, left.pieces, left.dims)
    left, right = (in_order(site, wider(view, rank)) for view in (left, right))
    if (left.pieces, left.dims) == (right.pieces, right.dims):
        return two_operands(site, kind, left, right, suffix=suffix)
    places = {view.batch_dim for view in (left, right) if view.batch_dim is not None}
    if left.batch == 1 and len(places) > 1:
        places = set()  # a single sample: dimensions of size 1 are all alike
    if len(places) > 1 or any(
        view.batch_dim is not None and not view.samples_only(view.batch_dim) for view in (left, right)
    ):
        raise CannotTakeError("the operands have the batch in different dimensions", "put the batch first")
    batch_dim = next(iter(places), None)
    shapes = [_sample(view, batch_dim) for view in (left, right)]
    words = [site.reshaped(view.word, shape) for view, shape in zip((left, right), shapes, strict=True)]
    return under(_of_words(site, kind, words, shapes, suffix), batch_dim, rank)


def _of_words(site: Site, kind: str, words: Sequence[str], shapes: Sequence[Shape], suffix: str) -> View:
    """Two stored tensors of as many dimensions, which may repeat."""
    if shapes[0] == shapes[1]:
        return site.layer(kind, words, suffix=suffix)
    if kind == "add":
        return site.layer("broadcast_add", words, suffix=suffix)
    whole = np.broadcast_shapes(*shapes)
    wide = [
        word
        if shape == whole
        else site.layer("expand", (word,), {"shape": list(whole[1:])}, suffix=f"{suffix}_expand").word
        for word, shape in zip(words, shapes, strict=True)
    ]
    return site.layer(kind, wide, suffix=suffix)


def with_constant(
    site: Site, kind: str, view: View, constant: Constant, *, turned: bool = False, suffix: str = ""
) -> View:
    """A tensor and a constant or parameter, which becomes a layer; `turned`: the constant first."""
    rank = len(common_shape(view.shape, constant.shape))
    view = wider(view, rank)
    shape, place = (1,) * (rank - len(constant.shape)) + constant.shape, view.batch_dim
    if view.batch > 1 and place is not None and not view.samples_only(place) and shape[place] == 1:
        # Windows counted with samples: each dimension alone, and together again.
        apart = tuple((piece,) for piece in view.dims[place])
        sizes = (*shape[:place], *(1,) * len(apart), *shape[place + 1 :])
        split = replace(view, dims=(*view.dims[:place], *apart, *view.dims[place + 1 :]))
        alone = constant.moved(lambda array: array.reshape(sizes))
        made = with_constant(site, kind, split, alone, turned=turned, suffix=suffix)
        merged = tuple(piece for dim in made.dims[place : place + len(apart)] for piece in dim)
        return replace(made, dims=(*made.dims[:place], merged, *made.dims[place + len(apart) :]))
    view = in_order(site, view)
    constant, sizes, batch_dim = _per_sample(constant, view)
    sample = _sample(view, batch_dim)
    if kind == "add" and sizes == sample[1:]:
        word = site.reshaped(view.word, sample)
        weights = constant.moved(lambda array: array.reshape(sizes))
        return under(site.layer("position", (word,), {}, {"w": weights}, suffix=suffix), batch_dim, rank)
    word = site.reshaped(view.word, sample)
    name = site.draft.weights.as_start(constant).source.rpartition(".")[2] or "constant"
    held = _parameter(site, constant, sizes, view, suffix=f"{suffix}_{name}")
    words, shapes = [word, held.word], [sample, held.stored]
    if turned and kind in ("subtract", "divide"):
        words, shapes = words[::-1], shapes[::-1]
    return under(_of_words(site, kind, words, shapes, suffix), batch_dim, rank)


def _per_sample(constant: Constant, like: View) -> tuple[Constant, Shape, int | None]:
    """A constant beside `like` for one sample, its sizes, and the dimension of `like` that counts samples."""
    batch_dim = like.batch_dim
    if batch_dim is not None and not like.samples_only(batch_dim):
        raise CannotTakeError(
            "a constant cannot be combined with a tensor whose batch is merged with another dimension",
            "keep the batch as a separate first dimension",
        )
    shape = (1,) * (len(like.dims) - len(constant.shape)) + constant.shape
    if like.batch == 1 and batch_dim is not None and shape[batch_dim] != 1:
        batch_dim = None  # a single sample: dimensions of size 1 are all alike
    elif batch_dim is not None and shape[batch_dim] != 1:
        aligned = constant.moved(lambda array: array.reshape(shape))
        first = aligned.moved(lambda array: array.take([0], batch_dim))
        alike = (aligned.value == first.value).all() and (
            aligned.places is None or (aligned.places == first.places).all()
        )
        constant = first if alike else constant
    sizes = tuple(size for index, size in enumerate(shape) if index != batch_dim)
    if elements(sizes) != constant.value.size:
        raise CannotTakeError("a constant that differs by sample is not supported", "use one for all samples")
    return constant, sizes, batch_dim


def _parameter(site: Site, constant: Constant, shape: Sequence[int], like: View, *, suffix: str) -> View:
    """A parameter or constant as a tensor [batch, shape], of as many samples as `like` has."""
    sizes, word = list(shape) or [1], site.draft.first_input
    weights = constant.moved(lambda array: array.reshape(sizes))
    options = {"shape": sizes, "once": like.batch != site.draft.tensors[word].shape[0]}
    return site.layer("parameter", (word,), options, {"w": weights}, suffix=suffix)


def as_view(site: Site, operand: Any, like: View, suffix: str = "_constant") -> View:
    """An operand as an activation; a constant is the same for every sample of `like`."""
    if isinstance(operand, View):
        return operand
    like = wider(like, len(operand.shape))
    operand, sizes, batch_dim = _per_sample(operand, like)
    made = _parameter(site, operand, sizes, like, suffix=suffix)
    return under(made, batch_dim, len(like.dims)) if sizes else replace(made, dims=made.dims[:1])


# By the rules of arithmetic. An operand is a view, a constant or a number.


def number_of(item: Any) -> float | None:
    """An operand that is one number, the same throughout."""
    if isinstance(item, Constant):
        return None if item.number is None else meant(item.number)
    return None if item is None or isinstance(item, (View, Terms)) else float(item)


def _number_beside(item: Any, view: Any) -> float | None:
    """An operand that is one number, and makes `view` no larger."""
    if not isinstance(view, View) or (number := number_of(item)) is None:
        return None
    shape = item.shape if isinstance(item, Constant) else ()
    return number if elements(common_shape(view.shape, shape)) == elements(view.shape) else None


def _ranked(item: Any, made: View) -> View:
    return wider(made, len(item.shape)) if isinstance(item, Constant) else made


def pair(site: Site, kind: str, left: Any, right: Any, *, suffix: str = "") -> View:
    """A layer of two operands, one of them an activation at least."""
    if isinstance(left, View) and isinstance(right, View):
        return two_operands(site, kind, left, right, suffix=suffix)
    view, constant = (left, right) if isinstance(left, View) else (right, left)
    if not isinstance(constant, Constant):
        constant = Constant(np.array(constant, np.float32))
    if not np.isfinite(constant.value).all():
        raise CannotTakeError(
            "the constant has infinities or NaN",
            "use finite numbers; only a mask before a softmax may have -inf",
        )
    return with_constant(site, kind, view, constant, turned=view is right, suffix=suffix)


def total(site: Site, left: Any, right: Any, *, suffix: str = "") -> View:
    """left + right."""
    for view, item in ((left, right), (right, left)):
        number = _number_beside(item, view)
        if number is not None:
            return _ranked(item, shifted(site, view, number, suffix=suffix))
    return pair(site, "add", left, right, suffix=suffix)


def difference(site: Site, left: Any, right: Any) -> View:
    """left - right."""
    number = _number_beside(right, left)
    if number is not None:
        return _ranked(right, shifted(site, left, -number))
    number = _number_beside(left, right)
    if number is not None:
        return _ranked(left, shifted(site, scaled(site, right, -1, suffix="_scale"), number))
    if isinstance(right, Constant) and not right.trained:
        return total(site, left, replace(right, value=-right.value.astype(np.float32)))
    return pair(site, "subtract", left, right)


def times(site: Site, left: Any, right: Any) -> View:
    """left · right."""
    for view, item in ((left, right), (right, left)):
        number = _number_beside(item, view)
        if number is not None:
            return _ranked(item, scaled(site, view, number))
    if left is right or (isinstance(left, View) and left == right):
        return applied(site, "square", left)
    return pair(site, "multiply", left, right)


def quotient(site: Site, left: Any, right: Any) -> View:
    """left / right."""
    if isinstance(right, View):
        number = _number_beside(left, right)
        if number is None:
            return pair(site, "divide", left, right)
        return _ranked(left, scaled(site, applied(site, "reciprocal", right), number, suffix="_scale"))
    if isinstance(right, Constant) and right.trained:
        return pair(site, "divide", left, right)
    value = right.value.astype(np.float64) if isinstance(right, Constant) else np.float64(right)
    if not np.all(value):
        raise CannotTakeError("the node divides by 0", "use a divisor other than 0")
    number = _number_beside(right, left)
    if number is not None:
        return _ranked(right, scaled(site, left, 1 / number))
    return pair(site, "multiply", left, Constant(np.asarray(1 / value, np.float32)))


def power_of(exponent: float) -> tuple[str, dict[str, float]]:
    """The layer for a power, and its options."""
    return (POWERS[exponent], {}) if exponent in POWERS else ("power", {"exponent": float(exponent)})


def power(site: Site, view: View, exponent: float) -> View:
    """Elements to the power of a number."""
    kind, options = power_of(exponent)
    return view if exponent == 1 else applied(site, kind, view, options)


LEAST = float(np.finfo(np.float32).tiny)
"""What the root of a sum is taken of at least: then a vector of zeros has the gradient 0, as in PyTorch."""


def root(site: Site, view: View, order: float) -> View:
    """The root of sums of powers."""
    return power(site, applied(site, "clip", view, {"low": LEAST}, suffix="_least"), 1 / order)

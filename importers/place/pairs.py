# SPDX-License-Identifier: Apache-2.0
"""Two operands element by element: activations of different shape, or an activation and a constant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from importers.graph.arranging import Site, in_order, under
from importers.graph.draft import CannotTakeError, Given, elements
from importers.graph.views import Shape, View


def wider(view: View, rank: int) -> View:
    """With dimensions of size 1 in front."""
    while len(view.dims) < rank:
        view = view.with_dim(0)
    return view


def _sample(view: View, batch_dim: int | None) -> Shape:
    """[batch, the other dimensions]."""
    return (view.batch, *(size for index, size in enumerate(view.shape) if index != batch_dim))


def two_operands(site: Site, kind: str, left: View, right: View, shape: Shape, *, suffix: str = "") -> View:
    """An elementwise layer of two tensors, repeated to each other's shape where they differ."""
    if (left.pieces, left.dims) == (right.pieces, right.dims):
        other = site.draft.reshaped(right.word, left.stored, site.name, site.where)
        made = site.layer(kind, (left.word, other), suffix=suffix)
        return View(made.word, made.stored, left.pieces, left.dims)
    left, right = (in_order(site, wider(view, len(shape))) for view in (left, right))
    if (left.pieces, left.dims) == (right.pieces, right.dims):
        return two_operands(site, kind, left, right, shape, suffix=suffix)
    places = {view.batch_dim for view in (left, right) if view.batch_dim is not None}
    if left.batch == 1 and len(places) > 1:
        places = set()  # a single sample: dimensions of size 1 are all alike
    if len(places) > 1 or any(
        view.batch_dim is not None and not view.samples_only(view.batch_dim) for view in (left, right)
    ):
        raise CannotTakeError("operands with the batch in different dimensions", "the batch in front")
    batch_dim = next(iter(places), None)
    shapes = [_sample(view, batch_dim) for view in (left, right)]
    words = tuple(
        site.draft.reshaped(view.word, own, site.name, site.where)
        for view, own in zip((left, right), shapes, strict=True)
    )
    return under(_of_words(site, kind, words, shapes, suffix), batch_dim, len(shape))


def _of_words(site: Site, kind: str, words: Sequence[str], shapes: Sequence[Shape], suffix: str = "") -> View:
    """Two stored tensors of as many dimensions, which may repeat."""
    if shapes[0] == shapes[1]:
        return site.layer(kind, words, suffix=suffix)
    if kind == "add":
        return site.layer("broadcast_add", words, suffix=suffix)
    whole = np.broadcast_shapes(*shapes)
    wide = [
        word
        if own == whole
        else site.layer("expand", (word,), {"shape": list(whole[1:])}, suffix=f"{suffix}_expand").word
        for word, own in zip(words, shapes, strict=True)
    ]
    return site.layer(kind, wide, suffix=suffix)


def with_constant(
    site: Site, kind: str, view: View, given: Given, *, turned: bool = False, suffix: str = ""
) -> View:
    """A tensor and a constant or parameter, which becomes a layer; `turned`: the constant first."""
    rank = max(len(view.dims), given.value.ndim)
    view = in_order(site, wider(view, rank))
    batch_dim = view.batch_dim
    if batch_dim is not None and not view.samples_only(batch_dim):
        raise CannotTakeError("a constant for samples merged with other dimensions", "the batch in front")
    shape = (1,) * (rank - given.value.ndim) + given.value.shape
    own = tuple(size for index, size in enumerate(shape) if index != batch_dim)
    if elements(own) != given.value.size:
        raise CannotTakeError("a constant that differs from sample to sample", "one that is the same for all")
    weights = given.moved(lambda array: array.reshape(own))
    sample = _sample(view, batch_dim)
    word = site.draft.reshaped(view.word, sample, site.name, site.where)
    if kind == "add" and own == sample[1:]:
        made = site.layer("position", (word,), {}, {"w": weights}, suffix=suffix)
        return under(made, batch_dim, rank)
    whole = np.broadcast_shapes(own, sample[1:])
    held = constant(site, weights, suffix=f"{suffix}_{_short_name(given)}")
    words, shapes = [word, held], [sample, (view.batch, *own)]
    if turned and kind in ("subtract", "divide"):
        words, shapes = words[::-1], shapes[::-1]
    made = _of_words(site, kind, words, shapes, suffix)
    assert made.stored[1:] == whole
    return under(made, batch_dim, rank)


def _short_name(given: Given) -> str:
    return given.source.rpartition(".")[2] or "constant"


def constant(site: Site, given: Given, *, suffix: str) -> str:
    """The word of a parameter or constant [dims] as a tensor [batch, dims]."""
    shape = list(given.value.shape) or [1]
    held = given.moved(lambda array: array.reshape(shape))
    return site.layer("parameter", ("input",), {"shape": shape}, {"w": held}, suffix=suffix).word

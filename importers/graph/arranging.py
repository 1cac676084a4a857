# SPDX-License-Identifier: Apache-2.0
"""Activations put into the order a layer needs: what views cannot say is stored anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from configs.values import replace
from importers.graph.draft import CannotTakeError, Draft
from importers.graph.views import BATCH, Shape, View, neighbours
from importers.graph.weights import Constant

MOST_AXES = 5
"""Dimensions of a sample that a strided copy walks."""


@dataclass(frozen=True)
class Site:
    """Where layers are added: the draft, and the name and place of the node they are for."""

    draft: Draft
    name: str
    where: str

    def layer(
        self,
        kind: str,
        inputs: Sequence[str],
        options: Mapping[str, Any] | None = None,
        given: Mapping[str, Constant | None] | None = None,
        *,
        suffix: str = "",
    ) -> View:
        """Add a layer with one output, called by the name of the node and a suffix."""
        lent = {
            role: computed_word(self, item)
            for role, item in (given or {}).items()
            if item is not None and item.made is not None
        }
        (made,) = self.draft.layer(
            kind, self.name + suffix, inputs, options, given, where=self.where, lent=lent
        )
        return made

    def stored(self, view: View, order: Sequence[Sequence[int]]) -> str:
        """The word of a tensor with the batch first and one dimension for each of these groups of pieces.

        `order` has every piece but the batch once. Adds a transpose, and reshapes, where the elements do not
        lie so yet; each such tensor is made once.
        """
        flat = [piece for group in order for piece in group]
        assert sorted(flat) == list(range(1, len(view.pieces))), (view, order)
        wanted = (view.batch, *(view.size(group) for group in order)) if order else (view.batch, 1)
        word = view.word if flat == sorted(flat) else self._transposed(view, flat)
        return self.reshaped(word, wanted)

    def _transposed(self, view: View, flat: Sequence[int]) -> str:
        made, key = self.draft.made, (view.word, view.pieces, tuple(flat))
        if key not in made:
            runs = neighbours(flat)
            if len(runs) > MOST_AXES:  # a copy that puts one run in its place, then those for the others
                moved = next(run for run, there in zip(runs, sorted(runs), strict=True) if run != there)
                first = [*flat[: flat.index(moved[0])], *moved]
                first += [piece for piece in sorted(flat) if piece not in first]
                word = self.stored(view, [[piece] for piece in first])
                sizes = (view.batch, *(view.pieces[piece] for piece in first))
                lying = View(word, self.draft.tensors[word].shape, sizes, ())
                return self._transposed(lying, [1 + first.index(piece) for piece in flat])
            placed = sorted(runs)
            word = self.reshaped(view.word, (view.batch, *map(view.size, placed)))
            axes = [placed.index(run) for run in runs]
            made[key] = self.layer("transpose", (word,), {"axes": axes}, suffix="_transpose")
        return made[key].word

    def reshaped(self, word: str, shape: Shape) -> str:
        """The word of the same elements in another shape: a view, made once."""
        made, tensors, root = self.draft.made, self.draft.tensors, self.draft.root(word)
        if shape in (tensors[word].shape, tensors[root].shape):
            return word if tensors[word].shape == shape else root
        if (root, shape) not in made:
            kind, options = ("flatten", {}) if len(shape) == 2 else ("reshape", {"shape": list(shape[1:])})
            made[root, shape] = self.layer(kind, (root,), options, suffix=f"_{kind}")
        return made[root, shape].word


def computed_word(site: Site, constant: Constant) -> str:
    """The word of what layers compute of weights, [1, shape of the constant], its elements in that order."""
    view, places = constant.made, constant.places
    assert view is not None
    assert places is not None
    stored = np.arange(prod(view.pieces)).reshape(view.pieces).transpose(BATCH, *_inner(view)).ravel()
    runs, left = list[tuple[int, int]](), stored[places.ravel()]
    while left.size > 1:
        step = int(left[1] - left[0])
        same = left[0] + step * np.arange(left.size) == left
        size = int(np.argmin(same)) if not same.all() else left.size
        if left.size % size:
            break
        runs.insert(0, (step, size))
        left = left[::size]
    outer = sorted(runs, reverse=True)
    sizes = tuple(size for _, size in outer)
    order = [1 + outer.index(run) for run in runs]
    whole = np.arange(prod(sizes)).reshape(sizes).transpose([place - 1 for place in order]).ravel()
    if left.size != 1 or len(stored) != places.size or (whole != stored[places.ravel()]).any():
        raise CannotTakeError("a slice of a computed weight is not supported", "use the whole weight")
    lying = View(view.word, view.stored, (1, *sizes), ())
    return site.reshaped(site.stored(lying, [[place] for place in order]), (1, *constant.shape))


def _inner(view: View) -> list[int]:
    return [piece for piece in view.order if piece != BATCH]


def in_order(site: Site, view: View) -> View:
    """Stored with the batch first, then what else there is as the model sees it, one piece per dimension.

    A dimension in which samples are counted among other things keeps its pieces.
    """
    groups: list[tuple[int, ...]] = []
    dims: list[list[int]] = []
    for dim in view.dims:
        parts = [(piece,) for piece in dim] if BATCH in dim else [dim] if dim else []
        numbers = []
        for part in parts:
            groups += [] if part == (BATCH,) else [part]
            numbers.append(BATCH if part == (BATCH,) else len(groups))
        dims.append(numbers)
    word = site.stored(view, groups)
    pieces = (view.batch, *(view.size(group) for group in groups))
    return View(word, site.draft.tensors[word].shape, pieces, tuple(tuple(dim) for dim in dims))


def viewed(site: Site, view: View, shape: Sequence[int]) -> View:
    """The elements under another shape, stored in the order the model sees where they must be."""
    sizes = tuple(shape)
    seen = view.viewed(sizes) or in_order(site, view).viewed(sizes)
    if seen is None and view.batch_dim in (0, None):
        ordered = in_order(site, view)
        word = site.stored(ordered, [range(1, len(ordered.pieces))])
        seen = View.of(word, site.draft.tensors[word].shape).viewed(sizes)
    return fresh(view, sizes) if seen is None else seen  # the first refuses


def as_seen(site: Site, view: View) -> str:
    """The word of a tensor whose batch leads, stored as it is seen."""
    counted = 0 if view.batch == 1 and view.shape[:1] == (1,) else view.batch_dim
    sizes = [size for index, size in enumerate(view.shape) if index != counted] or [1]
    return site.reshaped(in_order(site, view).word, (view.batch, *sizes))


def fresh(view: View, shape: Sequence[int]) -> View:
    """A tensor just made, [batch, ...], under the shape the model sees; elements lie in order."""
    seen = view.viewed(tuple(shape))
    if seen is None:
        raise CannotTakeError(
            f"viewing {list(view.shape)} as {list(shape)} mixes samples of the batch",
            "use a view that preserves the batch",
        )
    return seen


def places_of(rank: int, batch_dim: int | None) -> list[int]:
    """The dimensions that are none of the batch's."""
    return [index for index in range(rank) if index != batch_dim]


def sample_word(site: Site, view: View) -> tuple[str, int | None]:
    """A word stored [batch, all other dimensions, those of size 1 too], and the dimension of the batch."""
    ordered = in_order(site, view)
    batch_dim = ordered.batch_dim
    if batch_dim is not None and not ordered.samples_only(batch_dim):
        raise CannotTakeError("the batch is merged with another dimension", "keep the batch separate")
    shape = (ordered.batch, *(ordered.shape[index] for index in places_of(len(view.dims), batch_dim)))
    return site.reshaped(ordered.word, shape), batch_dim


def under(view: View, batch_dim: int | None, rank: int) -> View:
    """A tensor just made from what `sample_word` gave, the batch put back into its dimension."""
    dims = list(view.dims[1:])
    if batch_dim is not None:
        dims.insert(batch_dim, (BATCH,))
    assert len(dims) == rank, (view, batch_dim, rank)
    return replace(view, dims=tuple(dims))


def rows(site: Site, view: View, dim: int) -> tuple[str, list[int]]:
    """A word stored as [batch, all else, `dim`], and the pieces of all else as they lie there."""
    rest = [piece for piece in range(1, len(view.pieces)) if piece not in view.dims[dim]]
    groups: list[Sequence[int]] = [rest] if rest else []
    if BATCH in view.dims[dim]:
        raise CannotTakeError("a sum over the batch is not supported", "sum over a dimension after the batch")
    return site.stored(view, [*groups, view.dims[dim]]), rest


def regrouped(view: View, made: View, rest: Sequence[int], size: int, dim: int = -1) -> View:
    """A tensor stored [batch, pieces `rest` in one, `size`] as `view` is seen, with `size` in `dim`."""
    dims = list(view.dims)
    dims[dim] = (len(view.pieces),) if size > 1 else ()
    return renumbered(replace(view, pieces=(*view.pieces, size), dims=tuple(dims)), made, rest)


def renumbered(view: View, made: View, rest: Sequence[int]) -> View:
    """A tensor that has the pieces `rest` of `view`, in this order, as it is seen."""
    pieces = list(dict.fromkeys((BATCH, *rest, *(piece for dim in view.dims for piece in dim))))
    dims = tuple(tuple(map(pieces.index, dim)) for dim in view.dims)
    return View(made.word, made.stored, tuple(view.pieces[piece] for piece in pieces), dims)


def batch_first(site: Site, view: View, rank: int = 0) -> str:
    """The word of a tensor [batch, channels, ...], of `rank` dimensions if that is not 0."""
    shape: Shape = (view.batch, *view.shape[1:])
    is_first = view.batch == 1 or view.batch_dim == 0
    if len(view.dims) < 2 or rank not in (0, len(view.dims)) or not is_first or shape != view.shape:
        raise CannotTakeError(
            f"the first dimension of the input {list(view.shape)} is not the batch",
            "use an input of shape [batch, channels, ...]",
        )
    return site.reshaped(in_order(site, view).word, shape)


def image(site: Site, view: View, rank: int) -> str:
    """The word of a batch of images [N, C, H, W]; a sequence [N, C, L] becomes an image of one row."""
    if rank not in (1, 2):
        raise CannotTakeError(f"a window of {rank} dimensions is not supported", "use 1 or 2 dimensions")
    word = batch_first(site, view, rank + 2)
    shape = view.shape if rank == 2 else (*view.shape[:2], 1, view.shape[2])
    return site.reshaped(word, shape)

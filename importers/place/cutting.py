# SPDX-License-Identifier: Apache-2.0
"""Parts of a dimension of an activation: a slice, or all parts at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from importers.graph.arranging import Site, in_order
from importers.graph.draft import CannotTakeError
from importers.graph.views import BATCH, View


def sliced(site: Site, view: View, dim: int, start: int, stop: int, *, suffix: str = "") -> View:
    """Elements [start, stop) of a dimension: a slice layer on the tensor as it is stored."""
    if (start, stop) == (0, view.shape[dim]):
        return view
    if BATCH in view.dims[dim]:
        raise CannotTakeError("cuts the batch", "samples are never told apart")
    if not start < stop:
        raise CannotTakeError("takes nothing", "a slice of one element or more")
    view, piece, word = _whole_piece(site, view, dim)
    made = site.layer("slice", (word,), {"axis": piece - 1, "start": start, "stop": stop}, suffix=suffix)
    return _part(view, made, piece, stop - start)


def split(site: Site, view: View, dim: int, sizes: Sequence[int]) -> list[View]:
    """All parts of a dimension, of these sizes, by one layer."""
    view, piece, word = _whole_piece(site, view, dim)
    options = {"axis": piece - 1, "sizes": list(sizes)}
    made = site.draft.layer("split", site.name, (word,), options, where=site.where)
    return [_part(view, part, piece, size) for part, size in zip(made, sizes, strict=True)]


def _whole_piece(site: Site, view: View, dim: int) -> tuple[View, int, str]:
    """The view with one piece as this dimension, the piece, and a word stored piece by piece."""
    if len(view.dims[dim]) != 1:
        view = in_order(site, view)
    (piece,) = view.dims[dim]
    word = site.draft.stored(view, [(item,) for item in range(1, len(view.pieces))], site.name, site.where)
    return view, piece, word


def _part(view: View, made: View, piece: int, size: int) -> View:
    """A tensor just made that has `size` elements of a piece."""
    pieces = (*view.pieces[:piece], size, *view.pieces[piece + 1 :])
    kept = replace(view, word=made.word, stored=made.stored, pieces=pieces)
    return kept.without_piece(piece) if size == 1 else kept

# SPDX-License-Identifier: Apache-2.0
"""Norms as layers of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from configs.values import replace
from importers.graph.arranging import Site, batch_first, fresh, in_order, viewed
from importers.graph.draft import CannotTakeError, elements
from importers.graph.views import BATCH, Shape, View
from importers.graph.weights import Constant
from importers.place.pairs import applied, power, scaled, shifted, two_operands
from importers.place.pooling import pooled

Weights = Mapping[str, Constant | None]
"""By role; None where the norm has none."""


def channel_norm(
    site: Site, kind: str, view: View, given: Weights, eps: float, options: Mapping[str, Any]
) -> View:
    """A norm of the channels of [batch, channels, ...]: over the batch, an instance or a group.

    To a batch norm rows counted with samples are places behind the channels.
    """
    rows = tuple(piece for piece in view.dims[0] if piece != BATCH)
    if kind == "batch_norm" and rows and view.dims[0] == (BATCH, *rows)[view.batch_dim is None :]:
        apart = replace(view, dims=((BATCH,), view.dims[1], rows, *view.dims[2:]))
        made = channel_norm(site, kind, apart, given, eps, options)
        samples, channels, places, *space = made.dims
        counted = places if view.batch == 1 else (*samples, *places)
        return replace(made, dims=(counted, channels, *space))
    whole = {"eps": eps, "affine": given["w"] is not None, **options}
    return fresh(site.layer(kind, (batch_first(site, view),), whole, given), view.shape)


def neighbour_norm(site: Site, view: View, size: int, alpha: float, beta: float, bias: float) -> View:
    """x / (bias + alpha · mean of squares of `size` channels around it)^beta (Krizhevsky et al. 2012)."""
    samples, channels, *space = view.shape
    squares = viewed(site, applied(site, "square", view), (samples, 1, channels, elements(space)))
    window = {"kernel": [size, 1], "stride": 1, "padding": [(size - 1) // 2, size // 2, 0, 0]}
    mean = viewed(site, pooled(site, "avg_pool2d", squares, window, 2), view.shape)
    below = shifted(site, scaled(site, mean, alpha, suffix="_alpha"), bias, suffix="_bias")
    return two_operands(site, "divide", view, power(site, below, beta))


def row_norm(site: Site, kind: str, view: View, given: Weights, eps: float, count: int) -> View:
    """A norm of the last `count` dimensions."""
    view = in_order(site, view)
    axis = len(view.dims) - count
    if any(BATCH in dim for dim in view.dims[axis:]):
        raise CannotTakeError("normalising over the batch is not supported", "use dimensions after the batch")
    leading = elements(view.shape[:axis]) // view.batch
    shape: Shape = (view.batch, *((leading,) if leading > 1 else ()), *view.shape[axis:])
    word = site.reshaped(view.word, shape)
    options: dict[str, Any] = {"eps": eps, "affine": given.get("w") is not None, "axes": count}
    if options["affine"] and given.get("b", given) is None:
        options["bias"] = False
    made = site.layer(kind, (word,), options, given)
    return View(made.word, made.stored, view.pieces, view.dims)

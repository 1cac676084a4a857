# SPDX-License-Identifier: Apache-2.0
"""Pools and interpolation as layers of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from importers.graph.arranging import Site, fresh, image
from importers.graph.draft import CannotTakeError
from importers.graph.views import Shape, View
from importers.graph.weights import Constant
from importers.place.convolution import Window, rows_and_columns, short
from importers.place.pairs import applied, power, root, scaled
from importers.place.products import linear
from trainlib.ir.steps import Array


def pool_options(
    window: Window, sizes: Sequence[int], *, ceil: bool, counted: bool | None = None
) -> dict[str, Any]:
    """Options of a pool over images (or sequences) of these sizes.

    `ceil`: a last window may reach beyond the padding. `counted`: a mean counts the padding, but never what
    lies beyond it; None for a maximum.
    """
    if window.dilation != (1, 1):
        raise CannotTakeError("a dilated window", "dilations of 1")
    pads = _pads_to_last(window, rows_and_columns(sizes, 1)) if ceil else window.pads
    if counted and pads != window.pads:
        if any(window.pads):
            raise CannotTakeError("ceil_mode beyond padding that is counted", "count_include_pad=0")
        counted = False
    options: dict[str, Any] = {"kernel": short(window.kernel)}
    if window.stride != window.kernel:
        options["stride"] = short(window.stride)
    if any(pads):
        options |= {"padding": short(pads)} | ({"count_include_pad": False} if counted is False else {})
    return options


def _pads_to_last(window: Window, sizes: Sequence[int]) -> Shape:
    """Padding up to the end of a last window that begins before the padding behind the image."""
    pads = list(window.pads)
    for axis, (size, kernel, stride) in enumerate(zip(sizes, window.kernel, window.stride, strict=True)):
        padded = size + sum(pads[2 * axis : 2 * axis + 2])
        more = -(padded - kernel) % stride
        if padded + more - kernel < size + pads[2 * axis]:
            pads[2 * axis + 1] += more
    return tuple(pads)


def pooled(site: Site, kind: str, view: View, options: Mapping[str, Any], rank: int) -> View:
    """A pool over the last `rank` dimensions of [batch, channels, ...]."""
    made = site.layer(kind, (image(site, view, rank),), options)
    return fresh(made, (*made.stored[:2], *made.stored[-rank:]))


def power_pooled(site: Site, view: View, window: Window, options: Mapping[str, Any], order: float) -> View:
    """(sum of abs(x)^order)^(1 / order) over windows: their mean, times the elements of a window."""
    powers = power(site, applied(site, "absolute", view, suffix="_size"), order)
    mean = pooled(site, "avg_pool2d", powers, options, len(view.dims) - 2)
    return root(site, scaled(site, mean, prod(window.kernel), suffix="_sum"), order)


def averaged_image(site: Site, view: View, rank: int, *, keep: bool = True) -> View:
    """The mean of all that lies behind the channels; `keep` dimensions of size 1 for it."""
    made = site.layer("global_avg_pool", (image(site, view, rank),))
    return fresh(made, (*view.shape[:2], *(1,) * (rank if keep else 0)))


def stretched(site: Site, view: View, sizes: Shape, kind: str, *, aligned: bool) -> View:
    """An image or a sequence at these sizes by a product with a constant matrix for each dimension.

    `kind` is linear, cubic (Keys 1981, a = -3/4) or nearest (to the middle); `aligned`: corners stay corners.
    """
    for dim, size in enumerate(sizes, len(view.dims) - len(sizes)):
        if view.shape[dim] != size:
            matrix = Constant(_stretch(view.shape[dim], size, kind, aligned=aligned).astype(np.float32))
            last, suffix = len(view.dims) - 1, f"_{dim}"
            view = linear(site, view.swapped(dim, last), matrix, None, suffix=suffix).swapped(dim, last)
    return view


def _stretch(inputs: int, outputs: int, kind: str, *, aligned: bool) -> Array:
    """How much of each input there is in each output, [outputs, inputs]."""
    numbers = np.arange(outputs)
    places: Array = (numbers + 0.5) * inputs / outputs - 0.5
    if aligned:
        places = numbers * ((inputs - 1) / max(1, outputs - 1))
    elif kind == "linear":
        places = np.maximum(places, 0)
    elif kind == "nearest":
        places = np.floor(places + 0.5)
    matrix: Array = np.zeros((outputs, inputs))
    for tap in range(-1, 3):
        lower = np.floor(places)
        away = np.abs(places - lower - tap)
        share = np.maximum(0, 1 - away)
        if kind == "cubic":
            near = 1.25 * away**3 - 2.25 * away**2 + 1
            share = np.where(away <= 1, near, -0.75 * (away**3 - 5 * away**2 + 8 * away - 4))
        np.add.at(matrix, (numbers, np.clip(lower + tap, 0, inputs - 1).astype(int)), share)
    return matrix


def interpolated(site: Site, view: View, sizes: Shape, mode: str) -> View:
    """An image or a sequence stretched to these sizes."""
    options = {"size": list(rows_and_columns(sizes, 1)), "mode": mode}
    made = site.layer("interpolation", (image(site, view, len(sizes)),), options)
    return fresh(made, (*view.shape[:2], *sizes))

# SPDX-License-Identifier: Apache-2.0
"""Pools and interpolation as layers of ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from importers.graph.arranging import Site, fresh, image
from importers.graph.draft import CannotTakeError
from importers.graph.views import Shape, View
from importers.place.convolution import Window, rows_and_columns, short


def pool_options(window: Window, sizes: Sequence[int], *, ceil: bool, padded: bool = True) -> dict[str, Any]:
    """Options of a pool over images (or sequences) of these sizes; `padded`: a mean counts the padding."""
    if window.dilation != (1, 1):
        raise CannotTakeError("a dilated window", "dilations of 1")
    sums = (sum(window.pads[:2]), sum(window.pads[2:]))
    each = zip(rows_and_columns(sizes, 1), window.kernel, window.stride, sums, strict=True)
    for size, k, s, padding in each if ceil else ():
        if s < 1 or (size + padding - k) % s:
            raise CannotTakeError(f"ceil_mode with windows that reach beyond {size}", "ceil_mode=0")
    options: dict[str, Any] = {"kernel": short(window.kernel)}
    if window.stride != window.kernel:
        options["stride"] = short(window.stride)
    if any(window.pads):
        options |= {"padding": short(window.pads)} | ({} if padded else {"count_include_pad": False})
    return options


def pooled(site: Site, kind: str, view: View, options: Mapping[str, Any], rank: int) -> View:
    """A pool over the last `rank` dimensions of [batch, channels, ...]."""
    made = site.layer(kind, (image(site, view, rank),), options)
    return fresh(made, (*made.stored[:2], *made.stored[-rank:]))


def averaged_image(site: Site, view: View, rank: int, *, keep: bool = True) -> View:
    """The mean of all that lies behind the channels; `keep` dimensions of size 1 for it."""
    made = site.layer("global_avg_pool", (image(site, view, rank),))
    return fresh(made, (*view.shape[:2], *(1,) * (rank if keep else 0)))


def interpolated(site: Site, view: View, sizes: Shape, mode: str) -> View:
    """An image or a sequence stretched to these sizes."""
    options = {"size": list(rows_and_columns(sizes, 1)), "mode": mode}
    made = site.layer("interpolation", (image(site, view, len(sizes)),), options)
    return fresh(made, (*view.shape[:2], *sizes))

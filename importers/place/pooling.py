# SPDX-License-Identifier: Apache-2.0
"""Pools and interpolation as layers of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from configs.limits import require_host_memory
from importers.graph.arranging import Site, fresh, image
from importers.graph.draft import CannotTakeError
from importers.graph.views import Shape, View
from importers.graph.weights import Constant
from importers.place.convolution import Window, rows_and_columns, short
from importers.place.pairs import applied, power, root, scaled
from importers.place.products import along
from trainlib.ir.steps import Array


def pool_options(
    window: Window, sizes: Sequence[int], *, ceil: bool, counted: bool | None = None
) -> dict[str, Any]:
    """Options of a pool over images (or sequences) of these sizes.

    `ceil`: a last window may reach beyond the padding. `counted`: a mean counts the padding, but never what
    lies beyond it; None for a maximum.
    """
    if window.dilation != (1, 1):
        raise CannotTakeError("a dilated pooling window is not supported", "set dilations to 1")
    pads = _pads_to_last(window, rows_and_columns(sizes, 1)) if ceil else window.pads
    if counted and pads != window.pads:
        if any(window.pads):
            raise CannotTakeError(
                "count_include_pad=1 is not supported if ceil_mode extends the last window",
                "set count_include_pad=0",
            )
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


@dataclass(frozen=True, slots=True)
class Stretch:
    """How an image gets another size: in ONNX's words `mode` (Resize), where an output lies and rounds to.

    `cubic` is the coefficient a of Keys (1981).
    """

    mode: str
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_ceil"
    cubic: float = -0.75

    def matrix(self, inputs: int, outputs: int, scale: float) -> Array:
        """How much of each input there is in each output, [outputs, inputs]. Raises `CannotTakeError`."""
        numbers, half = np.arange(outputs), self.coordinates.endswith("half_pixel")
        places = (numbers + half / 2) / scale - half / 2
        if self.coordinates == "align_corners":
            places = numbers * (inputs - 1) / (inputs * scale - 1 if outputs > 1 else 1)
        elif not half and self.coordinates != "asymmetric":
            raise CannotTakeError(
                f"a {self.mode} resize with coordinates {self.coordinates} is not supported", "use half_pixel"
            )
        if self.coordinates == "pytorch_half_pixel" and outputs == 1:
            places = np.zeros(1)
        if self.mode == "nearest":
            places = _ROUNDINGS[self.rounding](places)
        matrix: Array = np.zeros((outputs, inputs), np.float32)
        lower = np.floor(places)
        for tap in range(-1, 3):
            away = np.abs(places - lower - tap)
            share = np.maximum(0, 1 - away)
            if self.mode == "cubic":
                a = self.cubic
                near = (a + 2) * away**3 - (a + 3) * away**2 + 1
                share = np.where(away <= 1, near, a * (away**3 - 5 * away**2 + 8 * away - 4))
            np.add.at(matrix, (numbers, np.clip(lower + tap, 0, inputs - 1).astype(int)), share)
        return matrix


_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
}


def stretched(
    site: Site, view: View, sizes: Shape, how: Stretch, scales: Sequence[float] | None = None
) -> View:
    """An image or a sequence at these sizes by a product with a constant matrix for each dimension.

    `scales`, if they do not follow from the sizes.
    """
    scales = scales or [size / view.shape[dim - len(sizes)] for dim, size in enumerate(sizes)]
    for dim, (size, scale) in enumerate(zip(sizes, scales, strict=True), len(view.dims) - len(sizes)):
        if view.shape[dim] != size or scale != 1:
            require_host_memory(8 * view.shape[dim] * size, f"a dimension resized to {size:,} needs")
            matrix = Constant(how.matrix(view.shape[dim], size, scale))
            view = along(site, view, dim, matrix, suffix=f"_{dim}")
    return view


def interpolated(site: Site, view: View, sizes: Shape, mode: str) -> View:
    """An image or a sequence stretched to these sizes."""
    options = {"size": list(rows_and_columns(sizes, 1)), "mode": mode}
    made = site.layer("interpolation", (image(site, view, len(sizes)),), options)
    return fresh(made, (*view.shape[:2], *sizes))

# SPDX-License-Identifier: Apache-2.0
"""What the loops of convolutions cost beyond `trainlib.kernels.catalogue`: direct loops, HWC im2row, biases.

Loops PULP-TrainLib has in this very form are priced with the nests written from its code (`dw_fw`,
`naive_fw` ...). The general ones, with strides per axis, dilation,
groups, padding in every step and channels in parallel, do not exist there: their nests (`conv_*`) are
estimates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from arch.spec.isa import TeamWork
from configs.dtypes import DType
from configs.values import Struct, replace
from trainlib.ir.access import Taps
from trainlib.kernels.library import LIBRARY
from trainlib.kernels.team import Array, team_work
from trainlib.primitives.contractions.conv_geometry import ConvGeometry, met


class Reach(Struct, frozen=True):
    """Which kernel positions of a tile meet an element, per axis, and the fetched rows and columns."""

    rows: Taps
    columns: Taps
    height: int
    width: int

    @classmethod
    def of(
        cls,
        image: tuple[int, int],
        kernel: tuple[int, int],
        positions: tuple[int, int],
        stride: int = 1,
        pad: int = 0,
    ) -> Reach:
        """That of a window of rows and columns on a whole image."""
        along = []
        for size, taps, count in zip(image, kernel, positions, strict=True):
            places = np.arange(count)[:, None] * stride + np.arange(taps) - pad
            along.append(np.where((places >= 0) & (places < size), places, -1))
        rows, columns = along
        return cls(rows, columns, *image)

    @property
    def positions(self) -> int:
        """Positions of the result."""
        return len(self.rows) * len(self.columns)

    @property
    def padded(self) -> bool:
        """Whether some kernel position meets nothing."""
        return bool((self.rows < 0).any() or (self.columns < 0).any())

    def counts(self) -> dict[str, int]:
        """Sizes the nests share: pairs (position, kernel position) that meet an element, or do not."""
        rows_in, cols_in = met(self.rows), met(self.columns)
        return {
            "rows_in": rows_in,
            "rows_out": self.rows.size - rows_in,
            "cols_in": cols_in,
            "cols_out": self.columns.size - cols_in,
            "padded": int(self.padded),
        }


class Site(Struct, frozen=True):
    """Where a loop runs: cores, the codegen it is from, and L1 byte addresses of its arrays of `dtype`."""

    codegen: str
    cores: int
    dtype: DType
    places: Mapping[str, int]
    """By name; an array that a loop does not touch may be missing."""

    def team(
        self,
        nest: str,
        sizes: Mapping[str, int],
        strides: Mapping[str, tuple[int, ...]],
        *,
        macs: int = 0,
        per_core: Sequence[Mapping[str, int]] = (),
    ) -> TeamWork:
        """The nest on arrays of these strides, in elements."""
        size = self.dtype.bytes
        arrays = {name: Array(self.places.get(name, 0), along, size) for name, along in strides.items()}
        return team_work(
            self.codegen, nest, sizes, arrays, self.cores, macs=macs, per_core=per_core, element_bytes=size
        )


def im2row(
    site: Site,
    mode: str,
    reach: Reach,
    channels: int,
    *,
    stride: int = 1,
    padded: bool = True,
    columns: bool = False,
) -> TeamWork:
    """CHW im2row of the library; `padded`: it tests every element. Places: X, R (result).

    mode FW: the image at the positions of the result; IG: an output gradient at those of the input. It does
    strides per axis and dilation as well, and takes counts of what `reach` says. `columns`: the transpose of
    FW (im2col), which no layer of ours asks for.
    """
    hk, wk = reach.rows.shape[1], reach.columns.shape[1]
    rows, wide = len(reach.rows), len(reach.columns)
    patch = channels * hk * wk
    extents = {"ho": rows, "wo": wide, "hi": reach.height, "wi": reach.width}
    if mode == "IG":
        extents = {"hi": rows, "wi": wide, "ho": reach.height, "wo": reach.width}
    sizes = {"ci": channels, "hk": hk, "wk": wk, "stride": stride, **extents, **reach.counts()}
    image = (reach.height * reach.width, reach.width, 1)
    walk = (wide * patch, patch, hk * wk, wk, 1)
    if columns:
        walk = (hk * wk * rows * wide, wk * rows * wide, rows * wide, wide, 1)
    nest = "im2col" if columns else "im2row_fw" if mode == "FW" else "im2row_ig"
    return site.team(nest, {**sizes, "padded": int(padded)}, {"X": image, "R": walk})


def unroll_hwc(site: Site, geometry: ConvGeometry, reach: Reach, channels: int, *, columns: bool) -> TeamWork:
    """HWC im2row (im2col if `columns`), rows of the result over the cores; places: X, R (result).

    Where a codegen describes the library's own loop, which knows one stride and no padding or dilation, that
    is taken where it can do it.
    """
    ho, wo = len(reach.rows), len(reach.columns)
    patch = geometry.window * channels
    library = "im2col_hwc" if columns else "im2row_hwc"
    image = (reach.width * channels, channels, 1)
    if not reach.padded and geometry.one_stride and library in LIBRARY.kernel_names(site.codegen):
        walk = (patch * wo, patch, geometry.wk * channels, channels, 1)
        if columns:
            walk = (geometry.wk * channels * ho * wo, channels * ho * wo, ho * wo, wo, 1)
        loops = {"ci": channels, "ho": ho, "wo": wo, "hk": geometry.hk, "wk": geometry.wk}
        return site.team(library, {**loops, "stride": geometry.strides[0]}, {"X": image, "R": walk})
    result = (1, channels * ho * wo, ho * wo) if columns else (patch, channels, 1)
    sizes = {"ci": channels, "ho": ho, "wo": wo, **_window(geometry), **reach.counts()}
    block = -(-ho // site.cores)
    words = []
    for core in range(site.cores):
        taps = reach.rows[core * block : (core + 1) * block]
        words.append({"rows_in": met(taps), "rows_out": taps.size - met(taps)})
    return site.team("conv_unroll_hwc", sizes, {"X": image, "R": result}, per_core=words)


def blocktransp(site: Site, geometry: ConvGeometry, co: int, ci: int) -> TeamWork:
    """Weights X to Y, [ci, co, window] (CHW) or [ci, window, co] (HWC), rotated; co over the cores in both.

    In the library every core does the whole HWC transpose; the loop is the same.
    """
    window = geometry.window
    source, target = (ci * window, window, 1), (co * window, window, 1)
    if geometry.hwc:
        source, target = (ci * window, 1, ci), (co * window, 1, co)
    sizes = {"co": co, "ci": ci, "hk": geometry.hk, "wk": geometry.wk}
    return site.team("blocktransp", sizes, {"X": source, "Y": target})


class Direct(Struct, frozen=True):
    """A direct loop: `own` channels over the cores, each meeting `others` channels of the other side.

    `own_box` and `others_box` are the channels of the boxes; the first channel met by own channel c is
    about c·step. Images are [c, h, w] in the layout of `geometry`.
    """

    geometry: ConvGeometry
    reach: Reach
    own: int
    others: int
    others_box: int
    bias: bool = False

    @property
    def macs(self) -> int:
        """Multiply-accumulates, zeros of the padding included."""
        return self.own * self.others * self.geometry.window * self.reach.positions

    @property
    def step(self) -> int:
        """Distance of the first channels that two neighbouring own channels meet; 0 within a group."""
        return max(self.others_box - self.others, 0) // max(self.own - 1, 1)

    def sizes(self) -> dict[str, int]:
        """Sizes all direct nests share."""
        return {
            "channels": self.own,
            "depth": self.others,
            "step": self.step,
            "bias": int(self.bias),
            **_window(self.geometry),
            **self.reach.counts(),
        }

    @property
    def as_published(self) -> bool:
        """Whether the loop is one the library has: one stride, no dilation, no bias, CHW."""
        return self.geometry.plain and not self.bias


def direct_forward(site: Site, loop: Direct) -> TeamWork:
    """Each own (output) channel from the input; places: X, W, Y and D if there is a bias."""
    if loop.as_published:
        if loop.others == 1 and loop.others_box == loop.own:
            return published(site, loop, "dw_fw")
        if loop.geometry.groups == 1 and not loop.reach.padded:
            return published(site, loop, "naive_fw")
    positions = {"ho": len(loop.reach.rows), "wo": len(loop.reach.columns)}
    strides = {**_from_image(loop), "D": (1,)}
    return site.team("conv_direct_fw", {**loop.sizes(), **positions}, strides, macs=loop.macs)


def direct_weights(site: Site, loop: Direct) -> TeamWork:
    """The weight gradient of each own (output) channel; places: X, W, Y."""
    if loop.as_published and loop.geometry.groups == 1 and not loop.reach.padded:
        return published(site, loop, "naive_wg")
    return site.team("conv_direct_wg", loop.sizes(), _from_image(loop), macs=loop.macs)


def direct_input(site: Site, loop: Direct) -> TeamWork:
    """The gradient of each own (input) channel, gathered; places: X (result), W, Y (output gradient)."""
    geometry, reach = loop.geometry, loop.reach
    if loop.as_published and (geometry.groups, geometry.strides, geometry.pads) == (1, (1, 1), (0, 0, 0, 0)):
        return published(site, loop, "naive_ig")
    read = _from_image(loop, gathers=True)
    strides = {"X": read["Y"], "W": read["W"], "Y": read["X"]}
    sizes = {**loop.sizes(), "hi": len(reach.rows), "wi": len(reach.columns)}
    sizes["strided"] = int(max(geometry.strides) > 1)
    return site.team("conv_direct_ig", sizes, strides, macs=loop.macs)


def published(site: Site, loop: Direct, nest: str) -> TeamWork:
    """A loop of the library, in CHW; the image of the result has the positions, the other is read.

    Places: X, W, Y. In its depthwise gradients every core does all channels.
    """
    geometry, reach = loop.geometry, loop.reach
    positions, read = (len(reach.rows), len(reach.columns)), (reach.height, reach.width)
    (hi, wi), (ho, wo) = (positions, read) if nest.endswith("_ig") else (read, positions)
    channels, window = {"ci": loop.own}, (geometry.window, geometry.wk, 1)
    strides: dict[str, tuple[int, ...]] = {"X": (hi * wi, wi, 1), "W": window, "Y": (ho * wo, wo, 1)}
    if nest.startswith("naive"):
        gathered, others = ("ci", "co") if nest.endswith("_ig") else ("co", "ci")
        channels = {gathered: loop.own, others: loop.others}
        strides["W"] = (channels["ci"] * geometry.window, *window)
    of_window = {"hk": geometry.hk, "wk": geometry.wk, "stride": geometry.strides[0]}
    sizes = {**of_window, **reach.counts(), **channels, "hi": hi, "wi": wi, "ho": ho, "wo": wo}
    return site.team(nest, sizes, strides, macs=loop.macs)


def _from_image(loop: Direct, *, gathers: bool = False) -> dict[str, tuple[int, ...]]:
    """Strides of X, the image of the other channels, of weights (own channel first) and Y, its own planes."""
    geometry, reach = loop.geometry, loop.reach
    target, source, tap = filter_strides(geometry, loop.own if gathers else loop.others)
    return {
        "X": image_strides(geometry, loop.others_box, reach.height, reach.width),
        "W": (source, target, tap) if gathers else (target, source, tap),
        "Y": planes(geometry, loop.own, reach.positions),
    }


def scatter(site: Site, loop: Direct) -> TeamWork:
    """As `direct_input`, by adding every product to the result in memory; places: X, W, Y, D for a bias."""
    reach, strides = loop.reach, {**_from_image(loop, gathers=True), "D": (1,)}
    extents = {"hi": len(reach.rows), "wi": len(reach.columns), "ho": reach.height, "wo": reach.width}
    exchanged = replace(site, places={**site.places, "X": site.places["Y"], "Y": site.places["X"]})
    return exchanged.team("conv_scatter_fw", {**loop.sizes(), **extents}, strides, macs=loop.macs)


def image_strides(geometry: ConvGeometry, channels: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Element strides of channel, row, column."""
    return (1, columns * channels, channels) if geometry.hwc else (rows * columns, columns, 1)


def planes(geometry: ConvGeometry, channels: int, positions: int) -> tuple[int, int]:
    """Element strides of channel and position."""
    return (1, channels) if geometry.hwc else (positions, 1)


def filter_strides(geometry: ConvGeometry, sources: int) -> tuple[int, int, int]:
    """Element strides of output channel, input channel and kernel position."""
    window = geometry.window
    return (window * sources, 1, sources) if geometry.hwc else (sources * window, window, 1)


def _window(geometry: ConvGeometry) -> dict[str, int]:
    return {
        "hk": geometry.hk,
        "wk": geometry.wk,
        "window": geometry.window,
        "stride_h": geometry.strides[0],
        "stride_w": geometry.strides[1],
        "dilation_h": geometry.dilations[0],
        "dilation_w": geometry.dilations[1],
    }

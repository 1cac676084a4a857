# SPDX-License-Identifier: Apache-2.0
"""What the loops of convolutions cost beyond `trainlib.kernels.catalogue`: direct loops, HWC im2row, biases.

Loops PULP-TrainLib has in this very form are priced with the nests written from its code (`dw_fw`,
`naive_fw` ...). The general ones, with strides per axis, dilation,
groups, padding in every step and channels in parallel, do not exist there: their nests (`conv_*`) are
estimates. Places are L1 byte addresses of arrays of `dtype`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arch.isa import TeamWork
from configs.dtypes import DType
from trainlib.access import Taps
from trainlib.kernels.library import LIBRARY
from trainlib.kernels.team import Array, team_work
from trainlib.primitives.contractions.conv_geometry import ConvGeometry, met


@dataclass(frozen=True, slots=True)
class Reach:
    """Which kernel positions of a tile meet an element, per axis, and the fetched rows and columns."""

    rows: Taps
    columns: Taps
    height: int
    width: int

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


def im2row(
    codegen: str, mode: str, reach: Reach, channels: int, cores: int, places: Sequence[int], dtype: DType
) -> TeamWork:
    """CHW im2row of any stride and dilation: the nest of the library, every element tested, counts as real.

    `mode` is FW or IG as in `catalogue.im2row_work`; places: source, target.
    """
    hk, wk = reach.rows.shape[1], reach.columns.shape[1]
    rows, columns = len(reach.rows), len(reach.columns)
    patch = channels * hk * wk
    extents = {"ho": rows, "wo": columns, "hi": reach.height, "wi": reach.width}
    if mode == "IG":
        extents = {"hi": rows, "wi": columns, "ho": reach.height, "wo": reach.width}
    sizes = {"ci": channels, "hk": hk, "wk": wk, "stride": 1, **extents, **reach.counts(), "padded": 1}
    arrays = {
        "X": _array(dtype, places[0], reach.height * reach.width, reach.width, 1),
        "R": _array(dtype, places[1], columns * patch, patch, hk * wk, wk, 1),
    }
    return _team(dtype, codegen, "im2row_fw" if mode == "FW" else "im2row_ig", sizes, arrays, cores)


def unroll_hwc(
    codegen: str,
    geometry: ConvGeometry,
    reach: Reach,
    channels: int,
    cores: int,
    places: Sequence[int],
    dtype: DType,
    *,
    columns: bool,
) -> TeamWork:
    """HWC im2row (im2col if `columns`), rows of the result over the cores; places: source, target.

    Where a codegen describes the library's own loop, which knows one stride and no padding or dilation, that
    is taken where it can do it.
    """
    ho, wo = len(reach.rows), len(reach.columns)
    patch = geometry.window * channels
    library = "im2col_hwc" if columns else "im2row_hwc"
    if not reach.padded and geometry.one_stride and library in LIBRARY.kernel_names(codegen):
        walk = (patch * wo, patch, geometry.wk * channels, channels, 1)
        if columns:
            walk = (geometry.wk * channels * ho * wo, channels * ho * wo, ho * wo, wo, 1)
        loops = {"ci": channels, "ho": ho, "wo": wo, "hk": geometry.hk, "wk": geometry.wk}
        image = _array(dtype, places[0], reach.width * channels, channels, 1)
        return _team(
            dtype,
            codegen,
            library,
            {**loops, "stride": geometry.strides[0]},
            {"X": image, "R": _array(dtype, places[1], *walk)},
            cores,
        )
    strides = (1, channels * ho * wo, ho * wo) if columns else (patch, channels, 1)
    arrays = {
        "X": _array(dtype, places[0], reach.width * channels, channels, 1),
        "R": _array(dtype, places[1], *strides),
    }
    sizes = {"ci": channels, "ho": ho, "wo": wo, **_window(geometry), **reach.counts()}
    block = -(-ho // cores)
    own = []
    for core in range(cores):
        taps = reach.rows[core * block : (core + 1) * block]
        own.append({"rows_in": met(taps), "rows_out": taps.size - met(taps)})
    return _team(dtype, codegen, "conv_unroll_hwc", sizes, arrays, cores, per_core=own)


def blocktransp(
    codegen: str, geometry: ConvGeometry, co: int, ci: int, cores: int, places: Sequence[int], dtype: DType
) -> TeamWork:
    """Weights to [ci, co, window] (CHW) or [ci, window, co] (HWC), rotated; co over the cores in both.

    In the library every core does the whole HWC transpose; the loop is the same.
    """
    window = geometry.window
    source, target = (ci * window, window, 1), (co * window, window, 1)
    if geometry.hwc:
        source, target = (ci * window, 1, ci), (co * window, 1, co)
    arrays = {"X": _array(dtype, places[0], *source), "Y": _array(dtype, places[1], *target)}
    sizes = {"co": co, "ci": ci, "hk": geometry.hk, "wk": geometry.wk}
    return _team(dtype, codegen, "blocktransp", sizes, arrays, cores)


@dataclass(frozen=True, slots=True)
class Direct:
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

    def published_sizes(self) -> dict[str, int]:
        """Sizes the nests written from the library's code share."""
        geometry = self.geometry
        return {
            "hk": geometry.hk,
            "wk": geometry.wk,
            "stride": geometry.strides[0],
            **self.reach.counts(),
        }


def direct_forward(
    codegen: str, loop: Direct, cores: int, places: Mapping[str, int], dtype: DType
) -> TeamWork:
    """Each own (output) channel from the input; places: X, W, Y and D if there is a bias."""
    geometry, reach = loop.geometry, loop.reach
    rows, columns = len(reach.rows), len(reach.columns)
    image = _image(geometry, loop.others_box, reach.height, reach.width)
    if loop.as_published:
        extents = {"hi": reach.height, "wi": reach.width, "ho": rows, "wo": columns}
        window = (geometry.window, geometry.wk, 1)
        arrays = {
            "X": _array(dtype, places["X"], *image),
            "Y": _array(dtype, places["Y"], rows * columns, columns, 1),
            "W": _array(dtype, places["W"], *window),
        }
        sizes = {**loop.published_sizes(), **extents}
        if loop.others == 1 and loop.others_box == loop.own:
            return _team(dtype, codegen, "dw_fw", {**sizes, "ci": loop.own}, arrays, cores, macs=loop.macs)
        if geometry.groups == 1 and not reach.padded:
            arrays["W"] = _array(dtype, places["W"], loop.others * geometry.window, *window)
            sizes |= {"ci": loop.others, "co": loop.own}
            return _team(dtype, codegen, "naive_fw", sizes, arrays, cores, macs=loop.macs)
    arrays = {
        "X": _array(dtype, places["X"], *image),
        "W": _array(dtype, places["W"], *_filters(geometry, loop.others)),
        "Y": _array(dtype, places["Y"], *_planes(geometry, loop.own, reach.positions)),
        "D": _array(dtype, places.get("D", 0), 1),
    }
    sizes = {**loop.sizes(), "ho": rows, "wo": columns}
    return _team(dtype, codegen, "conv_direct_fw", sizes, arrays, cores, macs=loop.macs)


def direct_weights(
    codegen: str, loop: Direct, cores: int, places: Mapping[str, int], dtype: DType
) -> TeamWork:
    """The weight gradient of each own (output) channel; places: X, W, Y."""
    geometry, reach = loop.geometry, loop.reach
    rows, columns = len(reach.rows), len(reach.columns)
    image = _image(geometry, loop.others_box, reach.height, reach.width)
    if loop.as_published and geometry.groups == 1 and not reach.padded:
        window = (loop.others * geometry.window, geometry.window, geometry.wk, 1)
        arrays = {
            "X": _array(dtype, places["X"], *image),
            "W": _array(dtype, places["W"], *window),
            "Y": _array(dtype, places["Y"], rows * columns, columns, 1),
        }
        sizes = {**loop.published_sizes(), "ci": loop.others, "co": loop.own, "ho": rows, "wo": columns}
        sizes |= {"hi": reach.height, "wi": reach.width}
        return _team(dtype, codegen, "naive_wg", sizes, arrays, cores, macs=loop.macs)
    arrays = {
        "X": _array(dtype, places["X"], *image),
        "W": _array(dtype, places["W"], *_filters(geometry, loop.others)),
        "Y": _array(dtype, places["Y"], *_planes(geometry, loop.own, reach.positions)),
    }
    return _team(dtype, codegen, "conv_direct_wg", loop.sizes(), arrays, cores, macs=loop.macs)


def direct_input(codegen: str, loop: Direct, cores: int, places: Mapping[str, int], dtype: DType) -> TeamWork:
    """The gradient of each own (input) channel, gathered; places: X (result), W, Y (output gradient)."""
    geometry, reach = loop.geometry, loop.reach
    rows, columns = len(reach.rows), len(reach.columns)
    gradient = _image(geometry, loop.others_box, reach.height, reach.width)
    extents = {"hi": rows, "wi": columns}
    if loop.as_published and (geometry.groups, geometry.strides, geometry.pads) == (1, (1, 1), (0, 0, 0, 0)):
        arrays = {
            "X": _array(dtype, places["X"], rows * columns, columns, 1),
            "W": _array(dtype, places["W"], loop.own * geometry.window, geometry.window, geometry.wk, 1),
            "Y": _array(dtype, places["Y"], *gradient),
        }
        sizes = {**loop.published_sizes(), **extents, "ci": loop.own, "co": loop.others}
        sizes |= {"ho": reach.height, "wo": reach.width}
        return _team(dtype, codegen, "naive_ig", sizes, arrays, cores, macs=loop.macs)
    target, source, tap = _filters(geometry, loop.own)
    arrays = {
        "X": _array(dtype, places["X"], *_planes(geometry, loop.own, reach.positions)),
        "W": _array(dtype, places["W"], source, target, tap),
        "Y": _array(dtype, places["Y"], *gradient),
    }
    sizes = {**loop.sizes(), **extents, "strided": int(max(geometry.strides) > 1)}
    return _team(dtype, codegen, "conv_direct_ig", sizes, arrays, cores, macs=loop.macs)


def depthwise_weights(
    codegen: str, loop: Direct, cores: int, places: Mapping[str, int], dtype: DType
) -> TeamWork:
    """PULP-TrainLib's depthwise weight gradient: every core does all channels; places: X, W, Y."""
    return _depthwise(codegen, "dw_wg", loop, cores, places, dtype)


def depthwise_input(
    codegen: str, loop: Direct, cores: int, places: Mapping[str, int], dtype: DType
) -> TeamWork:
    """PULP-TrainLib's depthwise input gradient: every core does all channels; places: X (result), W, Y."""
    return _depthwise(codegen, "dw_ig", loop, cores, places, dtype)


def _depthwise(
    codegen: str, nest: str, loop: Direct, cores: int, places: Mapping[str, int], dtype: DType
) -> TeamWork:
    """A published depthwise loop, in CHW; the image of the result has the positions, the other is read."""
    geometry, reach = loop.geometry, loop.reach
    positions, read = (len(reach.rows), len(reach.columns)), (reach.height, reach.width)
    (hi, wi), (ho, wo) = (positions, read) if nest == "dw_ig" else (read, positions)
    arrays = {
        "X": _array(dtype, places["X"], hi * wi, wi, 1),
        "W": _array(dtype, places["W"], geometry.window, geometry.wk, 1),
        "Y": _array(dtype, places["Y"], ho * wo, wo, 1),
    }
    sizes = {**loop.published_sizes(), "ci": loop.own, "hi": hi, "wi": wi, "ho": ho, "wo": wo}
    return _team(dtype, codegen, nest, sizes, arrays, cores, macs=loop.macs)


def scatter(codegen: str, loop: Direct, cores: int, places: Mapping[str, int], dtype: DType) -> TeamWork:
    """As `direct_input`, by adding every product to the result in memory; places: X, W, Y, D for a bias."""
    geometry, reach = loop.geometry, loop.reach
    target, source, tap = _filters(geometry, loop.own)
    arrays = {
        "X": _array(dtype, places["Y"], *_image(geometry, loop.others_box, reach.height, reach.width)),
        "W": _array(dtype, places["W"], source, target, tap),
        "Y": _array(dtype, places["X"], *_planes(geometry, loop.own, reach.positions)),
        "D": _array(dtype, places.get("D", 0), 1),
    }
    extents = {"hi": len(reach.rows), "wi": len(reach.columns), "ho": reach.height, "wo": reach.width}
    sizes = {**loop.sizes(), **extents}
    return _team(dtype, codegen, "conv_scatter_fw", sizes, arrays, cores, macs=loop.macs)


def bias_add(
    codegen: str,
    geometry: ConvGeometry,
    channels: int,
    positions: int,
    cores: int,
    places: Sequence[int],
    dtype: DType,
) -> TeamWork:
    """A bias per channel added in place; places: image, bias."""
    planes = _planes(geometry, channels, positions)
    arrays = {"Y": _array(dtype, places[0], *planes), "D": _array(dtype, places[1], 1)}
    sizes = {"channels": channels, "positions": positions}
    return _team(dtype, codegen, "conv_bias_fw", sizes, arrays, cores)


def bias_sum(
    codegen: str,
    geometry: ConvGeometry,
    channels: int,
    positions: int,
    samples: int,
    cores: int,
    places: Sequence[int],
    dtype: DType,
) -> TeamWork:
    """The sum of each channel over samples and positions; places: first image, sums."""
    channel, position = _planes(geometry, channels, positions)
    arrays = {
        "Y": _array(dtype, places[0], channel, channels * positions, position),
        "D": _array(dtype, places[1], 1),
    }
    sizes = {"channels": channels, "positions": positions, "samples": samples}
    return _team(dtype, codegen, "conv_bias_wg", sizes, arrays, cores)


def _image(geometry: ConvGeometry, channels: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Element strides of channel, row, column."""
    return (1, columns * channels, channels) if geometry.hwc else (rows * columns, columns, 1)


def _planes(geometry: ConvGeometry, channels: int, positions: int) -> tuple[int, int]:
    """Element strides of channel and position."""
    return (1, channels) if geometry.hwc else (positions, 1)


def _filters(geometry: ConvGeometry, sources: int) -> tuple[int, int, int]:
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


def _array(dtype: DType, address: int, *strides: int) -> Array:
    return Array(address, strides, dtype.bytes)


def _team(
    dtype: DType,
    codegen: str,
    nest: str,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Array],
    cores: int,
    *,
    macs: int = 0,
    per_core: Sequence[Mapping[str, int]] = (),
) -> TeamWork:
    element_bytes = dtype.bytes
    return team_work(
        codegen, nest, sizes, arrays, cores, macs=macs, per_core=per_core, element_bytes=element_bytes
    )

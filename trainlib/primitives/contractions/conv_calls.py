# SPDX-License-Identifier: Apache-2.0
"""Kernel calls of convolutions around the matmul: im2row of both directions, block transpose, biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from arch.spec.isa import TeamWork
from configs.dtypes import DType
from configs.values import Struct, replace
from trainlib.ir.access import Span, Taps
from trainlib.ir.steps import Array, Extent, KernelCall, KernelChoice, Scratch, part
from trainlib.primitives.contractions import conv_nests
from trainlib.primitives.contractions.contraction import BIAS, BIAS_GRADIENT, LoopTile
from trainlib.primitives.contractions.conv_geometry import ConvGeometry, Segment, block_transpose, patches
from trainlib.primitives.contractions.conv_nests import Reach, Site
from trainlib.primitives.lowering.calls import BATCH, factors, matmul_call, vector_add_call
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call

ROWS = "im2row"
"""Name of the scratch buffer of the im2row matrix."""

COLUMNS = "im2col"
"""Name of the scratch buffer of the im2col matrix, its transpose."""

TRANSPOSED = "weights_transposed"
"""Name of the scratch buffer of the block-transposed weights."""

PARTIAL = "dw_of_sample"
"""Name of the scratch buffer of the weight gradient of one further sample of a batch."""


NOWHERE = -(2**20)
"""A first row, or column, that no image reaches."""


def first_of(taps: Taps, step: int, inner: int, divisor: int) -> int:
    """f of taps[p, k] = (p * step + k * inner + f) / divisor, where that is a whole number in the image."""
    position, tap = np.unravel_index(int(np.argmax(taps)), taps.shape)
    last = int(taps[position, tap])
    return last * divisor - int(position) * step - int(tap) * inner if last >= 0 else NOWHERE


def of_window(geometry: ConvGeometry, reach: Reach, *, gathers: bool) -> dict[str, Any]:
    """Where the kernel positions of a tile lie: of the forward step, or (`gathers`) of an input gradient."""
    steps, divisors = ((1, 1), geometry.strides) if gathers else (geometry.strides, (1, 1))
    (down, along), (high, wide) = steps, divisors
    return {
        "row_first": partial(first_of, reach.rows, down, geometry.dilations[0], high),
        "column_first": partial(first_of, reach.columns, along, geometry.dilations[1], wide),
        "step_h": down,
        "step_w": along,
        "divisor_h": high,
        "divisor_w": wide,
        "dilation_h": geometry.dilations[0],
        "dilation_w": geometry.dilations[1],
        "height": reach.height,
        "width": reach.width,
    }


def of_groups(
    geometry: ConvGeometry, parts: Sequence[Segment], within: Sequence[Extent], *, gathers: bool, fetched: int
) -> dict[str, Any]:
    """Which channels those of a tile meet, and which filters of those fetched from `fetched` on are theirs.

    Channel c is of group (own_first + c) // own_group of the tile, which meets the channels from met_first +
    group * met_group on.
    """
    walked, met = geometry.co_of_group, geometry.ci_of_group
    if gathers:
        walked, met = met, walked
    return {
        "own_first": parts[0].start % walked,
        "own_group": walked,
        "met_first": within[0][0],
        "met_group": met,
        "fetched": fetched,
    }


class TileImage(Struct, frozen=True):
    """What a tile reads of an image: rows, columns, and which of them each kernel position meets.

    `mode` FW: the input for a box of the output. IG: the output gradient for a box of the input.
    """

    mode: str
    rows: Span
    columns: Span
    reach: Reach

    @property
    def positions(self) -> int:
        """Rows of the im2row matrix."""
        return self.reach.positions

    def is_padded(self, geometry: ConvGeometry) -> bool:
        """Whether the forward convolution is: of IG that from this box of dx to this box of dy."""
        high, wide = self.rows, self.columns
        pads = (high.before, high.after, wide.before, wide.after)
        if self.mode == "IG":
            down, along = geometry.hk - 1, geometry.wk - 1
            pads = (down - high.before, down - high.after, along - wide.before, max(along - wide.after, 0))
        return any(pads)


def tile_image(tile: LoopTile, *, owned: bool = False) -> TileImage:
    """The image a tile reads through the window: x, or for the gradient of x the output gradient.

    If `owned`, with the positions of x that belong to the tile's positions of y as well.
    """
    gathers = tile.space.result == "dx"
    image, axes, outer = ("dy", ("ho", "wo"), ("hi", "wi")) if gathers else ("x", ("hi", "wi"), ("ho", "wo"))
    spans, taps = [], []
    for axis, loop, inner in zip(axes, outer, ("hk", "wk"), strict=True):
        if loop not in tile.space.loops:  # an image of one row
            spans.append(Span(0, 1, 0, 0))
            taps.append(np.zeros((1, 1), np.int64))
            continue
        index = tile.space.index(image, axis)
        span = index.span(tile.extents)
        if owned:
            span = span.with_also(index.owned(loop, tile.extents[loop], tile.space.loops[loop]))
        spans.append(span)
        taps.append(index.taps(loop, inner, tile.extents, span.extent))
    (high, wide), (rows, columns) = spans, taps
    return TileImage("IG" if gathers else "FW", high, wide, Reach(rows, columns, high.count, wide.count))


def positions_of(tile: LoopTile) -> int:
    """`TileImage.positions` of the image a tile reads."""
    return tile.count(*(("hi", "wi") if tile.space.result == "dx" else ("ho", "wo")))


def im2row_call(
    tile: LoopTile, view: TileImage, source: str, groups: Sequence[Extent], *, columns: bool = False
) -> KernelCall:
    """The im2row (im2col if `columns`) of the image `source`, into `ROWS` (`COLUMNS`).

    `groups` are the channels of each group, counted from the first of `source`; several groups give several
    matrices, one after the other. All channels are unrolled in one fork.
    """
    geometry, codegen, dtype = ConvGeometry.of(tile.op.attributes), tile.choice.codegen, tile.dtype
    target = COLUMNS if columns else ROWS
    channels = sum(stop - start for start, stop in groups)

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        site = Site(codegen, cores, dtype, {"X": addresses[source], "R": addresses[target]})
        if geometry.plain:
            stride, padded = geometry.strides[0], view.is_padded(geometry)
            return conv_nests.im2row(site, view.mode, view.reach, channels, stride=stride, padded=padded)
        if geometry.hwc:
            return conv_nests.unroll_hwc(site, geometry, view.reach, channels, columns=columns)
        return conv_nests.im2row(site, view.mode, view.reach, channels)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        image, axes = geometry.image_chw(arrays[0]), (view.reach.rows, view.reach.columns)
        matrices = [patches(image[start:stop], *axes, channels_last=geometry.hwc) for start, stop in groups]
        if columns:
            matrices = [np.ascontiguousarray(matrix.T) for matrix in matrices]
        return (matrices[0] if len(groups) == 1 else np.stack(matrices),)

    (first, last), step = groups[0], groups[-1][0] - groups[0][0]
    details = {
        **of_window(geometry, view.reach, gathers=view.mode == "IG"),
        "hk": geometry.hk,
        "wk": geometry.wk,
        "rows": len(view.reach.rows),
        "columns": len(view.reach.columns),
        "channels": channels,
        "per_group": last - first,
        "first_channel": first,
        "group_step": step // max(len(groups) - 1, 1),
        "transposed": columns,
        "padded": lambda: view.reach.padded,
    }
    return KernelCall(target, (source,), (target,), work, function, details=details)


def block_transpose_call(
    tile: LoopTile, groups: Sequence[tuple[Extent, Extent]], details: Mapping[str, Any]
) -> KernelCall:
    """The box of weights ``w`` to `TRANSPOSED`: per input channel a row [co of its group · window], rotated.

    `groups` are the output channels of each group and the input channels wanted of it, counted in the box.
    """
    geometry, codegen, dtype = ConvGeometry.of(tile.op.attributes), tile.choice.codegen, tile.dtype
    co = groups[0][0][1] - groups[0][0][0]
    channels = sum(stop - start for _, (start, stop) in groups)

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        places = {"X": addresses["w"], "Y": addresses[TRANSPOSED]}
        return conv_nests.blocktransp(Site(codegen, cores, dtype, places), geometry, co, channels)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        weights = geometry.filters_chw(arrays[0])
        rows = [
            block_transpose(weights[slice(*targets), slice(*sources)], channels_last=geometry.hwc)
            for targets, sources in groups
        ]
        return (np.concatenate(rows),)

    return KernelCall("blocktransp", ("w",), (TRANSPOSED,), work, function, details=details)


def product_call(
    choice: KernelChoice,
    a: Sequence[str],
    b: Sequence[str],
    c: Piece,
    sizes: tuple[int, int, int],
    dtype: DType,
    *,
    trans_b: bool,
) -> KernelCall:
    """`matmul_call` of matrices that may lie in several buffers, one row of the matrix each.

    `sizes` are n, k and m. Buffers of a tile follow one another in L1 in the order of its operands, so that
    the matmul is priced as if all of them lay behind the first.
    """
    call = matmul_call(choice, *factors(a[0], b[0], *sizes, trans_b=trans_b), c, dtype, trans_b=trans_b)
    if len(a) == len(b) == 1:
        return call
    rows_of_a = len(a)

    def function(arrays: Sequence[Array]) -> Sequence[Array]:
        left = np.concatenate([array.reshape(-1) for array in arrays[:rows_of_a]])
        right = np.concatenate([array.reshape(-1) for array in arrays[rows_of_a:]])
        return call.function([left, right])

    details = {**call.details, "buffers_of_a": rows_of_a}
    return replace(call, reads=(*a, *b), function=function, details=details)


def accumulated(
    tile: LoopTile, terms: Sequence[tuple[Sequence[KernelCall], KernelCall, KernelCall]]
) -> list[KernelCall]:
    """Sum of terms (calls before, the call into the result, the same call into `PARTIAL`): WG over a batch.

    The first term is written, each further one goes to `PARTIAL` and is added.
    """
    total, dtype, calls = tile.box(tile.space.result), tile.dtype, list[KernelCall]()
    for number, (before, first, further) in enumerate(terms):
        calls += [*before, further if number else first]
        if number:
            elements = prod(total.shape)
            calls.append(
                vector_add_call(tile.choice, total=total.name, term=PARTIAL, elements=elements, dtype=dtype)
            )
    return calls


def partial_sum(tile: LoopTile) -> tuple[Scratch, ...]:
    """The buffer `accumulated` adds from, if the tile has more than one sample."""
    several = tile.count(BATCH) > 1
    return (Scratch(PARTIAL, tile.box(tile.space.result).shape, tile.dtype),) if several else ()


def bias_add_call(tile: LoopTile, image: str) -> KernelCall:
    """image += bias per channel: a fork of its own, so that the matmul is finished (see trainlib's race)."""
    geometry = ConvGeometry.of(tile.op.attributes)
    sizes = {"channels": tile.count("co"), "positions": tile.count("ho", "wo")}
    strides = conv_nests.planes(geometry, **sizes)
    placed: dict[str, Piece | str] = {"Y": Piece(image, strides=strides), "D": BIAS}
    reads, writes = (image, BIAS), (image,)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        shape = (-1,) if geometry.hwc else (-1, *(1,) * (arrays[0].ndim - 1))
        return (arrays[0] + arrays[1].reshape(shape),)

    return kernel_call(tile.choice, "conv_bias_fw", sizes, placed, reads, writes, function, tile.dtype)


def bias_sum_call(
    tile: LoopTile,
    channels: Extent | None = None,
    inside: tuple[Extent, Extent] | None = None,
    image: tuple[int, int, int] | None = None,
) -> KernelCall:
    """The gradient of a bias: sums of the output gradient over the samples and positions of a tile.

    `channels` and the rows and columns `inside` are counted in the boxes of dy, which are `image` (channels,
    rows, columns); all, unless something else is said. A sum of no positions is 0 and costs as one of one.
    """
    geometry = ConvGeometry.of(tile.op.attributes)
    sources = tuple(part("dy", sample) for sample in range(tile.count(BATCH)))
    first, last = channels or (0, tile.count("co"))
    rows, columns = (slice(*extent) for extent in inside) if inside else (slice(None), slice(None))
    positions = prod(stop - start for start, stop in inside) if inside else tile.count("ho", "wo")
    sizes = {"channels": last - first, "positions": max(positions, 1)}
    channel, position = conv_nests.planes(geometry, **sizes)
    strides = channel, sizes["channels"] * sizes["positions"], position
    placed: dict[str, Piece | str] = {"Y": Piece(sources[0], strides=strides), "D": BIAS_GRADIENT}

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        images = [geometry.image_chw(array)[first:last, rows, columns] for array in arrays]
        sums = [image.reshape(last - first, -1).sum(axis=1) for image in images]
        return (np.sum(sums, axis=0),)

    sides = image or (tile.count("co"), tile.count("ho"), tile.count("wo"))
    (top, bottom), (left, right) = inside or tuple((0, side) for side in sides[1:])
    details = {
        "image_s": (prod(sides), *conv_nests.image_strides(geometry, *sides)),
        "first": (first, top, left),
        "rows": bottom - top,
        "columns": right - left,
    }
    sizes["samples"] = len(sources)
    choice, dtype, writes = tile.choice, tile.dtype, (BIAS_GRADIENT,)
    return kernel_call(
        choice, "conv_bias_wg", sizes, placed, sources, writes, function, dtype, details=details
    )

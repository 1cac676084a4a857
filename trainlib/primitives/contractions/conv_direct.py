# SPDX-License-Identifier: Apache-2.0
"""Convolutions by direct loops, without im2row: naive Conv2D, depthwise, transposed convolution.

One kernel call per sample computes all channels of a tile, in parallel over them in every step.
PULP-TrainLib's depthwise WG and IG let every core do every channel and know neither stride nor padding (a
variant, where they can do it), its naive IG is wrong for a 5x5 kernel; here all steps of all geometries are
what the mathematics says. Sums run over channels, then kernel rows, then kernel columns, as the loops do.

Names of tensors here are those of the convolution; a transposed convolution has other roles for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from arch.spec.isa import TeamWork
from configs.values import Struct
from trainlib.ir.numerics import details_of_sums, matmul
from trainlib.ir.steps import Array, Extent, KernelCall, Operand, TileTask, part
from trainlib.primitives.contractions import conv_nests
from trainlib.primitives.contractions.contraction import BIAS_GRADIENT, LoopTile
from trainlib.primitives.contractions.conv_calls import (
    PARTIAL,
    TileImage,
    accumulated,
    bias_sum_call,
    of_groups,
    of_window,
    partial_sum,
    tile_image,
)
from trainlib.primitives.contractions.conv_geometry import ConvGeometry, block_transpose, patches
from trainlib.primitives.contractions.conv_groups import channels_met, within_group
from trainlib.primitives.contractions.conv_nests import Direct, Site
from trainlib.primitives.lowering.calls import BATCH, box

_Pricing = Callable[[Site, Direct], TeamWork]


class _Nest(Struct, frozen=True):
    """A direct loop of one tile: what it costs and computes; called once per sample.

    Arrays of the nest are X (the side of ci), W, Y (the side of co) and D (the bias); it writes `result`.
    """

    kernel: str
    pricing: _Pricing
    loop: Direct
    result: str
    function: Callable[[Sequence[Array]], tuple[Array, ...]]
    tile: LoopTile
    details: Mapping[str, Any]

    def call(self, x: str, w: str, y: str) -> KernelCall:
        """The loop on these buffers."""
        buffers = {"X": x, "W": w, "Y": y} | ({"D": "b"} if self.loop.bias else {})

        def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
            places = {key: addresses[name] for key, name in buffers.items()}
            return self.pricing(Site(self.tile.choice.codegen, cores, self.tile.dtype, places), self.loop)

        # The image stands before the weights, whichever side it is; the weight gradient reads both images.
        order = [key for key in "XYWD" if key in buffers and key != self.result]
        return KernelCall(
            self.kernel,
            tuple(buffers[key] for key in order),
            (buffers[self.result],),
            work,
            self.function,
            macs=self.loop.macs,
            details={**self.details, **details_of_sums(self.tile.choice.accumulation, self.tile.dtype)},
        )


def task(tile: LoopTile, loops: str) -> TileTask:
    """A box of an image with its halo and the filters it meets; a nest per sample, sums, biases.

    There is no matmul kernel to choose. `loops` ``scattered`` prices the loop that adds each product to the
    result in memory, as transposed convolutions do, ``published`` those of PULP-TrainLib's depthwise
    gradients (`published_depthwise` says which they can do).
    """
    return _weights(tile, loops) if tile.space.result == "dw" else _image(tile, loops)


def _image(tile: LoopTile, loops: str) -> TileTask:
    """The result or its adjoint: an image from an image, with the bias where the part begins the sum."""
    image = "dy" if tile.space.result == "dx" else "x"
    inputs = (tile.box(image), tile.box("w"), *tile.bias)
    return TileTask(inputs, (tile.box(tile.space.result),), (), lambda: _image_calls(tile, image, loops))


def _image_calls(tile: LoopTile, image: str, loops: str) -> list[KernelCall]:
    geometry, gathers = ConvGeometry.of(tile.op.attributes), image == "dy"
    over = "co" if gathers else "ci"
    parts, sources, within = channels_met(tile, image, over)
    view, dtype, choice = tile_image(tile), tile.dtype, tile.choice
    channels, fetched = tile.extents[tile.channel], tile.span("w", "ci").start
    bias = tile.adds_bias

    def filters_of(weights: Array, number: int) -> Array:
        """The filters of a group, those of a gradient turned round."""
        if gathers:
            start, stop = within_group(parts[number], geometry.ci_of_group)
            met = weights[slice(*within[number]), start - fetched : stop - fetched]
            return block_transpose(met)
        met = weights[parts[number].start - channels[0] : parts[number].stop - channels[0]]
        return met.reshape(len(met), -1)

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        read, weights = geometry.image_chw(arrays[0]), geometry.filters_chw(arrays[1])
        products = []
        for number, met in enumerate(within):
            rows = patches(read[slice(*met)], view.reach.rows, view.reach.columns)
            filters = filters_of(weights, number)
            products.append(matmul(filters, rows.T, dtype=dtype, accumulation=choice.accumulation))
        planes = np.concatenate(products)
        if bias:
            planes = planes + arrays[2][:, None]
        return (geometry.image_back(planes.reshape(len(planes), len(view.reach.rows), -1)),)

    loop = Direct(
        geometry, view.reach, tile.count(tile.channel), tile.count(over), sources[1] - sources[0], bias
    )
    details = {
        **of_window(geometry, view.reach, gathers=gathers),
        **of_groups(geometry, parts, within, gathers=gathers, fetched=fetched),
        "filter_s": conv_nests.filter_strides(geometry, tile.span("w", "ci").count),
    }
    kernel: str = "conv_direct_fw"
    pricing: _Pricing = conv_nests.direct_forward
    if gathers:
        kernel, pricing = "conv_direct_ig", conv_nests.direct_input
        if loops == "published":
            kernel, pricing = "dw_ig", partial(conv_nests.published, nest="dw_ig")
        elif loops == "scattered":
            kernel, pricing = "conv_scatter_fw", conv_nests.scatter
    nest = _Nest(kernel, pricing, loop, "X" if gathers else "Y", function, tile, details)
    x, y = (tile.role(name) for name in (("dx", "dy") if gathers else ("x", "y")))
    return [nest.call(part(x, sample), "w", part(y, sample)) for sample in range(tile.count(BATCH))]


def _weights(tile: LoopTile, loops: str) -> TileTask:
    """The gradient of the weights from two images, and that of the bias."""
    # A bias gradient needs positions of the image that no kernel position reads, too.
    view = tile_image(tile, owned=tile.role("x") == "dy" and BIAS_GRADIENT in tile.op)
    sums_bias = _bias_gradient(tile, view) if BIAS_GRADIENT in tile.op else None
    outputs = (tile.box("dw"), *([sums_bias[1]] if sums_bias else []))
    # The view may hold more than the window reads.
    tile.extents.update({"hi of x": view.rows.extent, "wi of x": view.columns.extent})

    def calls() -> list[KernelCall]:
        return _weight_calls(tile, view, loops) + ([sums_bias[0]] if sums_bias else [])

    return TileTask((tile.box("x"), tile.box("dy")), outputs, partial_sum(tile), calls)


def _weight_calls(tile: LoopTile, view: TileImage, loops: str) -> list[KernelCall]:
    geometry = ConvGeometry.of(tile.op.attributes)
    image, gradient = tile.role("x"), tile.role("dy")
    parts, sources, within = channels_met(tile, "x", "ci")
    reach, dtype, choice = view.reach, tile.dtype, tile.choice
    filters, others = tile.count("co"), tile.count("ci")
    first = tile.extents["co"][0]
    loop = Direct(geometry, reach, filters, others, sources[1] - sources[0])

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        read, reached = geometry.image_chw(arrays[0]), geometry.image_chw(arrays[1])
        products = []
        for segment, met in zip(parts, within, strict=True):
            rows = patches(read[slice(*met)], reach.rows, reach.columns)
            left = reached[segment.start - first : segment.stop - first].reshape(segment.count, -1)
            product = matmul(left, rows, dtype=dtype, accumulation=choice.accumulation)
            products.append(product.reshape(-1, others, geometry.hk, geometry.wk))
        return (geometry.filters_back(np.concatenate(products)),)

    kernel: str = "conv_direct_wg"
    pricing: _Pricing = conv_nests.direct_weights
    if loops == "published":
        kernel, pricing = "dw_wg", partial(conv_nests.published, nest="dw_wg")
    details = of_window(geometry, reach, gathers=False)
    details |= of_groups(geometry, parts, within, gathers=False, fetched=0)
    details |= {"ho": len(reach.rows), "wo": len(reach.columns)}
    nest = _Nest(kernel, pricing, loop, "W", function, tile, details)
    terms = []
    for sample in range(tile.count(BATCH)):
        x, y = part(image, sample), part(gradient, sample)
        terms.append(((), nest.call(x, "dw", y), nest.call(x, PARTIAL, y)))
    return accumulated(tile, terms)


def published_depthwise(attributes: Mapping[str, Any]) -> bool:
    """Whether PULP-TrainLib's depthwise gradients can do it: CHW, no stride, padding or dilation."""
    geometry = ConvGeometry.of(attributes)
    return geometry.plain and geometry.strides == (1, 1) and not any(geometry.pads)


def _bias_gradient(tile: LoopTile, view: TileImage) -> tuple[KernelCall, Operand] | None:
    """db by the tile that sees its channels of dy first; None for the others."""
    geometry, channels = ConvGeometry.of(tile.op.attributes), tile.extents["co"]
    sources = tile.span("x", "ci").extent
    if tile.role("dy") == "dy":
        if geometry.groups == 1 and sources[0] > 0:
            return None
        return bias_sum_call(tile), box(tile.op, BIAS_GRADIENT, channels)
    if geometry.groups == 1 and channels[0] > 0:
        return None
    # Of a group that another tile began, that tile sums the channels.
    begun = -(-channels[0] // geometry.co_of_group) * geometry.ci_of_group
    filters = (max(begun, sources[0]), sources[1])
    if filters[0] >= filters[1]:
        return None
    # Boxes of the image overlap where windows do: each position counts in the part that owns it.
    inside = (
        _counted_from(view.rows.start, _owned(tile, "hi", "ho")),
        _counted_from(view.columns.start, _owned(tile, "wi", "wo")),
    )
    image = (sources[1] - sources[0], view.rows.count, view.columns.count)
    call = bias_sum_call(tile, (filters[0] - sources[0], filters[1] - sources[0]), inside, image)
    return call, box(tile.op, BIAS_GRADIENT, filters)


def _owned(tile: LoopTile, axis: str, loop: str) -> Extent:
    """Positions of x that belong to the tile's part of a loop of y."""
    return tile.space.index("x", axis).owned(loop, tile.extents[loop], tile.space.loops[loop])


def _counted_from(start: int, extent: Extent) -> Extent:
    return (extent[0] - start, extent[1] - start) if extent[0] < extent[1] else (0, 0)

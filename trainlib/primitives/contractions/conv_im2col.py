# SPDX-License-Identifier: Apache-2.0
"""Convolutions by a matmul on unrolled patches (im2col), with groups and bias.

Per step and group, extents as in PULP-TrainLib:

- CHW: FW (N=co, K=ci·hk·wk, M=ho·wo, B transposed), WG (N=co, K=ho·wo, M=ci·hk·wk), IG (N=ci, K=co·hk·wk,
  M=hi·wi, B transposed) over the im2row of the output gradient and the weights block-transposed and rotated;
- HWC, weights [co, hk, wk, ci]: FW (N=ho·wo, K, M=co, B transposed), WG on the transposed output gradient and
  the im2col (N=co, K=ho·wo, M=hk·wk·ci, B transposed), IG (N=hi·wi, K, M=ci, B transposed).

Kernels work on one sample at a time: a tile calls them once for each, and WG adds up the samples of the
batch. The groups of a sample share one fork (see `conv_groups`). The bias is a fork behind the matmul, its
gradient a sum of dy in WG.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainlib.ir.steps import Extent, KernelCall, Scratch, TileTask, part
from trainlib.primitives.contractions.contraction import LoopTile
from trainlib.primitives.contractions.conv_calls import (
    PARTIAL,
    TRANSPOSED,
    accumulated,
    bias_add_call,
    bias_sum_call,
    block_transpose_call,
    of_groups,
    partial_sum,
    positions_of,
)
from trainlib.primitives.contractions.conv_geometry import WINDOW, ConvGeometry, Segment
from trainlib.primitives.contractions.conv_groups import (
    channels_met,
    filter_product,
    gradient_product,
    within_group,
)
from trainlib.primitives.contractions.conv_nests import filter_strides
from trainlib.primitives.contractions.conv_unroll import unrolled
from trainlib.primitives.lowering.calls import transpose_call
from trainlib.primitives.lowering.kernel_call import Piece

GRADIENT_TRANSPOSED = "dy_transposed"
"""Name of the scratch buffer of dyᵀ in the WG of HWC."""


def task(tile: LoopTile) -> TileTask:
    """Per sample an im2row of the box with its halo and a matmul; sums and biases."""
    return _weights(tile) if tile.space.result == "dw" else _image(tile)


def _image(tile: LoopTile) -> TileTask:
    """FW, and IG with the weights block-transposed once."""
    gathers = tile.space.result == "dx"
    image, over = ("dy", "co") if gathers else ("x", "ci")
    parts, sources, within = channels_met(tile, image, over)
    matrices = unrolled(tile, image, sources, within)
    k = tile.count(over, *WINDOW)
    written = tile.box(tile.space.result)
    weights = TRANSPOSED if gathers else "w"
    scratch = list(matrices.scratch)

    def calls() -> list[KernelCall]:
        made: list[KernelCall] = []
        unrolling, positions = matrices.calls(), positions_of(tile)
        for sample, names in enumerate(matrices.names):
            made += unrolling[sample]
            if gathers and sample == 0:
                made.append(_block_transpose(tile, parts, within))
            target = Piece(part(tile.space.result, sample), written.shape[1:])
            made.append(filter_product(tile, parts, weights, names, target, k, positions))
            if tile.adds_bias:
                made.append(bias_add_call(tile, target.name))
        return made

    if gathers:
        scratch.append(Scratch(TRANSPOSED, (tile.count("ci"), k), tile.dtype))
    inputs = (*matrices.operands, tile.box("w"), *tile.bias)
    return TileTask(inputs, (written,), tuple(scratch), calls)


def _weights(tile: LoopTile) -> TileTask:
    """WG: a sum over the samples of dy · im2row(x)."""
    hwc = tile.op.attributes["layout"] == "HWC"
    as_columns = hwc and tile.op.attributes["im2col"] == "cores"
    parts, sources, within = channels_met(tile, "x", "ci")
    matrices = unrolled(tile, "x", sources, within, columns=as_columns)
    written = tile.box("dw")
    channels, positions, width = tile.count("co"), positions_of(tile), tile.count("ci", *WINDOW)

    def calls() -> list[KernelCall]:
        terms = []
        unrolling = matrices.calls()
        for sample, names in enumerate(matrices.names):
            before, left = list(unrolling[sample]), part("dy", sample)
            if hwc:
                source = Piece(left, (positions, channels))
                turned = Piece(GRADIENT_TRANSPOSED, (channels, positions))
                before.append(transpose_call(tile.choice, source, turned, tile.dtype))
                left = turned.name
            first, further = (
                gradient_product(tile, parts, left, names, target, positions, width, trans_b=as_columns)
                for target in (Piece("dw", written.shape), Piece(PARTIAL, written.shape))
            )
            terms.append((before, first, further))
        return accumulated(tile, terms) + ([bias_sum_call(tile)] if tile.bias_gradient else [])

    scratch = [*matrices.scratch, *partial_sum(tile)]
    if hwc:
        scratch.append(Scratch(GRADIENT_TRANSPOSED, (channels, positions), tile.dtype))
    inputs = (*matrices.operands, tile.box("dy"))
    return TileTask(inputs, (written, *tile.bias_gradient), tuple(scratch), calls)


def _block_transpose(tile: LoopTile, parts: Sequence[Segment], within: Sequence[Extent]) -> KernelCall:
    """The weights of every group, input channels first, each window rotated."""
    geometry = ConvGeometry.of(tile.op.attributes)
    fetched = tile.span("w", "ci")
    wanted = []
    for item, of_group in zip(parts, within, strict=True):
        start, stop = within_group(item, geometry.ci_of_group)
        wanted.append((of_group, (start - fetched.start, stop - fetched.start)))
    details = {
        **of_groups(geometry, parts, within, gathers=True, fetched=fetched.start),
        "filter_s": filter_strides(geometry, fetched.count),
        "hwc": geometry.hwc,
    }
    return block_transpose_call(tile, wanted, details)

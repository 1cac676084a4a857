# SPDX-License-Identifier: Apache-2.0
"""The job table as the public code generator prints it (hossein1387/MVU_Code_Gen f43a5a0), defects included.

The formulas are those of its table; docs/barvinn.md says where they are wrong. Only for comparison: no job
is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from barvinn.machine.job import Loops
from barvinn.machine.timing import LANES
from barvinn.mapping.layers import LayerShape
from configs.values import Struct, replace


class TableRow(Struct, frozen=True):
    """One layer of the job table; `countdown` in cycles of one job, `total` of the layer."""

    layer: str
    input_shape: tuple[int, int, int]
    filter_shape: tuple[int, int, int]
    input: Loops
    weight: Loops
    countdown: Fraction
    total: Fraction


def published_rows(
    shapes: Sequence[LayerShape], input_bits: int, weight_bits: int
) -> tuple[list[TableRow], int]:
    """The rows of all convolutions and matrix multiplies, and "Total countdown", which is cut to an integer.

    Sizes go from layer to layer as the tool reckons them: pools are not seen.
    """
    rows: list[TableRow] = []
    size: tuple[int, int] | None = None
    for shape in shapes:
        if shape.kind == "pool":
            continue
        if shape.kind == "matmul":
            rows.append(_matmul(shape, input_bits, weight_bits))
            continue
        seen = shape if size is None else replace(shape, hi=size[0], wi=size[1])
        rows.append(_convolution(seen, input_bits, weight_bits))
        size = _next_size(seen)
    return rows, int(sum(row.total for row in rows))


def _convolution(shape: LayerShape, a: int, w: int) -> TableRow:
    C, F, W = shape.blocks_in, shape.blocks_out, shape.wi
    kh, kw = shape.kernel
    stride = shape.strides[0]
    window = C * kw * kh
    countdown = Fraction(window * a * w * F * (W - kw + 1), stride)
    rows = ceil(Fraction(W + shape.pads[0] + shape.pads[1], stride))
    inputs = Loops(
        jumps=(
            -a * (C * (kh - 1) * W + (kw - stride - 1) * C + 1),
            -a * (C * (kh - 1) * W + kw * C - 1),
            a * (C * (W - kw) + 1),
            a,
            0,
        ),
        lengths=(0, a * w * F - 1, kh - 1, C * kw - 1, 0),
    )
    weights = Loops(
        jumps=(-w * (window * F - 1), w, -w * (window - 1), w, 0),
        lengths=(0, F - 1, a * w - 1, window - 1, 0),
    )
    return TableRow(shape.name, (C, shape.hi, W), (F, kh, kw), inputs, weights, countdown, countdown * rows)


def _matmul(shape: LayerShape, a: int, w: int) -> TableRow:
    """Tiles of the matrix, height (outputs) by width (inputs); the input walks the height, a defect."""
    width = ceil(Fraction(shape.ci * shape.kernel[0] * shape.kernel[1], LANES))
    height = shape.blocks_out
    countdown = Fraction(width * height * a * w)
    return TableRow(
        shape.name,
        (width, 1, 1),
        (height, 1, 1),
        Loops((-a * (width - 1), a, 0, 0, 0), (0, height - 1, 0, 0, 0)),
        Loops((w, -w * (width - 1), w, 0, 0), (0, a * w - 1, width - 1, 0, 0)),
        countdown,
        countdown,
    )


def _next_size(shape: LayerShape) -> tuple[int, int]:
    pad, stride = shape.pads[0], shape.strides[0]
    return (
        (shape.hi - shape.kernel[0] + 2 * pad) // stride + 1,
        (shape.wi - shape.kernel[1] + 2 * pad) // stride + 1,
    )

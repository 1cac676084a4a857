"""Geometry of a 2D convolution: which rows one tile needs, and the im2row matrices of a tile.

Along one axis output position o reads padded input positions o·stride ... o·stride + kernel - 1; padded
position p is input position p - before. The gradient goes the other way: input position i receives from
every o with 0 <= i + before - o·stride < kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainlib.steps import Array, Extent

Pads = tuple[int, int, int, int]
"""Zero rows and columns added (up, down, left, right)."""


@dataclass(frozen=True, slots=True)
class ConvGeometry:
    """Extents of one convolution; channels `ci` -> `co`, image `hi` x `wi` -> `ho` x `wo`."""

    ci: int
    hi: int
    wi: int
    co: int
    ho: int
    wo: int
    hk: int
    wk: int
    stride: int
    pads: Pads

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> ConvGeometry:
        """From the attributes of an op."""
        return cls(**{name: attributes[name] for name in cls.__slots__})

    @property
    def forward_k(self) -> int:
        """Reduction length of FW: one patch of the input."""
        return self.ci * self.hk * self.wk

    @property
    def gradient_k(self) -> int:
        """Reduction length of IG: one patch of the output gradient."""
        return self.co * self.hk * self.wk


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [start, stop) of a tensor that a tile needs, and zero rows around them.

    `before` is the position of row `start` relative to the first position the tile reads (in the stride-1
    positions of the reading side; negative if the row lies outside, as when a tile receives nothing at all
    and a row is fetched only to have one).
    """

    start: int
    stop: int
    before: int
    after: int

    @property
    def rows(self) -> Extent:
        """The interval, for an `Operand`."""
        return (self.start, self.stop)

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.stop - self.start


def forward_span(outputs: Extent, *, stride: int, before: int, kernel: int, size: int) -> Span:
    """Input rows that output rows `outputs` read, clipped to [0, size); what is clipped is padding.

    Never empty while the padding is smaller than the kernel.
    """
    first = outputs[0] * stride - before
    last = (outputs[1] - 1) * stride - before + kernel
    start, stop = max(first, 0), min(last, size)
    return Span(start, stop, start - first, last - stop)


def gradient_span(inputs: Extent, *, stride: int, before: int, kernel: int, size: int) -> Span:
    """Rows of the output gradient (of `size`) that reach input rows `inputs`; at least one row.

    `before` and `after` of the result count positions of the dilated gradient (row o at o·stride), whose
    window for these inputs is `inputs` + kernel - 1 positions long.
    """
    first = inputs[0] + before - kernel + 1
    last = inputs[1] - 1 + before
    start = min(max(-(-first // stride), 0), size - 1)
    stop = max(min(last // stride + 1, size), start + 1)
    return Span(start, stop, start * stride - first, last - (stop - 1) * stride)


def im2row(
    box: Array, *, hk: int, wk: int, rows: int, columns: int, stride: int, top: int, left: int
) -> Array:
    """Patches of `box` [c, h, w] as matrix [rows·columns, c·hk·wk], zero outside the box.

    Patch (r, q) covers box rows r·stride - top ... + hk - 1 and columns q·stride - left ... + wk - 1.
    """
    channels, height, width = box.shape
    padded = np.zeros((channels, (rows - 1) * stride + hk, (columns - 1) * stride + wk), box.dtype)
    # Columns beyond the last patch (sizes the stride does not divide) are simply not copied.
    copied_rows = min(height, padded.shape[1] - top)
    copied_columns = min(width, padded.shape[2] - left)
    padded[:, top : top + copied_rows, left : left + copied_columns] = box[:, :copied_rows, :copied_columns]
    return _patches(padded, hk, wk, rows, columns, stride)


def im2row_of_gradient(
    box: Array, *, hk: int, wk: int, rows: int, columns: int, stride: int, top: int, left: int
) -> Array:
    """Patches of the dilated output gradient as matrix [rows·columns, co·hk·wk] for input pixels.

    `box` [co, h, w] holds gradient rows; box row i lies at position i·stride + top of the window of
    rows + hk - 1 positions, columns likewise; positions outside the window do not contribute.
    """
    window = np.zeros((box.shape[0], rows + hk - 1, columns + wk - 1), box.dtype)
    source_rows, target_rows = _inside(box.shape[1], stride, top, window.shape[1])
    source_columns, target_columns = _inside(box.shape[2], stride, left, window.shape[2])
    window[:, target_rows, target_columns] = box[:, source_rows, source_columns]
    return _patches(window, hk, wk, rows, columns, 1)


def block_transpose(weights: Array) -> Array:
    """Weights [co, ci, hk, wk] as matrix [ci, co·hk·wk] with every kernel rotated by 180 degrees."""
    co, ci, hk, wk = weights.shape
    rotated = weights[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)
    return np.ascontiguousarray(rotated).reshape(ci, co * hk * wk)


def _patches(padded: Array, hk: int, wk: int, rows: int, columns: int, stride: int) -> Array:
    channels = padded.shape[0]
    patches = np.empty((rows, columns, channels, hk, wk), padded.dtype)
    for h in range(hk):
        for w in range(wk):
            picked = padded[
                :, h : h + (rows - 1) * stride + 1 : stride, w : w + (columns - 1) * stride + 1 : stride
            ]
            patches[:, :, :, h, w] = picked.transpose(1, 2, 0)
    return patches.reshape(rows * columns, channels * hk * wk)


def _inside(count: int, stride: int, offset: int, size: int) -> tuple[slice, slice]:
    """Of positions i·stride + offset, i < count: the i inside [0, size), and where they are, as slices."""
    first = max(0, -(offset // stride))
    last = min(count, -((offset - size) // stride))
    if last <= first:
        return slice(0, 0), slice(0, 0)
    start = first * stride + offset
    return slice(first, last), slice(start, start + (last - first - 1) * stride + 1, stride)

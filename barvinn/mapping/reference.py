# SPDX-License-Identifier: Apache-2.0
"""What a layer of integers computes, said plainly: no planes, no address generators, no 64 lanes."""

from __future__ import annotations

from typing import Any

import numpy as np

from barvinn.mapping.layers import IntegerLayer, Integers, LayerShape


def accumulate(shape: LayerShape, weights: Integers, x: Integers) -> Integers:
    """Sums of a convolution, zeros around the map: x [ci, h, w], weights [co, ci, kh, kw] to [co, ho, wo].

    In floats through the BLAS, of as many bits as no sum exceeds.
    """
    largest = int(np.abs(weights).max(initial=0)) * int(np.abs(x).max(initial=0)) * weights[0].size
    dtype: Any = np.float32 if largest < 1 << 24 else np.float64
    (top, left, bottom, right), (down, across) = shape.pads, shape.strides
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right))).astype(dtype)
    sums: Any = np.zeros((shape.co, shape.ho, shape.wo), dtype)
    for row in range(shape.kernel[0]):
        for column in range(shape.kernel[1]):
            y, z = row * shape.dilations[0], column * shape.dilations[1]
            part = padded[
                :, y : y + (shape.ho - 1) * down + 1 : down, z : z + (shape.wo - 1) * across + 1 : across
            ]
            sums += np.tensordot(weights[:, :, row, column].astype(dtype), part, 1)
    whole: Integers = sums.astype(np.int64)
    return whole


def pool_maximum(shape: LayerShape, x: Integers) -> Integers:
    """The largest of each window, what lies outside the map left out: [c, h, w] to [c, ho, wo]."""
    (top, left, bottom, right), (down, across) = shape.pads, shape.strides
    padded = np.pad(x, ((0, 0), (top, bottom), (left, right)), constant_values=np.iinfo(np.int64).min)
    parts = [
        padded[:, y : y + (shape.ho - 1) * down + 1 : down, z : z + (shape.wo - 1) * across + 1 : across]
        for y in range(shape.kernel[0])
        for z in range(shape.kernel[1])
    ]
    largest: Integers = np.max(parts, axis=0)
    return largest


def held(values: Integers, bits: int) -> Integers:
    """The values as a register of two's complement with so many bits holds them."""
    kept = np.mod(values, 1 << bits)
    return np.where(kept >= 1 << (bits - 1), kept - (1 << bits), kept)


def scaled(layer: IntegerLayer, x: Integers) -> Integers:
    """What goes to the quantiser: x [ci, h, w] to [co, ho, wo]; no register is too narrow."""
    if layer.shape.kind == "pool":
        return pool_maximum(layer.shape, x)
    sums = accumulate(layer.shape, layer.weights, x)
    values: Integers = sums * layer.scaler[:, None, None] + layer.bias[:, None, None]
    return np.maximum(values, 0) if layer.relu else values


def quantised(layer: IntegerLayer, values: Integers) -> Integers:
    """The bits of `values` that the quantiser keeps, read as signed or unsigned; too large ones wrap."""
    shift = layer.msb_index - layer.output_bits + 1
    kept = np.floor_divide(values, 1 << shift) if shift >= 0 else values * (1 << -shift)
    levels = 1 << layer.output_bits
    kept = np.mod(kept, levels)
    return np.where(kept >= levels // 2, kept - levels, kept) if layer.output_signed else kept

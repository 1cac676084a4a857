# SPDX-License-Identifier: Apache-2.0
"""Words of the memories: feature maps and weights as bit planes, most significant first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from barvinn.machine.memories import packed_lanes
from barvinn.machine.timing import LANES
from barvinn.mapping.layers import IntegerLayer, Integers

Words = NDArray[np.uint64]


def map_words(values: Integers, bits: int) -> Words:
    """A feature map [c, h, w] as words: row, column, block of 64 channels, plane; channel i in bit i.

    Channels are filled up to 64 with zeros; a negative value goes in two's complement.
    """
    channels, rows, columns = values.shape
    blocks = -(-channels // LANES)
    padded = np.zeros((blocks * LANES, rows, columns), np.int64)
    padded[:channels] = values
    lanes = padded.reshape(blocks, LANES, rows, columns).transpose(2, 3, 0, 1)
    return _planes(lanes, bits).ravel()


def map_values(words: Words, shape: tuple[int, int, int], bits: int, *, is_signed: bool) -> Integers:
    """The feature map [c, h, w] that lies in `words`; the reverse of `map_words`."""
    channels, rows, columns = shape
    blocks = -(-channels // LANES)
    planes = words.reshape(rows, columns, blocks, bits, 1)
    ones = ((planes >> np.arange(LANES, dtype=np.uint64)) & np.uint64(1)).astype(np.int64)
    factors = np.int64(1) << np.arange(bits - 1, -1, -1)
    if is_signed:
        factors[0] *= -1
    values = (ones * factors[:, None]).sum(axis=3)
    image: Integers = values.transpose(2, 3, 0, 1).reshape(blocks * LANES, rows, columns)[:channels]
    return image


def weight_words(layer: IntegerLayer, blocks: range | None = None) -> Words:
    """Weights [co, ci, kh, kw] as words: block of 64 outputs, row, column, block of 64 inputs, plane.

    A word is uint64 [64]: the bits of 64 inputs for each of 64 outputs. Result [words, 64], of all output
    blocks or those asked for. A pool has one word, which gives every channel to itself.
    """
    if layer.shape.kind == "pool":
        return (np.uint64(1) << np.arange(LANES, dtype=np.uint64))[None, :]
    blocks = blocks if blocks is not None else range(layer.shape.blocks_out)
    weights = layer.weights[blocks.start * LANES : blocks.stop * LANES]
    outputs, inputs, height, width = weights.shape
    blocks_in = layer.shape.blocks_in
    padded = np.zeros((len(blocks) * LANES, blocks_in * LANES, height, width), np.int64)
    padded[:outputs, :inputs] = weights
    ordered = padded.reshape(len(blocks), LANES, blocks_in, LANES, height, width).transpose(0, 4, 5, 2, 1, 3)
    words = _planes(ordered, layer.weight_bits)  # [..., 64 outputs, planes]
    return np.ascontiguousarray(np.moveaxis(words, -1, -2)).reshape(-1, LANES)


def channel_words(values: Integers) -> Integers:
    """A number per output channel as entries of 64, [blocks, 64], filled up with zeros."""
    blocks = -(-len(values) // LANES)
    padded = np.zeros(blocks * LANES, np.int64)
    padded[: len(values)] = values
    return padded.reshape(blocks, LANES)


def _planes(lanes: Integers, bits: int) -> Words:
    """The last axis, 64 lanes, as one word per plane, MSB first: [..., 64] to [..., bits]."""
    shifts = np.arange(bits - 1, -1, -1)
    return packed_lanes((lanes[..., None, :] >> shifts[:, None]) & 1)

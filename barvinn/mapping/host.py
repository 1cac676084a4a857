# SPDX-License-Identifier: Apache-2.0
"""What the host computes where units have no comparator: ReLU and max-pool, on the words of a map."""

from __future__ import annotations

import numpy as np

from barvinn.machine.program import HostStep, LayerProgram
from barvinn.machine.timing import BarvinnTiming
from barvinn.mapping.images import Words, map_values, map_words
from barvinn.mapping.layers import IntegerLayer
from barvinn.mapping.reference import pool_maximum
from configs.values import replace


def raw_layer(layer: IntegerLayer, timing: BarvinnTiming) -> IntegerLayer:
    """The layer as the units compute it.

    Without comparator it keeps its sign, in as many more planes above the quantiser's window as the sign is
    away; the host cuts them off again.
    """
    if not layer.relu or layer.shape.kind == "pool" or timing.behaviour.compare_bit is not None:
        return layer
    top = timing.width.scaled_bits - 1
    sign = min(max(layer.msb_index + 1, top if layer.sign_index is None else layer.sign_index), top)
    bits = layer.output_bits + sign - layer.msb_index
    return replace(layer, relu=False, msb_index=sign, output_bits=bits, output_signed=True)


def host_relu(layer: IntegerLayer, raw: IntegerLayer, program: LayerProgram) -> HostStep:
    """The ReLU of `layer` on the map that `raw` left, and the window of bits that its quantiser keeps."""
    shape = (layer.shape.co, layer.shape.ho, layer.shape.wo)

    def compute(words: Words) -> Words:
        values = map_values(words, shape, raw.output_bits, is_signed=True)
        return map_words(np.maximum(values, 0) & ((1 << layer.output_bits) - 1), layer.output_bits)

    words = program.words // raw.output_bits * layer.output_bits
    return HostStep("Relu", int(np.prod(shape)), program.first_word, program.words, words, compute)


def host_pool(layer: IntegerLayer, read_first: int, read_words: int) -> HostStep:
    """The max-pool of the map that lies from `read_first` on."""
    shape = layer.shape

    def compute(words: Words) -> Words:
        x = map_values(words, (shape.ci, shape.hi, shape.wi), layer.input_bits, is_signed=False)
        return map_words(pool_maximum(shape, x), layer.output_bits)

    words = shape.ho * shape.wo * shape.blocks_out * layer.output_bits
    return HostStep("MaxPool", shape.co * shape.ho * shape.wo, read_first, read_words, words, compute)

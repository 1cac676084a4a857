# SPDX-License-Identifier: Apache-2.0
"""A network of real numbers whose weights are quantised, and how it becomes layers of integers.

Weights have to be multiples of a step, one per tensor or per output channel (LSQ leaves them so). Batch norm
and biases go into scaler and bias words. Activations have no scale of their own in the file: the window of
bits that the quantiser keeps is the one that loses no leading bit on the input at hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from barvinn.machine.timing import Widths
from barvinn.mapping.layers import MOST_BITS, IntegerLayer, Integers, LayerShape, pool_layer
from barvinn.mapping.reference import accumulate, held, quantised, scaled
from configs.errors import InputError
from configs.values import Struct

Reals = NDArray[np.float64]

FULL_SCALE = 0.98
"""Where scalers put the largest value of a layer, in units of the power of two above it."""

STEP_TOLERANCE = 1e-3
"""How far a weight may be from a multiple of the step, in steps: float32 rounding of 2^8 steps is less."""

MOST_STEP_TRIALS = 256
"""The smallest weight is tried as 1, 2, ... so many steps."""


class RealLayer(Struct, frozen=True):
    """A layer before it is quantised: y = gain * sum(weights * x) + offset, per output channel, then ReLU.

    `weights` [co, ci, kh, kw], `gain` and `offset` [co], all float64; a pool has empty weights. `where` is
    the node it comes from, for messages.
    """

    shape: LayerShape
    weights: Reals
    gain: Reals
    offset: Reals
    relu: bool
    where: str = ""


class Precision(Struct, frozen=True):
    """Bits of activations between layers, of weights, and of the last layer's output."""

    activation_bits: int
    weight_bits: int
    output_bits: int

    def check(self) -> None:
        """Raise `InputError` for a precision out of 1 to `MOST_BITS` bits."""
        for option, bits in (
            *(("--aprec", self.activation_bits), ("--wprec", self.weight_bits)),
            ("--oprec", self.output_bits),
        ):
            if not 1 <= bits <= MOST_BITS:
                raise InputError(
                    f"the precision is {bits} bits, not 1 to {MOST_BITS}",
                    where=option,
                    cure=f"use 1 to {MOST_BITS}",
                )


class IntegerNetwork(Struct, frozen=True):
    """Layers in integers, the output map of each [c, h, w] on `x`, and what one step of it is worth."""

    x: Integers
    layers: tuple[IntegerLayer, ...]
    outputs: tuple[Integers, ...]
    steps: tuple[float, ...]


def draw_input(shape: tuple[int, int, int], bits: int, seed: int) -> Integers:
    """An input map of unsigned integers of `bits` bits."""
    return np.random.default_rng(seed).integers(0, 1 << bits, shape)


def integer_network(
    layers: Sequence[RealLayer], precision: Precision, x: Integers, width: Widths
) -> IntegerNetwork:
    """Quantise a network on the unsigned input map x [c, h, w], layer after layer.

    Sums are cut to the `width` of their registers as units do. Raises `InputError` naming the layer for
    weights that are no multiples of a step or need more bits, and for numbers that are not finite.
    """
    precision.check()
    kernels = [number for number, layer in enumerate(layers) if layer.shape.kind != "pool"]
    last = kernels[-1] if kernels else -1
    made: list[IntegerLayer] = []
    maps: list[Integers] = []
    steps: list[float] = []
    bits, is_signed, step = precision.activation_bits, False, 1.0
    now = x
    for number, layer in enumerate(layers):
        if layer.shape.kind == "pool":
            integer = pool_layer(layer.shape, bits, is_signed=is_signed, where=layer.where)
            values = scaled(integer, now)
        else:
            output_bits = precision.output_bits if number == last else precision.activation_bits
            integer, step, values = _quantised(
                layer, now, (bits, is_signed, step), precision.weight_bits, output_bits, width
            )
        now = quantised(integer, values)
        bits, is_signed = integer.output_bits, integer.output_signed
        made.append(integer)
        maps.append(now)
        steps.append(step)
    return IntegerNetwork(x, tuple(made), tuple(maps), tuple(steps))


def _quantised(
    layer: RealLayer,
    x: Integers,
    given: tuple[int, bool, float],
    weight_bits: int,
    output_bits: int,
    width: Widths,
) -> tuple[IntegerLayer, float, Integers]:
    """The layer in integers, the step of its output, and what goes to the quantiser."""
    input_bits, input_signed, input_step = given
    if not (np.isfinite(layer.gain).all() and np.isfinite(layer.offset).all()):
        raise InputError(
            "the bias or batch norm of the layer computes an infinity or a NaN",
            where=layer.where or layer.shape.name,
            cure="use finite numbers and non-negative variances",
        )
    weights, steps = integer_weights(layer.weights, weight_bits, layer.where or layer.shape.name)
    sums = accumulate(layer.shape, weights, x)
    scaler, bias, unit = _scaler_and_bias(layer.gain * steps * input_step, layer.offset, sums, width)
    sums = held(sums, width.accumulator_bits)
    values = held(sums * scaler[:, None, None] + bias[:, None, None], width.scaled_bits)
    weight_signed = bool((weights < 0).any())
    never_negative = not (weight_signed or input_signed) and (scaler >= 0).all() and (bias >= 0).all()
    output_signed = not (layer.relu or never_negative)
    sign_index = max(int(values.max()).bit_length(), (~int(values.min())).bit_length())
    if layer.relu:
        values = np.maximum(values, 0)
    least, most = int(values.min()), int(values.max())
    needed = max(most.bit_length(), (~least).bit_length() if least < 0 else 0) + output_signed
    msb_index = min(max(needed, output_bits), width.scaled_bits) - 1
    made = IntegerLayer(
        layer.shape,
        weights,
        scaler,
        bias,
        layer.relu,
        msb_index,
        input_bits,
        input_signed,
        weight_bits,
        weight_signed,
        output_bits,
        output_signed,
        sign_index,
    )
    return made, unit * 2.0 ** (msb_index - output_bits + 1), values


def _scaler_and_bias(
    gain: Reals, offset: Reals, sums: Integers, width: Widths
) -> tuple[Integers, Integers, float]:
    """Integers that stand for gain and offset in units of the third result.

    With one gain for all channels, and offsets that are whole numbers of it, exactly. Else with as many bits
    as scaler, bias and scaled value have, one bit of the last left free, and so that the largest value comes
    just below a power of two: the quantiser keeps the bits below one.
    """
    ones = np.ones(len(gain), np.int64)
    if gain[0] > 0 and np.allclose(gain, gain[0], rtol=1e-9, atol=0.0):
        whole = np.rint(offset / gain[0])
        if np.abs(offset / gain[0] - whole).max() < STEP_TOLERANCE and np.abs(whole).max() < (
            1 << (width.bias_bits - 1)
        ):
            return ones, whole.astype(np.int64), float(gain[0])
    largest = float(np.abs(sums * gain[:, None, None] + offset[:, None, None]).max())
    rooms = (
        (float(np.abs(gain).max()), (1 << (width.scaler_bits - 1)) - 1),
        (float(np.abs(offset).max()), (1 << (width.bias_bits - 1)) - 1),
        (largest, 1 << (width.scaled_bits - 2)),
    )
    factor = min((room / size for size, room in rooms if size > 0), default=1.0)
    if largest > 0:
        factor = FULL_SCALE * 2.0 ** floor(log2(largest * factor)) / largest
    scaler = np.rint(gain * factor).astype(np.int64)
    return scaler, np.rint(offset * factor).astype(np.int64), 1 / factor


def integer_weights(weights: Reals, bits: int, where: str) -> tuple[Integers, Reals]:
    """Weights [co, ...] as integers of `bits` bits, and the step of each output channel [co].

    Unsigned if none is negative, else two's complement. Raises `InputError` at `where` if they are no
    multiples of one step per output channel, or need more bits.
    """
    if not np.isfinite(weights).all():
        raise InputError("the weights have infinities or NaN", where=where, cure="use finite weights")
    channels = len(weights)
    are_whole = bool((weights == np.rint(weights)).all())
    whole: Integers = np.rint(weights).astype(np.int64) if are_whole else np.zeros(0, np.int64)
    if are_whole and _needed_bits(whole) <= bits:
        return whole, np.ones(channels)
    for parts in ([weights], list(weights)):
        fits = [each for part in parts if (each := _multiples(part, bits)) is not None]
        if len(fits) == len(parts):
            multiples = fits[0][0] if len(parts) == 1 else np.stack([part for part, _ in fits])
            if _needed_bits(multiples) <= bits:
                return multiples, np.broadcast_to([step for _, step in fits], channels).copy()
    if are_whole:
        needed = _needed_bits(whole)
        raise InputError(
            f"the integer weights go from {whole.min()} to {whole.max()} and need {needed} bits, but "
            f"{bits} are set",
            where=where,
            cure=f"use --wprec {needed}" if needed <= MOST_BITS else "use weights of fewer bits",
        )
    levels = len(np.unique(np.abs(weights[0])))
    raise InputError(
        f"the float weights are not quantised to {bits} bits with one scale per output channel: channel 0 "
        f"has {levels} different magnitudes",
        where=where,
        cure=f"quantise them to {bits} bits with one scale per output channel, e.g. by LSQ",
    )


def _needed_bits(whole: Integers) -> int:
    least, most = int(whole.min()), int(whole.max())
    return max(1, most.bit_length()) if least >= 0 else max(most.bit_length(), (~least).bit_length()) + 1


def _multiples(values: Reals, bits: int) -> tuple[Integers, float] | None:
    """The values as multiples of a step of at most 2^bits - 1, and the step; None if there is none."""
    sizes: Any = np.unique(np.abs(values))
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return np.zeros(values.shape, np.int64), 1.0
    most = (1 << bits) - 1
    if len(sizes) > 4 * most:
        return None  # more sizes than levels, float32 rounding of each allowed for
    for divisor in range(1, min(most, MOST_STEP_TRIALS) + 1):
        step = float(sizes[0]) / divisor
        multiples = sizes / step
        if multiples[-1] <= most + 0.5 and np.abs(multiples - np.rint(multiples)).max() < STEP_TOLERANCE:
            return np.rint(values / step).astype(np.int64), step
    return None

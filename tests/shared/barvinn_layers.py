# SPDX-License-Identifier: Apache-2.0
"""Layers of integers for tests of BARVINN: drawn ones, and what the units make of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from barvinn.machine.array import ArrayResult, BarvinnArray
from barvinn.machine.behaviour import DOCUMENTED, RTL
from barvinn.machine.timing import BarvinnTiming
from barvinn.mapping.compiler import CompiledNetwork, compile_network
from barvinn.mapping.images import map_values
from barvinn.mapping.layers import IntegerLayer, Integers, LayerShape
from configs.values import replace
from tools.barvinn_jobs import load_barvinn
from traces.events import Tracer

POLLING = {"hart.handler_instructions": 0}


@cache
def machine() -> BarvinnTiming:
    """The installed machine as documented, under a program that polls."""
    return load_barvinn("barvinn", POLLING, DOCUMENTED)


@cache
def published() -> BarvinnTiming:
    """The same as its RTL is."""
    return load_barvinn("barvinn", POLLING, RTL)


def drawn(rng: np.random.Generator, bits: int, *, is_signed: bool, shape: tuple[int, ...]) -> Integers:
    """Integers of `bits` bits."""
    least = -(1 << (bits - 1)) if is_signed else 0
    return rng.integers(least, least + (1 << bits), shape)


def integer_layer(
    shape: LayerShape,
    weights: Integers,
    *,
    bits: tuple[int, int, int],
    signed: tuple[bool, bool] = (False, True),
    relu: bool = True,
    msb_index: int | None = None,
    scaler: Integers | None = None,
    bias: Integers | None = None,
) -> IntegerLayer:
    """A layer; `bits` of inputs, weights, outputs, `signed` inputs and weights."""
    return IntegerLayer(
        shape,
        weights,
        np.ones(shape.co, np.int64) if scaler is None else scaler,
        np.zeros(shape.co, np.int64) if bias is None else bias,
        relu,
        bits[2] - 1 if msb_index is None else msb_index,
        *(bits[0], signed[0], bits[1], signed[1], bits[2]),
        not relu,
    )


def drawn_layer(seed: int) -> tuple[IntegerLayer, Integers]:
    """A convolution or matrix multiply with everything drawn, and an input map for it."""
    rng = np.random.default_rng(seed)
    bits = tuple(int(each) for each in rng.integers(1, 9, 3))
    signed = bool(rng.integers(2)), bool(rng.integers(2))
    ci = int(rng.choice([1, 3, 16, 63, 64, 65, 100, 128, 130]))
    co = int(rng.choice([1, 5, 64, 70, 128, 129, 200]))
    if rng.integers(4) == 0:
        shape = LayerShape("drawn", "matmul", ci, int(rng.integers(1, 4)), 1, co)
    else:
        kh, kw = (int(each) for each in rng.integers(1, 4, 2))
        hi, wi = (int(each) for each in rng.integers(3, 9, 2))
        down, across = (int(each) for each in rng.integers(1, 3, 2))
        pads = [int(rng.integers(0, size)) for size in (kh, kw, kh, kw)]
        spread = (int(rng.integers(1, 3)), int(rng.integers(1, 3))) if rng.integers(3) == 0 else (1, 1)
        shape = LayerShape(
            *("drawn", "conv", ci, hi, wi, co, (kh, kw), (down, across)),
            pads=(pads[0], pads[1], pads[2], pads[3]),
            dilations=spread,
        )
    weights = drawn(rng, bits[1], is_signed=signed[1], shape=(co, ci, *shape.kernel))
    layer = integer_layer(
        shape,
        weights,
        bits=(bits[0], bits[1], bits[2]),
        signed=signed,
        relu=bool(rng.integers(2)),
        msb_index=int(rng.integers(0 if rng.integers(4) == 0 else bits[2] - 1, 20)),
        scaler=rng.integers(-7, 8, co) if rng.integers(2) else np.full(co, 3),
        bias=rng.integers(-500, 500, co) if rng.integers(2) else None,
    )
    return layer, drawn(rng, bits[0], is_signed=signed[0], shape=(ci, shape.hi, shape.wi))


def executed(
    layers: Sequence[IntegerLayer],
    x: Integers,
    *,
    units: int = 1,
    timing: BarvinnTiming | None = None,
    unit: BarvinnTiming | None = None,
    as_made: bool = False,
    tracer: Tracer | None = None,
) -> tuple[Integers, ArrayResult, CompiledNetwork]:
    """The output map that lies in the units' memories after a run, what the run gave, and its program.

    Jobs are made for `timing`, the units are `unit` (the same if none is given), and harts know where its
    registers have their bits unless `as_made`.
    """
    timing = timing or machine()
    network = compile_network(layers, x, timing, units)
    unit = unit or timing
    array = BarvinnArray(unit, tracer)
    written = network.program.behaviour if as_made else unit.behaviour
    result = array.run(replace(network.program, behaviour=written))
    last = layers[-1]
    words = array.output(network.program.layers[-1])
    shape = last.shape.co, last.shape.ho, last.shape.wo
    return map_values(words, shape, last.output_bits, is_signed=last.output_signed), result, network

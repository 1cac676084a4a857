"""What one op should have made of the numbers it was given, and how far rounding may take each element of it.

The truth is the op's untiled reference in float64. How much an element may differ follows from what it is
made of: its *gain* is how far it moves (root mean square) when every float input is nudged by a relative
amount of random size, divided by that amount. Of a sum of products that is the root of the sum of squares of
the terms; it needs no knowledge of the op. A nudge is far smaller than the distance of two fp32 numbers and
the same for equal values of a tensor, so it changes no order in it and breaks no tie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod, sqrt

import numpy as np

from configs.dtypes import BY_NAME, is_float, is_narrow
from trainlib.graph import Op, Tensor
from trainlib.numerics import roundings_by_format
from trainlib.registry import lowering_of, step_of
from trainlib.steps import Array

NUDGE = 2.0**-40
"""Size of a nudge, relative: 2^16 times finer than fp32, 2^12 times coarser than float64."""

FEW_NUDGES, MANY_NUDGES = 2, 16
"""Nudged evaluations at first, and before an element is called wrong: few may miss how far it moves."""

ROUNDINGS_OF_AN_OP = 16
"""Roundings to fp32 that an op of no sums makes at most, those of its constants included."""

SPREAD = 4
"""Times the expected size of a random walk of roundings that it may have: beyond it lies 1 in 10,000 at most,
and a sum by blocks, as BLAS makes it, walks much less than that."""


@dataclass(frozen=True, slots=True)
class OpTruth:
    """The outputs of an op by tensor name, float64 or integers, before they are rounded to be stored."""

    op: Op
    inputs: Mapping[str, Array]
    """By role, float64 or integers."""
    outputs: Mapping[str, Array]
    length: int
    """Terms of the longest sum behind an element of an output, at most."""
    contracts: bool
    """Whether it is a sum of products, whose elements have no rounding in common."""
    single: bool
    """Whether its reference computes in fp32 whatever it is given, as the bit tricks of PULP-TrainLib do."""
    _gains: dict[int, dict[str, Array]] = field(default_factory=dict, repr=False)

    def gains(self, nudges: int) -> dict[str, Array]:
        """Gain of every element of every float output, float64, from so many nudged evaluations."""
        if nudges not in self._gains:
            self._gains[nudges] = self._moved(nudges)
        return self._gains[nudges]

    @np.errstate(all="ignore")
    def _moved(self, nudges: int) -> dict[str, Array]:
        squares: dict[str, Array] = {}
        for seed in range(nudges):
            inputs = {
                role: nudged(array, nudges * number + seed)
                for number, (role, array) in enumerate(self.inputs.items())
            }
            moved = _reference(self.op, inputs)
            for name, array in moved.items():
                if array.dtype.kind == "f":
                    change = (array - self.outputs[name]) / NUDGE
                    squares[name] = squares.get(name, np.float64(0)) + np.square(change)
        return {name: np.sqrt(array / nudges) for name, array in squares.items()}


def op_truth(op: Op, tensors: Mapping[str, Tensor], values: Mapping[str, Array]) -> OpTruth:
    """The op on `values`, which hold at least its inputs by tensor name. Raises what its reference raises."""
    inputs = {role: exact(values[name]) for role, name in zip(op.reads, op.inputs, strict=True)}
    with np.errstate(all="ignore"):
        macs = lowering_of(op).macs(op, tensors)
        outputs = _reference(op, inputs)
        single = any(array.dtype == np.float32 for array in outputs.values())
        outputs = {name: exact(array) for name, array in outputs.items()}
        return OpTruth(op, inputs, outputs, _length(op, tensors, macs), macs > 0, single)


def exact(array: Array) -> Array:
    """Floats of any format as float64; integers as they are."""
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def nudged(array: Array, seed: int) -> Array:
    """Every element moved by a random share of `NUDGE` of itself, in ±2, equal elements alike.

    The share is a hash of the bits of the element and of `seed`, of mean 0 and variance 1.
    """
    if array.dtype.kind != "f":
        return array
    bits = array.view(np.uint64) + np.uint64((0x9E3779B97F4A7C15 * (2 * seed + 1)) & 0xFFFFFFFFFFFFFFFF)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    share = ((bits >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1) * sqrt(3)
    with np.errstate(invalid="ignore"):
        moved: Array = array * (1 + NUDGE * share)
    return moved


@np.errstate(all="ignore")
def room(
    truth: OpTruth, gains: Mapping[str, Array], tensors: Mapping[str, Tensor], roundings: int, kernel: bool
) -> dict[str, Array]:
    """How far rounding may have taken every element of every float output before it was rounded to be stored.

    Two things add up: fp32 arithmetic (a random walk over the terms of a sum) and, in narrower formats,
    results that are stored on the way: `roundings` of them, the output itself included, each a part of the
    sum that may be twice the gain. With `kernel` every partial sum is rounded to the format a kernel for it
    sums in. Source of the walk: Higham and Mary (2019).
    """
    found = {}
    for name, gain in gains.items():
        dtype, size = tensors[name].dtype, np.abs(truth.outputs[name]) + gain
        far = BY_NAME["float32"].unit_roundoff * (ROUNDINGS_OF_AN_OP + SPREAD * sqrt(truth.length)) * size
        if is_narrow(dtype):
            walks = roundings_by_format(BY_NAME[dtype], roundings - 1, truth.length if kernel else 0)
            for kind, steps in walks.items():
                walk = min(steps, SPREAD * sqrt(steps))
                far = far + walk * (kind.unit_roundoff * (size + gain) + kind.finest_step / 2)
        found[name] = far
    return found


def _reference(op: Op, inputs: Mapping[str, Array]) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        results = step_of(op).reference(op, inputs)
    found = {}
    for role, name in zip(op.writes, op.outputs, strict=True):
        if role in results:
            found[name] = np.asarray(results[role])
    return found


def _length(op: Op, tensors: Mapping[str, Tensor], macs: int) -> int:
    """Products per result of a contraction; else inputs per result, if every input went into one result."""
    results = [prod(tensors[name].shape) for name in op.outputs if is_float(tensors[name].dtype)]
    fewest = max(1, min(results, default=1))
    largest = max([prod(tensors[name].shape) for name in op.inputs], default=1)
    return max(1, -(-largest // fewest), -(-macs // max(1, *results)) if macs else 1)

# SPDX-License-Identifier: Apache-2.0
"""What one op should have made of the numbers it was given, and how far rounding may take each element of it.

The truth is the op's untiled reference in float64. How much an element may differ follows from what it is
made of: its *gain* is how far it moves (root mean square) when every float input is nudged by a relative
amount of random size, divided by that amount. Of a sum of products that is the root of the sum of squares of
the terms; it needs no knowledge of the op. A nudge is far smaller than the distance of two fp32 numbers and
the same for equal values of a tensor, so it changes no order in it and breaks no tie.

In float64 a tensor is two or four times as large as where it is stored, and several are needed at a time. So
truth and gain are handed out in parts, and an op whose results are made element by element (an optimizer,
mostly, on the largest tensors there are) is evaluated in parts as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod, sqrt

import numpy as np

from configs.dtypes import FP32, DType
from configs.values import Struct
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.numerics import roundings_by_format
from trainlib.ir.steps import Array
from trainlib.primitives.lowering.elementwise import ElementwiseLowering
from trainlib.registry import lowering_of, step_of

NUDGE = 2.0**-40
"""Size of a nudge, relative: 2^16 times finer than fp32, 2^12 times coarser than float64."""

FEW_NUDGES, MANY_NUDGES = 2, 16
"""Nudged evaluations at first, and where an element seems wrong, or nearly: few may miss how far it moves."""

ROUNDINGS_OF_AN_OP = 16
"""Roundings to fp32 that an op of no sums makes at most, those of its constants included."""

SPREAD = 4
"""Times the expected size of a random walk of roundings that it may have: beyond it lies 1 in 10,000 at most,
and a sum by blocks, as BLAS makes it, walks much less than that."""

PART_ELEMENTS = 1 << 16
"""Elements of a tensor that are looked at together: what is made of them stays in a processor's cache."""


class TruthSlice(Struct, frozen=True):
    """Some elements of an output of an op: their truth, and the gain of each."""

    name: str
    where: slice
    """Which elements they are of all, in their order in memory."""
    value: Array
    """Float64, flat; of an output of integers all of it, in its shape."""
    gain: Array | None
    """None of integers."""
    factor: Array | float = 1.0
    """What may multiply a result on the way, of an op of elements: an exponential below the normal numbers is
    off by half the smallest step, and its product with an input of 100 by fifty."""


class OpTruth:
    """What an op makes of `values`, which hold at least its inputs, before it is rounded to be stored.

    `values` are by tensor name, as they are stored. Raises what the op's reference raises.
    """

    def __init__(self, op: Op, tensors: Mapping[str, Tensor], values: Mapping[str, Array]) -> None:
        self.op = op
        self.inputs = {role: values[name] for role, name in zip(op.reads, op.inputs, strict=True)}
        with np.errstate(all="ignore"):
            macs = lowering_of(op).macs(op, tensors)
        self.length = _length(op, tensors, macs)
        """Terms of the longest sum behind an element of an output, at most."""
        self.contracts = macs > 0
        """Whether it is a sum of products, whose elements have no rounding in common."""
        self._pieces = _pieces(op, tensors)
        self._numbers = {op[role] for role in _numbers_of(op) or () if role in op}
        """Tensors of one number, which every piece reads, or makes anew."""
        made = self._outputs(self._pieces[0])
        self.single = any(array.dtype == np.float32 for array in made.values())
        """Whether its reference computes in fp32 whatever it is given: the bit tricks of PULP-TrainLib."""
        self.names = tuple(made)
        """The outputs that the reference makes."""
        self._whole = _exact(made) if len(self._pieces) == 1 else None
        self._sizes: dict[str, float] = {}
        self._gains: tuple[int, Mapping[str, Array]] = 0, {}
        self._shapes = {name: tensors[name].shape for name in made}
        self._largest = {name: tensors[name].dtype.largest for name in made if tensors[name].dtype.is_float}

    def output(self, name: str) -> Array:
        """All of an output, float64 or integers."""
        if self._whole is not None:
            return self._whole[name]
        parts = [_exact(self._outputs(piece))[name].reshape(-1) for piece in self._pieces]
        return (parts[0] if name in self._numbers else np.concatenate(parts)).reshape(self._shapes[name])

    @cached_property
    def size_of_inputs(self) -> float:
        """The largest finite element of any."""
        return max(map(largest_finite, self.inputs.values()), default=0.0)

    @cached_property
    def reads_not_finite(self) -> bool:
        """Whether an input holds an infinity or a NaN.

        What an op makes of those is a matter of how it is written, not of what it is: of a NaN the compiled
        ``x > 0 ? x : 0`` of a ReLU makes 0, as fmax.s of RISC-V does, and PyTorch a NaN.
        """
        return any(
            not np.isfinite(exact(flat[where])).all()
            for flat in (array.reshape(-1) for array in self.inputs.values())
            for where in slices(flat.size)
        )

    def undecidable(self, name: str) -> str | None:
        """Why another value of this output is not wrong, if there is a reason.

        Besides what it reads: an output beside it that its type cannot hold. The second moment of an Adam
        whose gradient is 1e30 is infinite in fp32, so the weight stays; in float64 it moves.
        """
        if self.reads_not_finite:
            return f"{self.op.name} reads an infinity or a NaN"
        for other, largest in self._largest.items():
            if other != name and self.size_of(other) > largest:
                return f"{self.op.name} computes values of '{other}' outside the range of its type"
        return None

    def size_of(self, name: str) -> float:
        """The largest finite element of an output."""
        if name not in self._sizes:
            self._sizes[name] = largest_finite(self.output(name))
        return self._sizes[name]

    def gains(self, nudges: int) -> Mapping[str, Array]:
        """Gain of every element of every float output, float64, from so many nudged evaluations."""
        if self._whole is None:
            flat: dict[str, list[Array]] = {}
            for part in self.parts(nudges):
                if part.gain is not None:
                    flat.setdefault(part.name, []).append(part.gain)
            return {name: np.concatenate(pieces).reshape(self._shapes[name]) for name, pieces in flat.items()}
        if self._gains[0] != nudges:
            self._gains = 0, {}  # those of fewer nudges are not asked for again
            self._gains = nudges, self._moved(self._pieces[0], self._whole, nudges)
        return self._gains[1]

    def parts(self, nudges: int) -> Iterator[TruthSlice]:
        """Every output, part by part, in the order of its elements."""
        for piece in self._pieces:
            made = self._whole if self._whole is not None else _exact(self._outputs(piece))
            gains = self.gains(nudges) if self._whole is not None else self._moved(piece, made, nudges)
            for name, array in made.items():
                if piece.start and name in self._numbers:
                    continue
                if name not in gains:
                    yield TruthSlice(name, slice(0, array.size), array, None)
                    continue
                value, gain = array.reshape(-1), gains[name].reshape(-1)
                for where in slices(value.size):
                    first, last = piece.start + where.start, piece.start + where.stop
                    at = slice(first, last)
                    yield TruthSlice(name, at, value[where], gain[where], self._factor(prod(array.shape), at))

    def _factor(self, elements: int, where: slice) -> Array | float:
        flat = [array.reshape(-1) for array in self.inputs.values() if array.dtype.kind not in "iub"]
        if any(array.size != elements for array in flat):
            return 1.0
        return prod((1 + np.abs(exact(array[where])) for array in flat), start=1.0)

    def _inputs(self, piece: slice) -> dict[str, Array]:
        if len(self._pieces) == 1:
            return dict(self.inputs)
        inputs = self.inputs.items()
        return {
            role: array if self.op[role] in self._numbers else array.reshape(-1)[piece]
            for role, array in inputs
        }

    def _outputs(self, piece: slice) -> dict[str, Array]:
        return _reference(self.op, {role: exact(array) for role, array in self._inputs(piece).items()})

    @np.errstate(all="ignore")
    def _moved(self, piece: slice, made: Mapping[str, Array], nudges: int) -> dict[str, Array]:
        """The gains of all float outputs."""
        squares: dict[str, Array] = {
            name: np.zeros(array.shape, np.float64) for name, array in made.items() if array.dtype.kind == "f"
        }
        for seed in range(nudges):
            inputs = enumerate(self._inputs(piece).items())
            moved = _reference(
                self.op, {role: nudged(array, nudges * place + seed) for place, (role, array) in inputs}
            )
            for name in list(moved):
                array = moved.pop(name).reshape(-1)
                if name not in squares:
                    continue
                total, unmoved = squares[name].reshape(-1), made[name].reshape(-1)
                for where in slices(array.size):
                    total[where] += np.square((array[where] - unmoved[where]) / NUDGE)
        for array in squares.values():
            np.divide(array, nudges, out=array)
            np.sqrt(array, out=array)
        return squares


def slices(size: int) -> Iterator[slice]:
    """All elements of a tensor of so many, `PART_ELEMENTS` at a time; of an empty one none, once."""
    firsts = range(0, max(size, 1), PART_ELEMENTS)
    return (slice(first, min(first + PART_ELEMENTS, size)) for first in firsts)


def exact(array: Array) -> Array:
    """Floats of any format as float64, in the order of their elements; integers as they are."""
    return array if array.dtype.kind in "iub" else np.asarray(array, np.float64, order="C")


def largest_finite(array: Array) -> float:
    """The largest finite element, whatever its sign; 0 of none."""
    flat, largest = array.reshape(-1), 0.0
    for where in slices(flat.size):
        sizes = np.abs(exact(flat[where]))
        largest = max(largest, float(np.max(sizes, initial=0, where=np.isfinite(sizes))))
    return largest


def nudged(array: Array, seed: int) -> Array:
    """Every element, in float64, moved by a random share of `NUDGE` of itself, in ±2, equal elements alike.

    The share is a hash of the bits of the element and of `seed`, of mean 0 and variance 1.
    """
    if array.dtype.kind in "iub":
        return array
    result = np.empty(array.shape, np.float64)
    before, after = array.reshape(-1), result.reshape(-1)
    for where in slices(before.size):
        after[where] = _nudged(before[where].astype(np.float64), seed)
    return result


def _nudged(array: Array, seed: int) -> Array:
    bits = array.view(np.uint64) + np.uint64((0x9E3779B97F4A7C15 * (2 * seed + 1)) & 0xFFFFFFFFFFFFFFFF)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    share = ((bits >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1) * sqrt(3)
    with np.errstate(invalid="ignore"):
        moved: Array = array * (1 + NUDGE * share)
    return moved


@np.errstate(all="ignore")
def room(truth: OpTruth, part: TruthSlice, dtype: DType, roundings: int, kernel: bool) -> Array:
    """How far rounding may have taken elements of an output before they were rounded to be stored in `dtype`.

    Two things add up: fp32 arithmetic (a random walk over the terms of a sum) and, in narrower formats,
    results that are stored on the way: `roundings` of them, the output itself included, each a part of the
    sum that may be twice the gain. With `kernel` every partial sum is rounded to the format a kernel for it
    sums in. Source of the walk: Higham and Mary (2019).
    """
    assert part.gain is not None
    gain = part.gain
    size = np.abs(part.value) + gain
    on_the_way = ROUNDINGS_OF_AN_OP + SPREAD * sqrt(truth.length)
    far: Array = on_the_way * (FP32.unit_roundoff * size + part.factor * FP32.finest_step / 2)
    if dtype.is_narrow:
        walks = roundings_by_format(dtype, roundings - 1, truth.length if kernel else 0)
        for kind, steps in walks.items():
            walk = min(steps, SPREAD * sqrt(steps))
            far = far + walk * (kind.unit_roundoff * (size + gain) + kind.finest_step / 2)
    return far


def _exact(made: Mapping[str, Array]) -> dict[str, Array]:
    return {name: exact(array) for name, array in made.items()}


def _numbers_of(op: Op) -> tuple[str, ...] | None:
    """Roles of one number, of a step on weights that is made element by element; None of other steps."""
    lowering = lowering_of(op)
    if isinstance(lowering, ElementwiseLowering) and not lowering.batched:
        return lowering.numbers
    return None


def _pieces(op: Op, tensors: Mapping[str, Tensor]) -> list[slice]:
    """Elements that can be evaluated by themselves, of all tensors but those of one number."""
    numbers = _numbers_of(op)
    counts = {prod(tensors[name].shape) for role, name in op.roles.items() if role not in (numbers or ())}
    if numbers is None or len(counts) != 1:
        return [slice(0, 0)]
    return list(slices(counts.pop()))


def _reference(op: Op, inputs: Mapping[str, Array]) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        results = step_of(op).reference(op, inputs)
    written = zip(op.writes, op.outputs, strict=True)
    return {name: np.asarray(results[role]) for role, name in written if role in results}


def _length(op: Op, tensors: Mapping[str, Tensor], macs: int) -> int:
    """Products per result of a contraction; else inputs per result, if every input went into one result."""
    results = [prod(tensors[name].shape) for name in op.outputs if tensors[name].dtype.is_float]
    fewest = max(1, min(results, default=1))
    largest = max([prod(tensors[name].shape) for name in op.inputs], default=1)
    return max(1, -(-largest // fewest), -(-macs // max(1, *results)) if macs else 1)

# SPDX-License-Identifier: Apache-2.0
"""Lowering of steps that are loops over vectors: layers and updates element by element, and losses.

Element i of a result depends on element i of what is read only, so any box is a tile, and each loop is a fork
of its own, as PULP-TrainLib's wrappers do. A loss reduces over all elements; only that of places is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from configs.dtypes import DType
from configs.errors import InputError
from configs.values import Struct
from trainlib.ir.graph import Op
from trainlib.ir.steps import Array, Function, KernelCall, KernelChoice, Ranges, Tensors, part
from trainlib.kernels.library import AS, LIBRARY
from trainlib.primitives.definition import Shape, Values
from trainlib.primitives.lowering.axes import LEADING, ONE, Area, Axes, AxesLowering
from trainlib.primitives.lowering.boxes import leading_extents
from trainlib.primitives.lowering.calls import BATCH, VECTOR_ADD
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.lowering.pieces import TileBuilder

Compute = Callable[[Op, Values], Values]
"""What a loop computes: arrays by role in, arrays by role out (more than it writes, if that is easier)."""


class VectorLoop(Struct, frozen=True):
    """One fork: the nest `nest`.yaml, on vectors that lie in the buffers of `roles`.

    `roles` follow the order of the arrays in the kernel file; one the op lacks is left out. A result without
    an array of its own is stored where an input lies, as the published in-place loops do.
    """

    nest: str
    roles: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    compute: Compute


def vector_call(
    choice: KernelChoice,
    nest: str,
    elements: int,
    vectors: Sequence[tuple[str, DType]],
    reads: Sequence[str],
    writes: Sequence[str],
    function: Function,
    *,
    fork: bool = True,
    sizes: Mapping[str, int] = MappingProxyType({}),
    details: Mapping[str, Any] = MappingProxyType({}),
) -> KernelCall:
    """The one place where a loop over vectors gets its price.

    `vectors` are buffer and dtype of the nest's arrays, in the order of the kernel file, `sizes` what it
    names besides `elements`. Raises InputError for an unknown nest and for one with another number of arrays.
    """
    names = LIBRARY.header(choice.codegen, nest).arrays
    if len(names) != len(vectors):
        buffers = ", ".join(buffer for buffer, _ in vectors)
        raise InputError(
            f"the kernel has arrays {', '.join(names)}, but is called with {buffers}",
            where=nest,
            cure="use a kernel with one array per buffer",
        )
    usual = vectors[0][1]
    arrays = {
        name: buffer if dtype == usual else Piece(buffer, dtype=dtype)
        for name, (buffer, dtype) in zip(names, vectors, strict=True)
    }
    full = {"elements": elements, **({"repeated": 0} if nest == VECTOR_ADD else {}), **sizes}
    return kernel_call(choice, nest, full, arrays, reads, writes, function, usual, fork=fork, details=details)


@dataclass(frozen=True)
class ElementwiseLowering(AxesLowering):
    """Tiles of a step that is a list of loops; a loop whose results nobody needs is left out.

    All arrays have one shape, those of the roles in `numbers` apart, which is (1,): every tile reads these
    whole, and the last tile writes those that are written, so that no tile reads one that a tile before it
    has changed. Each array has a dtype of its own. Of a result that is not `batched` (a weight) the first two
    dimensions may be cut, else the batch and two more. `takes_over`: the result may take over the bytes of an
    input nobody needs any more (`scheduler.addresses.lifetimes`).
    """

    loops: Callable[[Op], Sequence[VectorLoop]]
    numbers: tuple[str, ...] = ()
    batched: bool = True
    takes_over: bool = False

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """By number; those of a number."""
        rank = len(tensors[op[role]].shape)
        return (ONE,) if role in self.numbers else LEADING[:rank] if self.batched else LEADING[1 : 1 + rank]

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """``n`` (if there is a batch), then the leading dimensions ``d0``, ``d1``."""
        shape = tensors[op.outputs[0]].shape
        return leading_extents(shape if self.batched else (1, *shape))

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """All, unless the last tile writes more than the others."""
        return () if self._has_numbers(op) else self.extents(op, tensors)

    def mark(self, op: Op, tensors: Tensors, ranges: Ranges) -> object:
        """None, if the last tile writes more than the others."""
        return None if self._has_numbers(op) else super().mark(op, tensors, ranges)

    def _has_numbers(self, op: Op) -> bool:
        return any(name in op.roles for name in self.numbers)

    def needed(self, op: Op) -> list[VectorLoop]:
        """Loops of which somebody needs a result."""
        return [loop for loop in self.loops(op) if not set(loop.writes).isdisjoint(op.writes)]

    def loaded(self, area: Area) -> Sequence[str]:
        """What these loops read."""
        used = {role for loop in self.needed(area.op) for role in loop.reads}
        return [role for role in area.op.reads if role in used]

    def stored(self, area: Area) -> Sequence[str]:
        """Numbers by the last tile."""
        writes, shape = area.op.writes, area.tensors[area.op.outputs[0]].shape
        ends = all(stop == size for (_, stop), size in zip(area.region(writes[0]), shape, strict=True))
        return [role for role in writes if role not in self.numbers or ends]

    def compute(self, area: Area, build: TileBuilder) -> None:
        """One fork per loop."""
        op, writes = area.op, self.stored(area)
        elements, dtypes = prod(area.sizes(op.writes[0])), {role: area.dtype_of(role) for role in op.roles}
        for loop in self.needed(op):
            build.call(partial(_loop_call, build.choice, op, loop, dtypes, elements, writes, self.numbers))


def _loop_call(
    choice: KernelChoice,
    op: Op,
    loop: VectorLoop,
    dtypes: Mapping[str, DType],
    elements: int,
    written: Sequence[str],
    numbers: Sequence[str],
) -> KernelCall:
    vectors = [(role, dtypes[role]) for role in loop.roles if role in dtypes]
    reads = [role for role in loop.reads if role in dtypes]
    writes = [role for role in loop.writes if role in written]

    def function(values: Sequence[Array]) -> tuple[Array, ...]:
        results = loop.compute(op, dict(zip(reads, values, strict=True)))
        return tuple(_single(results[role]) for role in writes)

    form = update_name(op, loop.nest) if op.step == "UPD" else borrowed(op, loop.nest, writes[0])
    details = {"loop": loop, "reads": reads, "writes": writes, "numbers": numbers, "form": form}
    return vector_call(choice, loop.nest, elements, vectors, reads, writes, function, details=details)


def update_name(op: Op, nest: str) -> str:
    """The C of an update: its optimizer, and what its nest says beside that."""
    words = op.primitive.split("_")
    return "_".join((*words, *(word for word in nest.split("_")[1:] if word not in words)))


def borrowed(op: Op, nest: str, result: str) -> str:
    """The C of a formula that has the price of another, such as ``floor_fw_as_relu_fw``."""
    stem = f"{op.primitive}_{result.replace('dx', 'bw') if result[0] == 'd' else 'fw'}"
    return "" if stem == nest else f"{stem}{AS}{nest}"


def _single(array: Array) -> Array:
    """A float result in fp32, in which tiles compute."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


class LossNests(Struct, frozen=True):
    """The sizes that the nests of a loss name besides `elements`; `per_sample`: one call for each.

    The nests are ``NAME_fw`` and ``NAME_bw`` for the value and the gradient: `name`, or that of the loss.
    `cut`: what has a term of its own, ``places`` of [samples, classes, places] or ``elements``; may be cut.
    """

    sizes: Mapping[str, int] = {}
    per_sample: bool = False
    cut: str = ""
    name: str = ""


@dataclass(frozen=True)
class LossLowering(AxesLowering):
    """Two loops on the master core, value then gradient: PULP-TrainLib forks no loss.

    `value` and `gradient` compute the loss and its gradient from ``y`` and ``label``, if there is one. Where
    `nests` says that they are called per sample, the value adds up; where they may be cut, it is a sum over
    tiles, each of which has its own part of the gradient.
    """

    nests: Callable[[Mapping[str, Any], Shape], LossNests]
    value: Callable[[Op, Values], Array]
    gradient: Callable[[Op, Values], Array]
    each: Mapping[str, Callable[[Op, Values], Any]]
    """Of ``loss`` the terms and of ``dy`` the slopes, before they are multiplied with `scale`."""
    scale: Callable[[Op, Values], float]
    """What both are multiplied with, of a reduction that does not count labels."""
    counts: bool = False
    """Whether a mean of it may count labels, or their weights."""

    placed = True

    def axes_of(self, op: Op, tensors: Tensors, role: str) -> Axes:
        """y [samples, classes, places]; labels lack the classes. Those that are never cut are whole."""
        rank, cut = len(tensors[op[role]].shape), self._cut(op, tensors)
        if role == "loss" or not cut:
            return tuple(f"{place} of {role}" for place in range(rank))
        if cut == "elements":
            return LEADING[:rank]
        axes = (BATCH, "classes", "places", *LEADING[3:])
        return axes[:rank] if rank == len(tensors[op["y"]].shape) else (BATCH, *axes[2 : 1 + rank])

    def _cut(self, op: Op, tensors: Tensors) -> str:
        return self.nests(op.attributes, tensors[op["y"]].shape).cut

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, and the first dimension of the places, or of elements two; the value is a sum over all."""
        cut, shape = self._cut(op, tensors), tensors[op["y"]].shape
        if cut != "places":
            return leading_extents(shape) if cut else {}
        sizes = self._sizes(op, tensors, (BATCH, "places"))
        return {name: size for name, size in sizes.items() if size > 1}

    def compute(self, area: Area, build: TileBuilder) -> None:
        """The whole step, or some samples and places."""
        op, total, shape = area.op, area.tensors[area.op["y"]].shape, area.sizes("y")
        nests = self.nests(op.attributes, shape)
        samples = shape[0] if nests.per_sample else 1
        elements = prod(shape) // samples
        shares = {"sum": 1, "batchmean": shape[0] // samples / total[0], "mean": elements / prod(total)}
        share = np.float32(shares[op.attributes["reduction"]])
        dtypes = {role: area.dtype_of(role) for role in op.roles}

        def named(role: str, sample: int) -> str:
            return part(role, sample, sample + 1) if samples > 1 else role

        def call(nest: str, sample: int, target: str, function: Function) -> KernelCall:
            inputs = [named(role, sample) for role in op.reads]
            result = target if target == "loss" else named(target, sample)
            before = (result,) if target == "loss" and sample else ()
            kinds = [dtypes[role] for role in (*op.reads, target)]
            vectors = list(zip((*inputs, result), kinds, strict=True))
            reads = (*inputs, *before)
            details = {"formula": self.each[target], "target": target, "first": int(not before), **constants}
            details["form"] = borrowed(op, nest, {"dy": "dx"}.get(target, target))
            return vector_call(
                build.choice,
                nest,
                elements,
                vectors,
                reads,
                (result,),
                function,
                fork=False,
                sizes=nests.sizes,
                details=details,
            )

        options = op.attributes
        soft = "label" not in op or dtypes["label"].is_float
        ungiven = {name: 0 for name, value in options.items() if value is None}
        counting = self.counts and not soft and options["reduction"] == "mean"
        counting = counting and not {"class_weights", "ignore_index"} <= {*ungiven}

        def scale() -> float:
            """What the sum and the slopes are multiplied with; what labels count is not in it."""
            given = {role: np.zeros(area.sizes(role), dtypes[role]) for role in op.reads}
            one = {role: array[: len(array) // samples] for role, array in given.items()}
            return float(share) * (options["weight"] if counting else self.scale(op, one))

        constants = {**ungiven, "soft": int(soft), "counting": int(counting), "scale": scale}

        def value(arrays: Sequence[Array]) -> tuple[Array, ...]:
            given, before = dict(zip(op.reads, arrays, strict=False)), arrays[len(op.reads) :]
            term = np.array([self.value(op, given)], np.float32)
            return (sum(before, term * share),)

        def gradient(arrays: Sequence[Array]) -> tuple[Array, ...]:
            slope = self.gradient(op, dict(zip(op.reads, arrays, strict=True)))
            return (slope.astype(np.float32) * share,)

        for end, target, function in ("fw", "loss", value), ("bw", "dy", gradient):
            for sample in range(samples):
                nest = f"{nests.name or op.primitive}_{end}"
                build.call(partial(call, nest, sample, target, function))

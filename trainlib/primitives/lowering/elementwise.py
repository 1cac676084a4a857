# SPDX-License-Identifier: Apache-2.0
"""Lowering of steps that are loops over vectors: layers and updates element by element, and losses.

Element i of a result depends on element i of what is read only, so any box is a tile, and each loop is a fork
of its own, as PULP-TrainLib's wrappers do. A loss reduces over all elements; only that of places is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from configs.dtypes import DType
from configs.errors import InputError
from configs.values import Struct
from trainlib.ir.graph import Op
from trainlib.ir.steps import (
    Array,
    Function,
    KernelCall,
    KernelChoice,
    LateTask,
    Operand,
    Ranges,
    StepLowering,
    Tensors,
    TileTask,
    part,
)
from trainlib.kernels.library import LIBRARY
from trainlib.primitives.definition import Shape, Values
from trainlib.primitives.lowering.boxes import leading_extents, leading_region
from trainlib.primitives.lowering.calls import (
    batch_extent,
    batch_range,
    box,
    region_elements,
    whole,
)
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call

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
        raise InputError(f"the kernel has arrays {', '.join(names)}, but the step has {buffers}", where=nest)
    usual = vectors[0][1]
    arrays = {
        name: buffer if dtype == usual else Piece(buffer, dtype=dtype)
        for name, (buffer, dtype) in zip(names, vectors, strict=True)
    }
    return kernel_call(
        choice,
        nest,
        {"elements": elements, **sizes},
        arrays,
        reads,
        writes,
        function,
        usual,
        fork=fork,
        details=details,
    )


@dataclass(frozen=True, slots=True)
class ElementwiseLowering(StepLowering):
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

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """``n`` (if there is a batch), then the leading dimensions ``d0``, ``d1``."""
        return leading_extents(self._batch_of(tensors[op.outputs[0]].shape))

    def alike(self, op: Op, tensors: Tensors) -> Collection[str]:
        """All dimensions: a tile takes its part of every axis."""
        return self.extents(op, tensors)

    def even(self, op: Op, tensors: Tensors) -> Collection[str]:
        """All, unless the last tile writes more than the others."""
        return self.extents(op, tensors) if self.same_calls(op) else ()

    def same_calls(self, op: Op) -> bool:
        """Unless the last tile writes more than the others."""
        return not any(name in op.roles for name in self.numbers)

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """The same box of everything, one fork per loop."""
        shape, names = tensors[op.outputs[0]].shape, op.roles
        region = leading_region(self._batch_of(shape), ranges)[-len(shape) :]
        last = not self.numbers or all(stop == size for (_, stop), size in zip(region, shape, strict=True))
        writes = [role for role in op.writes if role not in self.numbers or last]
        loops = [loop for loop in self.loops(op) if not set(loop.writes).isdisjoint(op.writes)]
        used = {role for loop in loops for role in loop.reads}
        reads = [role for role in op.reads if role in used]
        dtypes = {role: tensors[name].dtype for role, name in names.items()}

        def operand(role: str) -> Operand:
            return Operand(names[role], ((0, 1),) if role in self.numbers else region, role)

        elements = region_elements(region)
        return LateTask(
            tuple([operand(role) for role in reads]),
            tuple([operand(role) for role in writes]),
            (),
            lambda: [_loop_call(choice, op, loop, dtypes, elements, writes, self.numbers) for loop in loops],
        )

    def _batch_of(self, shape: Shape) -> Shape:
        return shape if self.batched else (1, *shape)


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

    details = {"loop": loop, "reads": reads, "writes": writes, "numbers": numbers}
    return vector_call(choice, loop.nest, elements, vectors, reads, writes, function, details=details)


def _single(array: Array) -> Array:
    """A float result in fp32, in which tiles compute."""
    return array.astype(np.float32) if array.dtype == np.float64 else array


class LossNests(Struct, frozen=True):
    """The nests of a loss, and the sizes they name besides `elements`; `per_sample`: one call for each.

    `cut`: samples and places [samples, classes, places] may be cut, of which each has a term of its own.
    """

    value: str
    gradient: str
    sizes: Mapping[str, int] = {}
    per_sample: bool = False
    cut: bool = False


@dataclass(frozen=True, slots=True)
class LossLowering(StepLowering):
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

    def extents(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """None: the value is a sum over all elements."""
        return {}

    def reductions(self, op: Op, tensors: Tensors) -> Mapping[str, int]:
        """Samples, and the first dimension of the places."""
        shape = tensors[op["y"]].shape
        if not self.nests(op.attributes, shape).cut:
            return {}
        return batch_extent(shape[0]) | ({"places": shape[2]} if shape[2] > 1 else {})

    def tile(self, op: Op, tensors: Tensors, ranges: Ranges, choice: KernelChoice) -> TileTask:
        """The whole step, or some samples and places."""
        total = tensors[op["y"]].shape
        regions = {role: _of_places(op, role, tensors, ranges, len(total)) for role in (*op.reads, "dy")}
        shape = regions["y"].shape
        nests = self.nests(op.attributes, shape)
        samples = shape[0] if nests.per_sample else 1
        elements = prod(shape) // samples
        shares = {"sum": 1, "batchmean": shape[0] // samples / total[0], "mean": elements / prod(total)}
        share = np.float32(shares[op.attributes["reduction"]])
        dtypes = {role: tensors[op[role]].dtype for role in (*op.reads, *op.writes)}

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
            return vector_call(
                choice,
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
            given = {role: np.zeros(regions[role].shape, dtypes[role]) for role in op.reads}
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

        values = (call(nests.value, sample, "loss", value) for sample in range(samples))
        gradients = (call(nests.gradient, sample, "dy", gradient) for sample in range(samples))
        return TileTask(
            inputs=tuple(regions[role] for role in op.reads),
            outputs=(whole(op, tensors, "loss"), regions["dy"]),
            scratch=(),
            calls=(*values, *gradients),
        )


def _of_places(op: Op, role: str, tensors: Tensors, ranges: Ranges, rank: int) -> Operand:
    """What a tile sees of y [samples, classes, places], of `rank` axes, or of labels, without classes too."""
    shape = tensors[op[role]].shape
    region = {axis: (0, size) for axis, size in enumerate(shape)}
    region |= {0: batch_range(ranges, shape[0])}
    if "places" in ranges:
        region[2 - rank + len(shape)] = ranges["places"]
    return box(op, role, *region.values())

# SPDX-License-Identifier: Apache-2.0
"""Forks as data: a nest with the buffers of its arrays, the dimensions of its sizes, and a formula.

Sizes, shapes of arrays, row programs, the call of every tile and the untiled reference follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from configs.values import Struct
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, KernelCall
from trainlib.primitives.definition import Shape, Values
from trainlib.primitives.formulas import wide
from trainlib.primitives.lowering.axes import Area, Axes, AxesLowering, Form
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.lowering.row_loop import RowLoop


class Fork(Struct, frozen=True, dict=True):
    """A call of the nest `nest`, in which `formula` makes arrays of arrays.

    `buffers` are those of the arrays of the nest, ``X:x Z:sums``; `moves` says what is read and written,
    ``x -> sums``. A size is the product of some dimensions, or 1. The formula has an array with all sizes
    that it has dimensions of, in their order, and 1 for each of the others. `rows` to `across` are those of
    `RowLoop`. `larger`: the larger of two `rows` goes over the cores; this is the mark if it is the second.
    """

    nest: str
    buffers: str
    moves: str
    formula: Callable[..., Any]
    sizes: dict[str, Axes]
    rows: Axes = ()
    elements: Axes = ("elements",)
    numbers: Mapping[str, Any] = {}
    mark: str = ""
    across: bool = False
    larger: str = ""

    @cached_property
    def arrays(self) -> dict[str, str]:
        """Buffers by the names of arrays."""
        return dict(item.split(":") for item in self.buffers.split())

    @cached_property
    def sides(self) -> tuple[list[str], ...]:
        """Buffers that are read, and those that are written."""
        return tuple(side.split() for side in self.moves.split("->"))

    def run(self, area: Area, build: TileBuilder) -> None:
        """The call of a tile."""
        build.call(lambda: self._call(area, build))

    def compute(self, area: Area, values: Sequence[Array]) -> list[Array]:
        """What is written, in the shapes of its buffers, from what is read."""
        counts, (reads, writes) = self._counts(area), self.sides
        seen = (
            array.reshape(self._shape(area, name, counts)) for name, array in zip(reads, values, strict=True)
        )
        made = self.formula(*seen, **self.numbers)
        results = []
        for name, result in zip(writes, made if isinstance(made, tuple) else (made,), strict=True):
            shape = self._shape(area, name, counts)
            whole = result if result.size == prod(shape) else np.broadcast_to(result, shape)
            results.append(whole.reshape(area.sizes(name)))
        return results

    def _counts(self, area: Area) -> dict[str, int]:
        return {name: prod(area.shape(*axes)) for name, axes in self.sizes.items()}

    def _has(self, area: Area, buffer: str, size: str) -> bool:
        axes = self.sizes[size]
        return not axes or not {*area.axes(buffer)}.isdisjoint(axes)

    def _shape(self, area: Area, buffer: str, counts: Mapping[str, int]) -> Shape:
        return tuple(count if self._has(area, buffer, name) else 1 for name, count in counts.items())

    def _call(self, area: Area, build: TileBuilder) -> KernelCall:
        counts, (reads, writes) = self._counts(area), self.sides

        def function(values: Sequence[Array]) -> list[Array]:
            return [array.astype(np.float32, copy=False) for array in self.compute(area, values)]

        def piece(buffer: str) -> Piece:
            shape = tuple(count for name, count in counts.items() if self._has(area, buffer, name))
            return Piece(buffer, shape, dtype=None if buffer in area.form.scratch else area.dtype_of(buffer))

        arrays = {letter: piece(buffer) for letter, buffer in self.arrays.items()}
        details = {"rows": self._loop(area, counts)}
        return kernel_call(
            build.choice, self.nest, counts, arrays, reads, writes, function, build.dtype, details=details
        )

    def _loop(self, area: Area, counts: Mapping[str, int]) -> RowLoop:
        rows, mark = self.rows, self.mark
        if self.larger and counts[rows[1]] > counts[rows[0]]:
            rows, mark = rows[::-1], mark + self.larger
        indices = (
            dict.fromkeys(self.sizes, "s")
            | dict.fromkeys(self.elements[-1:], "i")
            | dict.fromkeys(rows[:1], "r")
        )

        def place(buffer: str) -> str:
            axes, first, at = area.axes(buffer), dict[str, int](), 0
            for name in self.sizes:
                if self._has(area, buffer, name):
                    at = min((axes.index(axis) for axis in self.sizes[name] if axis in axes), default=at)
                    first[name] = at
            inside = sorted(first, key=first.__getitem__)
            terms = ["*".join((indices[name], *inside[inside.index(name) + 1 :])) for name in first]
            return " + ".join(terms) or "0"

        letters = {buffer: letter for letter, buffer in self.arrays.items()}
        reads, writes = ("".join(letters[buffer] for buffer in side) for side in self.sides)
        places = {letter: place(buffer) for letter, buffer in self.arrays.items()} if rows else {}
        return RowLoop(
            self.formula,
            reads,
            writes,
            places,
            rows,
            self.elements,
            numbers=self.numbers,
            mark=mark,
            across=self.across,
        )


class ForkLowering(AxesLowering):
    """A step whose kernels are all `Fork`, whose formulas are its untiled reference as well."""

    def results(self, op: Op, values: Values) -> Mapping[str, Shape]:
        """Shapes of the results, those of the first input."""
        return dict.fromkeys(op.writes, values[op.reads[0]].shape)

    def reference(self, op: Op, values: Values) -> Values:
        """All forks on whole tensors, in float64."""
        shapes = {**{role: array.shape for role, array in values.items()}, **self.results(op, values)}
        tensors = {op[role]: Tensor(role, shape, "") for role, shape in shapes.items()}
        area, known = Area(Form(self, op, tensors), {}), {**wide(values)}
        for fork in area.form.kernels:
            assert isinstance(fork, Fork)
            reads, writes = fork.sides
            known |= zip(writes, fork.compute(area, [known[name] for name in reads]), strict=True)
        return {role: known[role] for role in op.writes}

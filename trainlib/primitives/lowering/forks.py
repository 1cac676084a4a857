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
from trainlib.ir.steps import Array, KernelCall, part
from trainlib.primitives.definition import Shape, Values
from trainlib.primitives.formulas import wide
from trainlib.primitives.lowering.axes import Area, Axes, AxesLowering, Form
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.lowering.row_loop import RowLoop


class Fork(Struct, frozen=True, dict=True):
    """A call of the nest `nest`, in which `formula` makes arrays of arrays.

    `buffers` are those of the arrays of the nest, ``X:x Z:sums``; `moves` says what is read and written,
    ``x -> sums``. A size is the product of some dimensions, or 1. The formula has an array with all sizes
    that it has dimensions of, in their order, and 1 for each of the others. `flags` are other sizes.
    `rows` to `across` are those of `RowLoop`; without `elements` there is none. `larger`: the larger of two
    `rows` goes over the cores; this is the mark if it is the second. `each`: a call for every sample;
    `alone`: the master core only.
    """

    nest: str
    buffers: str
    moves: str
    formula: Callable[..., Any]
    sizes: dict[str, Axes]
    rows: Axes = ()
    elements: Axes = ()
    numbers: Mapping[str, Any] = {}
    mark: str = ""
    across: bool = False
    larger: str = ""
    each: bool = False
    alone: bool = False
    flags: Mapping[str, int] = {}

    @cached_property
    def arrays(self) -> dict[str, str]:
        """Buffers by the names of arrays."""
        return dict(item.split(":") for item in self.buffers.split())

    @cached_property
    def sides(self) -> tuple[list[str], ...]:
        """Buffers that are read, and those that are written."""
        return tuple(side.split() for side in self.moves.split("->"))

    def run(self, area: Area, build: TileBuilder) -> None:
        """The calls of a tile."""
        samples = area.samples if self.each else range(1)
        build.later(lambda: [self._call(area, build, sample) for sample in samples])

    def compute(self, area: Area, values: Sequence[Array]) -> list[Array]:
        """What is written, in the shapes of its buffers, from what is read."""
        counts, (reads, writes) = self._counts(area), self.sides

        def seen(name: str, array: Array) -> Array:
            inside = self._inside(area, name)
            turned = array.reshape([counts[size] for size in inside])
            turned = turned.transpose([inside.index(size) for size in counts if size in inside])
            return turned.reshape([count if size in inside else 1 for size, count in counts.items()])

        def stored(name: str, array: Array) -> Array:
            inside = self._inside(area, name)
            shape = [count for size, count in counts.items() if size in inside]
            if array.size != prod(shape):
                array = np.broadcast_to(
                    array, [count if size in inside else 1 for size, count in counts.items()]
                )
            own = [size for size in counts if size in inside]
            turned = array.reshape(shape).transpose([own.index(size) for size in inside])
            return np.ascontiguousarray(turned).reshape(area.sizes(name)[self._skips(area, name) :])

        made = self.formula(*map(seen, reads, values), **self.numbers)
        return list(map(stored, writes, made if isinstance(made, tuple) else (made,)))

    def _counts(self, area: Area) -> dict[str, int]:
        return {name: prod(area.shape(*axes)) for name, axes in self.sizes.items()}

    def _skips(self, area: Area, buffer: str) -> bool:
        return self.each and area.axes(buffer)[:1] == (BATCH,)

    def _inside(self, area: Area, buffer: str) -> list[str]:
        """The sizes that a buffer has, as they lie in it."""
        if buffer not in self._orders:
            axes, at, places = area.axes(buffer), 0, dict[str, int]()
            for name, along in self.sizes.items():
                if not along or not {*along}.isdisjoint(axes):
                    places[name] = at = min((axes.index(axis) for axis in along if axis in axes), default=at)
            self._orders[buffer] = sorted(places, key=places.__getitem__)
        return self._orders[buffer]

    @cached_property
    def _orders(self) -> dict[str, list[str]]:
        return {}

    def _call(self, area: Area, build: TileBuilder, sample: int) -> KernelCall:
        counts = self._counts(area)

        def named(buffer: str) -> str:
            return part(buffer, sample) if self._skips(area, buffer) else buffer

        def function(values: Sequence[Array]) -> list[Array]:
            made = self.compute(area, values)
            return [
                array.astype(np.float32, copy=False) if array.dtype.kind == "f" else array for array in made
            ]

        def piece(buffer: str) -> Piece:
            shape = tuple(counts[name] for name in self._inside(area, buffer))
            return Piece(
                named(buffer), shape, dtype=None if buffer in area.form.scratch else area.dtype_of(buffer)
            )

        reads, writes = (list(map(named, side)) for side in self.sides)
        return kernel_call(
            build.choice,
            self.nest,
            {**counts, **self.flags},
            {letter: piece(buffer) for letter, buffer in self.arrays.items()},
            reads,
            writes,
            function,
            build.dtype,
            fork=not self.alone,
            details={"rows": self._loop(area, counts)} if self.elements else {},
        )

    def _loop(self, area: Area, counts: Mapping[str, int]) -> RowLoop:
        rows, mark = self.rows, self.mark
        if self.larger and counts[rows[1]] > counts[rows[0]]:
            rows, mark = rows[::-1], mark + self.larger
        letters = {**dict.fromkeys(self.sizes, "s"), self.elements[-1]: "i", **dict.fromkeys(rows[:1], "r")}

        def place(buffer: str) -> str:
            inside = self._inside(area, buffer)
            terms = (
                "*".join((letters[name], *inside[inside.index(name) + 1 :]))
                for name in self.sizes
                if name in inside
            )
            return " + ".join(terms) or "0"

        # An array that is written over is the first of its buffer where it is read, else the last.
        reading = {buffer: letter for letter, buffer in reversed(self.arrays.items())}
        writing = {buffer: letter for letter, buffer in self.arrays.items()}
        reads, writes = self.sides
        return RowLoop(
            self.formula,
            "".join(reading[buffer] for buffer in reads),
            "".join(writing[buffer] for buffer in writes),
            {letter: place(buffer) for letter, buffer in self.arrays.items()} if rows else {},
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


def copying(source: str, target: str, sizes: dict[str, Axes], *, each: bool = False) -> Fork:
    """target = source, elements over the cores."""
    return Fork("copy", f"X:{source} Y:{target}", f"{source} -> {target}", lambda x: x, sizes, each=each)


def column_sum(source: str, target: str, rows: Axes, columns: Axes) -> Fork:
    """target[columns] = sum of source[rows, columns] over the rows: the gradient of a bias."""
    arrays, moves, sizes = f"X:{source} Y:{target}", f"{source} -> {target}", {"N": rows, "M": columns}
    return Fork("column_sum", arrays, moves, lambda x: x.sum(axis=0), sizes, ("M",), ("N",))

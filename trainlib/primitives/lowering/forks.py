# SPDX-License-Identifier: Apache-2.0
"""Forks as data: a nest with the buffers of its arrays, the dimensions of its sizes, and a formula.

Sizes, shapes of arrays, row programs, the call of every tile and the untiled reference follow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from configs.dtypes import FP32, DType
from configs.values import Struct
from trainlib.ir.graph import Op, Tensor
from trainlib.ir.steps import Array, KernelCall, part
from trainlib.kernels.library import LIBRARY
from trainlib.primitives.definition import Shape, Values
from trainlib.primitives.formulas import wide
from trainlib.primitives.lowering.axes import LAST, NOWHERE, ONE, Area, At, Axes, Form, FormulaLowering
from trainlib.primitives.lowering.calls import BATCH
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.lowering.pieces import TileBuilder
from trainlib.primitives.lowering.row_loop import RowLoop

EVERY, FIRST, LATER = slice(None), slice(1), slice(1, None)
"""Samples of which there is a call each."""


class Fork(Struct, frozen=True, dict=True):
    """A call of the nest `nest`, in which `formula` makes arrays of arrays.

    `buffers` are those of the arrays of the nest, ``X:x Z:sums``; ``W:w=x`` is an array w that there is not,
    with a buffer that stands in. `moves` says what is read and written, ``x -> sums``. A size is the product
    of some dimensions, or 1. The formula has an array with all sizes that it has dimensions of (or that it
    `holds`), in their order, and 1 for each of the others; of a `matrix` it has [rows, elements] in float64.
    `named` are the sizes of the nest by its names, where they are not these, `flags` others. `rows` to
    `across` are those of `RowLoop`; without `elements` there is none. `larger`: the larger of two `rows` (or
    of the elements, if they go across, and the second) goes over the cores; this is the mark if it is the
    second. `each`: a call for each of these samples; `alone`: the master core only. `scratch`: the format of
    scratch buffers, if it is not that of the call, `source` the name of the C, if it is not that of the nest.
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
    each: slice | None = None
    alone: bool = False
    flags: Mapping[str, int] = {}
    holds: Mapping[str, Axes] = {}
    scratch: DType | None = None
    named: Mapping[str, str] = {}
    matrix: bool = False
    source: str = ""

    @cached_property
    def roles(self) -> dict[str, str]:
        """What the arrays are, by their names."""
        return {item[0]: item[2:].partition("=")[0] for item in self.buffers.split()}

    @cached_property
    def arrays(self) -> dict[str, str]:
        """Buffers by the names of arrays."""
        return {item[0]: re.split("[:=]", item)[-1] for item in self.buffers.split()}

    @cached_property
    def sides(self) -> tuple[list[str], ...]:
        """Buffers that are read, and those that are written."""
        return tuple(side.split() for side in self.moves.split("->"))

    def used(self, area: Area) -> Collection[str]:
        """Its buffers."""
        return self.arrays.values()

    def run(self, area: Area, build: TileBuilder, at: At = NOWHERE) -> None:
        """The calls of a tile, or of an iteration of loops."""
        places = [at] if self.each is None else [{BATCH: sample} for sample in self.samples(area)]
        build.later(lambda: [self._call(area, build, place) for place in places])

    def samples(self, area: Area) -> Sequence[int]:
        """Numbers of those it is called for."""
        return (0,) if self.each is None else area.samples[self.each]

    def of_sample(self, area: Area, buffer: str) -> bool:
        """Whether a call has one sample of a buffer."""
        return self.each is not None and area.axes(buffer)[:1] == (BATCH,)

    def compute(self, area: Area, values: Sequence[Array]) -> list[Array]:
        """What is written, flat, from what is read."""
        counts, (reads, writes) = self._counts(area), self.sides
        sides = [[name] for name in self.sizes]
        if self.matrix:
            sides = [[*self.rows], [name for name in self.sizes if name not in self.rows]]
            values = [array.astype(np.float64) for array in values]
        order = [name for side in sides for name in side]

        def seen(name: str, array: Array) -> Array:
            inside = self._inside(area, name)
            turned = array.reshape([counts[size] for size in inside])
            turned = turned.transpose([inside.index(size) for size in order if size in inside])
            whole = [[counts[size] if {*side} & {*inside} else 1 for size in side] for side in sides]
            turned = turned.reshape([counts[size] if size in inside else 1 for size in order])
            return np.broadcast_to(turned, [size for side in whole for size in side]).reshape(
                list(map(prod, whole))
            )

        def stored(name: str, array: Array) -> Array:
            inside = self._inside(area, name)
            shape = [counts[size] if size in inside else 1 for size in order]
            if self.matrix:
                parts = zip(sides, array.shape, strict=True)
                array = array.reshape(
                    [counts[size] if count > 1 else 1 for side, count in parts for size in side]
                )
                array = array[tuple(slice(None if size in inside else 1) for size in order)]
            array = array.reshape(shape) if array.size == prod(shape) else np.broadcast_to(array, shape)
            array = array.reshape([counts[size] for size in order if size in inside])
            own = [size for size in order if size in inside]
            return np.ascontiguousarray(array.transpose([own.index(size) for size in inside])).reshape(-1)

        made = self.formula(*map(seen, reads, values), **self.numbers)
        return list(map(stored, writes, made if isinstance(made, tuple) else (made,)))

    def _counts(self, area: Area) -> dict[str, int]:
        return {name: prod(area.shape(*axes)) for name, axes in self.sizes.items()}

    def _inside(self, area: Area, buffer: str) -> list[str]:
        """The sizes that a buffer has, as they lie in it."""
        if buffer not in self._orders:
            axes = list(area.form.parts(buffer))
            needed = {BATCH, *(axis for along in self.sizes.values() for axis in along)} - {ONE, LAST}
            if needed <= {*axes}:
                axes.append(LAST)
            at, places = 0, dict[str, int]()
            for name, along in self.sizes.items():
                if buffer in self.holds:
                    inside = name in self.holds[buffer]
                else:
                    inside = not along or not {*along}.isdisjoint(axes)
                if inside:
                    places[name] = at = min((axes.index(axis) for axis in along if axis in axes), default=at)
            self._orders[buffer] = sorted(places, key=places.__getitem__)
        return self._orders[buffer]

    @cached_property
    def _orders(self) -> dict[str, list[str]]:
        return {}

    def _call(self, area: Area, build: TileBuilder, at: At) -> KernelCall:
        counts, indices = self._counts(area), LIBRARY.header(build.choice.codegen, self.nest).arrays

        def named(buffer: str) -> tuple[str, int | None]:
            name, first = area.lies(buffer, at)
            alone = self.matrix and name != buffer
            return part(buffer, at[BATCH], at[BATCH] + 1) if alone else name, first

        def held(buffer: str) -> Piece | str:
            name, first = named(buffer)
            shape = tuple(counts[size] for size in self._inside(area, buffer))
            return name if first is None else Piece(name, shape, first)

        def function(values: Sequence[Array]) -> list[Array]:
            made = []
            for buffer, array in zip(self.sides[1], self.compute(area, values), strict=True):
                name, first = named(buffer)
                shape = area.sizes(buffer)
                if name != buffer:
                    shape = (1, *shape[1:]) if self.matrix else shape[1:]
                stored = array.astype(np.float32, copy=False) if array.dtype.kind == "f" else array
                made.append(stored if first is not None else stored.reshape(shape))
            return made

        def piece(letter: str, buffer: str) -> Piece:
            inside = self._inside(area, self.roles[letter])
            strides: tuple[int, ...] = ()
            if self.matrix:
                walked = (
                    self.sizes
                    if indices.get(letter, 1) == len(counts)
                    else [n for n in counts if n in inside]
                )
                steps = {
                    name: prod(counts[inner] for inner in inside[at + 1 :]) for at, name in enumerate(inside)
                }
                for name in walked:  # a loop of one turn walks as the one around it
                    unmoved = strides[-1] if strides and self.sizes[name] == (ONE,) else 0
                    strides = (*strides, steps.get(name, unmoved))
            shape = () if self.matrix else tuple(counts[name] for name in inside)
            dtype = self.scratch if buffer in area.form.scratch else area.dtype_of(buffer)
            name, first = named(buffer)
            return Piece(name, shape, first, strides[-indices.get(letter, 1) :], dtype)

        reads, writes = (list(map(held, side)) for side in self.sides)
        details: dict[str, Any] = {"rows": self._loop(area, counts)} if self.elements else {}
        if self.source:
            details["source"] = self.source
        of_nest = {name: counts[size] for name, size in self.named.items()} or counts
        return kernel_call(
            build.choice,
            self.nest,
            {**of_nest, **self.flags},
            {letter: piece(letter, buffer) for letter, buffer in self.arrays.items()},
            reads,
            writes,
            function,
            build.dtype,
            fork=not self.alone,
            details=details,
        )

    def _loop(self, area: Area, counts: Mapping[str, int]) -> RowLoop:
        rows, mark, across = self.rows, self.mark, self.across
        if self.larger:
            second, first = counts[rows[1]], counts[self.elements[-1] if across else rows[0]]
            if second > first or (across and second == first):
                rows, mark, across = rows[::-1], mark + self.larger, False
        order = dict.fromkeys((*rows, *counts)) if self.source else counts  # the C of its own has rows first
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
        own = [(buffer, letter) for letter, buffer in self.arrays.items() if self.roles[letter] == buffer]
        reading, writing = dict(reversed(own)), dict(own)
        reads, writes = self.sides
        return RowLoop(
            self.formula,
            "".join(reading[buffer] for buffer in reads),
            "".join(writing[buffer] for buffer in writes),
            {letter: place(role) for letter, role in self.roles.items()} if rows else {},
            rows,
            self.elements,
            sizes={name: counts[name] for name in order} if self.matrix else {},
            numbers=self.numbers,
            mark=mark,
            across=across,
            wide=self.matrix,
        )


class ForkLowering(FormulaLowering):
    """A step whose kernels are all `Fork`, whose formulas are its untiled reference as well."""

    def shapes(self, op: Op, values: Values) -> Mapping[str, Shape]:
        """Shapes of the results, those of the first input."""
        return dict.fromkeys(op.writes, values[op.reads[0]].shape)

    def reference(self, op: Op, values: Values) -> Values:
        """All forks on whole tensors, in float64."""
        shapes = {**{role: array.shape for role, array in values.items()}, **self.shapes(op, values)}
        tensors = {op[role]: Tensor(role, shape, "") for role, shape in shapes.items()}
        area, known = Area(Form(self, op, tensors), {}), dict(wide(values))
        for fork in area.form.kernels:
            assert isinstance(fork, Fork)
            reads, writes = fork.sides
            for sample in fork.samples(area):

                def seen(name: str, fork: Fork = fork, sample: int = sample) -> Array:
                    if name not in known:
                        known[name] = np.empty(area.sizes(name))
                    return known[name][sample : sample + 1] if fork.of_sample(area, name) else known[name]

                for name, array in zip(writes, fork.compute(area, list(map(seen, reads))), strict=True):
                    seen(name)[...] = array.reshape(seen(name).shape)
        return {role: known[role] for role in op.writes}


def copying(source: str, target: str, sizes: dict[str, Axes], each: slice | None = None) -> Fork:
    """target = source, elements over the cores."""
    return Fork("copy", f"X:{source} Y:{target}", f"{source} -> {target}", lambda x: x, sizes, each=each)


def column_sum(source: str, target: str, rows: Axes, columns: Axes) -> Fork:
    """target[columns] = sum of source[rows, columns] over the rows: the gradient of a bias."""
    arrays, moves, sizes = f"X:{source} Y:{target}", f"{source} -> {target}", {"N": rows, "M": columns}
    return Fork("column_sum", arrays, moves, lambda x: x.sum(axis=0), sizes, ("M",), ("N",))


def row_sum(source: str, target: str, outer: Axes, rows: Axes, columns: Axes, *, exact: bool = False) -> Fork:
    """target[rows] = sum of source[outer, rows, columns]; of fp32, rounded once, if `exact`."""
    arrays, moves = f"X:{source} Y:{target}", f"{source} -> {target}"
    summed = {"axis": (0, 2), "dtype": np.float64} if exact else {"axis": (0, 2)}
    return Fork(
        *("row_sum", arrays, moves, lambda x: x.sum(**summed)),
        {"P": outer, "N": rows, "M": columns},
        ("N",),
        ("P", "M"),
        holds={target: ("N",)},
        scratch=FP32 if exact else None,
    )

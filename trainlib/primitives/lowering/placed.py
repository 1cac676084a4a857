# SPDX-License-Identifier: Apache-2.0
"""Forks as data that see where a tile lies: windows and their padding, rows of a table that is cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from configs.values import Struct
from trainlib.ir.steps import Function, KernelCall, part
from trainlib.primitives.definition import Shape
from trainlib.primitives.lowering.axes import Area, Axes
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call
from trainlib.primitives.lowering.pieces import TileBuilder


class Fill(Struct, frozen=True):
    """All elements of a buffer set to `value`."""

    buffer: str
    value: float = 0.0

    def run(self, area: Area, build: TileBuilder) -> None:
        """The call of a tile."""
        build.fill(self.buffer, area.sizes(self.buffer), self.value)


class Placed(Struct, frozen=True):
    """A call of the nest `nest`, whose formula is that of the tile.

    `buffers`, ``X:x Y:y``, are those of the arrays of the nest; one the op lacks is left out. A size is the
    product of some dimensions; `flags` are others. `formula(area, build)` is what a tile computes of what is
    read, `known(area, build)` what C has to know besides. Arrays are boxes, in row-major order but for
    `strides`. `each`: a call for every sample. `moves` says what is read and written, ``dy dx -> dx``, where
    it is not what the op reads and writes.
    """

    nest: str
    buffers: str
    formula: Callable[[Area, TileBuilder], Function]
    known: Callable[[Area, TileBuilder], Mapping[str, Any]]
    sizes: Mapping[str, Axes]
    flags: Mapping[str, int] = {}
    strides: Mapping[str, Callable[[Area], Shape]] = {}
    each: bool = False
    moves: str = ""

    def run(self, area: Area, build: TileBuilder) -> None:
        """The calls of a tile."""
        build.later(lambda: self._calls(area, build))

    def _calls(self, area: Area, build: TileBuilder) -> Sequence[KernelCall]:
        sizes = {name: prod(area.shape(*axes)) for name, axes in self.sizes.items()}
        function, known = self.formula(area, build), self.known(area, build)
        sides = (
            [side.split() for side in self.moves.split("->")]
            if self.moves
            else (area.op.reads, area.op.writes)
        )
        arrays = [item.split(":") for item in self.buffers.split()]

        def call(sample: int) -> KernelCall:
            def piece(letter: str, role: str) -> Piece:
                shape, strides = area.sizes(role)[int(self.each) :], self.strides.get(letter)
                walked = strides(area) if strides else ()
                return Piece(named(role), shape, strides=walked, dtype=area.dtype_of(role))

            def named(role: str) -> str:
                return part(role, sample) if self.each else role

            pieces = {letter: piece(letter, role) for letter, role in arrays if role in area.op}
            reads, writes = ([*map(named, side)] for side in sides)
            all_sizes = {**sizes, **self.flags}
            return kernel_call(
                build.choice,
                self.nest,
                all_sizes,
                pieces,
                reads,
                writes,
                function,
                build.dtype,
                details=known,
            )

        return [call(sample) for sample in (area.samples if self.each else (0,))]

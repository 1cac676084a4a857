# SPDX-License-Identifier: Apache-2.0
"""Forks as data that see where a tile lies: windows and their padding, rows of a table that is cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    value: float = 0

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
        build.later(lambda: list(self._calls(area, build)))

    def _calls(self, area: Area, build: TileBuilder) -> Iterator[KernelCall]:
        sizes = {name: prod(area.shape(*axes)) for name, axes in self.sizes.items()} | {**self.flags}
        function, known = self.formula(area, build), self.known(area, build)
        moves = self.moves or " -> ".join(map(" ".join, (area.op.reads, area.op.writes)))
        strides = {letter: walked(area) for letter, walked in self.strides.items()}
        boxes = {role: (area.sizes(role)[self.each :], area.dtype_of(role)) for role in area.op.roles}
        for sample in area.samples if self.each else (0,):
            names = {role: part(role, sample) if self.each else role for role in boxes}
            arrays = {
                letter: Piece(names[role], boxes[role][0], None, strides.get(letter, ()), boxes[role][1])
                for letter, role in (item.split(":") for item in self.buffers.split())
                if role in boxes
            }
            reads, writes = ([names[role] for role in side.split()] for side in moves.split("->"))
            choice, dtype = build.choice, build.dtype
            yield kernel_call(choice, self.nest, sizes, arrays, reads, writes, function, dtype, details=known)

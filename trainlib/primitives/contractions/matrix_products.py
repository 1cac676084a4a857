# SPDX-License-Identifier: Apache-2.0
"""Strategy of a contraction that is a matrix product of its operands as they lie: pointwise.

Which operand is on the left, what is transposed first and what is multiplied transposed follows from how the
three matrices are stored (`arranged`):

- the left one (A) shares the rows of the result. Stored the other way round it is transposed first;
- the right one (B) shares the columns. Stored the other way round it is left to the kernel (``trans_b``).

For a pointwise convolution in CHW FW (A=w, B=x), WG (A=dy, B=x transposed), IG (A=wᵀ by a transpose, B=dy).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from configs.values import Struct
from trainlib.ir.graph import Op
from trainlib.ir.steps import KernelCall, Scratch, TileTask, part
from trainlib.primitives.contractions.contraction import LoopTile, Strategy
from trainlib.primitives.contractions.conv_calls import (
    PARTIAL,
    accumulated,
    bias_add_call,
    bias_sum_call,
    partial_sum,
)
from trainlib.primitives.contractions.conv_geometry import ConvGeometry
from trainlib.primitives.lowering.calls import BATCH, factors, matmul_call, transpose_call
from trainlib.primitives.lowering.pieces import Piece


class Matrix(Struct, frozen=True):
    """An operand or result as a matrix in a buffer, row-major: the loops of its rows and of its columns."""

    role: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    buffer: str = ""

    @property
    def name(self) -> str:
        """The buffer (or part of one) it lies in."""
        return self.buffer or self.role

    def piece(self, tile: LoopTile) -> Piece:
        """What a tile has of it."""
        return Piece(self.name, (tile.count(*self.rows), tile.count(*self.columns)))

    @property
    def transposed(self) -> Matrix:
        """Its transpose, in the scratch buffer of that name."""
        return Matrix(self.role, self.columns, self.rows, f"{self.role}_transposed")


class Arranged(Struct, frozen=True):
    """C = A · B: what is transposed before, and how the matmul reads B."""

    a: Matrix
    b: Matrix
    rows: tuple[str, ...]
    inner: tuple[str, ...]
    columns: tuple[str, ...]
    trans_b: bool
    turned: tuple[Matrix, ...] = ()
    """Operands that are transposed first, as they are stored."""


def arranged(result: Matrix, one: Matrix, other: Matrix, published: Sequence[str]) -> Arranged:
    """How `one` · `other` (in either order) becomes `result`.

    Operands of the roles `published` are transposed by a kernel where the matmul could read them as they are,
    because PULP-TrainLib does so.
    """
    rows, columns = result.rows, result.columns
    a, b = (one, other) if rows in (one.rows, one.columns) else (other, one)
    inner = a.columns if a.rows == rows else a.rows
    turned = []
    if a.rows != rows:
        turned.append(a)
        a = a.transposed
    if b.role in published:
        turned.append(b)
        b = b.transposed
    return Arranged(a, b, rows, inner, columns, b.columns != columns, tuple(turned))


def transposes(tile: LoopTile, arrangement: Arranged) -> list[KernelCall]:
    """The calls that transpose what an arrangement wants transposed."""
    return [
        transpose_call(tile.choice, matrix.piece(tile), matrix.transposed.piece(tile), tile.dtype)
        for matrix in arrangement.turned
    ]


def transposed(tile: LoopTile, arrangement: Arranged) -> tuple[Scratch, ...]:
    """The buffers these calls fill."""
    targets = (matrix.transposed.piece(tile) for matrix in arrangement.turned)
    return tuple(Scratch(target.name, target.shape, tile.dtype) for target in targets)


def product(tile: LoopTile, arrangement: Arranged, target: str, shape: tuple[int, ...]) -> KernelCall:
    """The matmul into the buffer `target`, whose box has this shape."""
    n, k, m = (tile.count(*loops) for loops in (arrangement.rows, arrangement.inner, arrangement.columns))
    trans_b = arrangement.trans_b
    a, b = factors(arrangement.a.name, arrangement.b.name, n, k, m, trans_b=trans_b)
    return matmul_call(tile.choice, a, b, Piece(target, shape), tile.dtype, trans_b=trans_b)


@dataclass(frozen=True, slots=True)
class ImageProducts(Strategy):
    """A matmul per sample on images as they lie: a pointwise convolution.

    `published(op)` names the roles PULP-TrainLib transposes where the matmul would not need it.
    """

    published: Callable[[Op], Sequence[str]] = lambda op: ()

    def same_calls(self, op: Op) -> bool:
        """Nothing but the sizes counts."""
        return True

    def task(self, tile: LoopTile) -> TileTask:
        """Boxes of two tensors; per sample transposes, matmul, bias; a weight gradient adds samples up."""
        one, other = (role for role in tile.op.reads if role in tile.space.accesses)
        inputs = (tile.box(one), tile.box(other), *tile.bias)
        outputs = (tile.box(tile.space.result), *tile.bias_gradient)
        scratch = transposed(tile, self._arranged(tile, 0)[0])  # all samples use the same buffers
        scratch += partial_sum(tile) if BATCH in tile.space.reductions else ()
        return TileTask(inputs, outputs, scratch, lambda: self._calls(tile))

    def _calls(self, tile: LoopTile) -> list[KernelCall]:
        result, calls, terms = tile.space.result, list[KernelCall](), []
        shape = tile.box(result).shape
        for sample in range(tile.count(BATCH)):
            arrangement, target = self._arranged(tile, sample)
            before = transposes(tile, arrangement)
            if sample:
                # What all samples share is transposed once.
                before = [call for call in before if call.reads != ("w",)]
            if BATCH in tile.space.reductions:
                first, further = (product(tile, arrangement, name, shape) for name in (result, PARTIAL))
                terms.append((before, first, further))
                continue
            calls += [*before, product(tile, arrangement, target, shape[1:])]
            if tile.adds_bias:
                calls.append(bias_add_call(tile, target))
        calls += accumulated(tile, terms) if terms else []
        return calls + ([bias_sum_call(tile)] if tile.bias_gradient else [])

    def _arranged(self, tile: LoopTile, sample: int) -> tuple[Arranged, str]:
        """How a sample is multiplied, and the buffer (or the part of it) its result lies in."""
        geometry = ConvGeometry.of(tile.op.attributes)
        matrices = {role: self._matrix(tile, role, geometry, sample) for role in tile.space.accesses}
        one, other = (matrices[role] for role in tile.op.reads if role in matrices)
        result = matrices[tile.space.result]
        return arranged(result, one, other, self.published(tile.op)), result.name

    @staticmethod
    def _matrix(tile: LoopTile, role: str, geometry: ConvGeometry, sample: int) -> Matrix:
        """A tensor of one sample as a matrix."""
        if role.endswith("w"):
            rows, columns = tile.axes(role)
            return Matrix(role, (rows,), (columns,))
        _, channel, *places = (index.loop or "" for index in tile.space.accesses[role])
        channels, positions = (channel,), tuple(places)
        rows_of, columns_of = (positions, channels) if geometry.hwc else (channels, positions)
        return Matrix(role, rows_of, columns_of, part(role, sample))

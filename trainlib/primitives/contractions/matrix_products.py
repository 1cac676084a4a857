# SPDX-License-Identifier: Apache-2.0
"""Strategies of contractions that are matrix products of their operands as they lie: linear, pointwise.

Which operand is on the left, what is transposed first and what is multiplied transposed follows from how the
three matrices are stored (`arranged`):

- the left one (A) shares the rows of the result. Stored the other way round it is transposed first;
- the right one (B) shares the columns. Stored the other way round it is left to the kernel (``trans_b``).

For a linear layer that gives PULP-TrainLib's own extents: FW (N=rows, K=ci, M=co, B transposed), or for one
row FW (N=co, K=ci, M=1); WG (N=co, K=rows, M=ci) on the transposed output gradient; IG (N=rows, K=co, M=ci).
For a pointwise convolution in CHW FW (A=w, B=x), WG (A=dy, B=x transposed), IG (A=wᵀ by a transpose, B=dy).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from configs.values import Struct, replace
from trainlib.ir.access import Space
from trainlib.ir.graph import Op
from trainlib.ir.steps import KernelCall, Scratch, TileTask, part
from trainlib.primitives.contractions.contraction import BIAS, BIAS_GRADIENT, LoopTile, Strategy
from trainlib.primitives.contractions.conv_calls import (
    PARTIAL,
    accumulated,
    bias_add_call,
    bias_sum_call,
    partial_sum,
)
from trainlib.primitives.contractions.conv_geometry import ConvGeometry
from trainlib.primitives.lowering.calls import BATCH, factors, matmul_call, transpose_call, vector_add_call
from trainlib.primitives.lowering.pieces import Piece, TileBuilder


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


def arranged(
    tile: LoopTile,
    result: Matrix,
    one: Matrix,
    other: Matrix,
    *,
    published: Sequence[str] = (),
    vectors: bool = False,
) -> Arranged:
    """How `one` · `other` (in either order) becomes `result`.

    Operands of the roles `published` are transposed by a kernel where the matmul could read them as they are,
    because PULP-TrainLib does so. With `vectors` a matrix of one row is taken as its own transpose, and a
    result of one row computed as one column where that saves reading B transposed.
    """
    upright = _arranged(tile, result.rows, result.columns, one, other, published, vectors)
    if vectors and upright.trans_b and tile.total(*result.rows) == 1:
        turned = _arranged(tile, result.columns, result.rows, one, other, published, vectors)
        return upright if turned.turned else replace(turned, trans_b=False)
    return upright


def _arranged(
    tile: LoopTile,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    one: Matrix,
    other: Matrix,
    published: Sequence[str],
    vectors: bool,
) -> Arranged:
    a, b = (one, other) if rows in (one.rows, one.columns) else (other, one)
    inner = a.columns if a.rows == rows else a.rows
    turned = []
    if a.rows != rows and not (vectors and tile.count(*inner) == 1):
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
class RowProducts(Strategy):
    """One matmul over all rows of x: samples, and tokens of a sequence. A linear layer."""

    kernel: Callable[[Op, Space], str]

    def same_calls(self, op: Op) -> bool:
        """Nothing but the sizes counts."""
        return True

    def default_kernel(self, op: Op, space: Space) -> str:
        """That of the layer."""
        return self.kernel(op, space)

    def task(self, tile: LoopTile) -> TileTask:
        """Boxes of two matrices, a transpose of the one that lies the wrong way, matmul, bias."""
        rows = tuple(name for name in tile.space.loops if name not in ("co", "ci"))
        stored = {"x": (rows, ("ci",)), "w": (("co",), ("ci",)), "y": (rows, ("co",))}
        matrices = {role: Matrix(role, *stored[role[-1]]) for role in tile.space.accesses}
        result = tile.space.result
        one, other = (matrices[role] for role in tile.op.reads if role in matrices)
        arrangement = arranged(tile, matrices[result], one, other, vectors=True)
        written = tile.box(result)
        inputs = (tile.box(one.role), tile.box(other.role), *tile.bias)

        def calls() -> list[KernelCall]:
            made = [*transposes(tile, arrangement), product(tile, arrangement, result, written.shape)]
            if tile.adds_bias:
                elements, term = tile.count(*rows, "co"), tile.count("co")
                made.append(
                    vector_add_call(
                        tile.choice,
                        total="y",
                        term=BIAS,
                        elements=elements,
                        dtype=tile.dtype,
                        repeated=term < elements,
                    )
                )
            if tile.bias_gradient:
                build = TileBuilder(tile.choice, tile.dtype)
                gradient = Piece("dy", (tile.count(*rows), tile.count("co")))
                build.column_sum(gradient, Piece(BIAS_GRADIENT, (tile.count("co"),)))
                made += build.calls()
            return made

        return TileTask(inputs, (written, *tile.bias_gradient), transposed(tile, arrangement), calls)


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
        return arranged(tile, result, one, other, published=self.published(tile.op)), result.name

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

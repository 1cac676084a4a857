# SPDX-License-Identifier: Apache-2.0
"""Products of matrices as data, and calls inside loops: over samples, heads, matrices of a batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
from math import prod
from typing import Protocol, TypeAlias

from configs.values import Struct, replace
from trainlib.ir.steps import KernelCall
from trainlib.primitives.lowering.axes import NOWHERE, Area, At, Axes, AxesLowering, Form
from trainlib.primitives.lowering.forks import Fork
from trainlib.primitives.lowering.kernel_call import Piece
from trainlib.primitives.lowering.pieces import TileBuilder


class Product(Struct, frozen=True):
    """C[rows, columns] = A[rows, inner] · B[inner, columns], B stored the other way if `trans_b`.

    It is a sum over the loops `over`, or added to what there is if `added`: by way of the buffer `term`, but
    for the first of the loops. A that is stored the other way is transposed into the buffer `turned` first,
    if a tile has more than a row of it.
    """

    a: str
    b: str
    c: str
    rows: Axes
    inner: Axes
    columns: Axes
    trans_b: bool = False
    term: str = ""
    over: Axes = ()
    added: bool = False
    turned: str = ""

    def used(self, area: Area) -> Collection[str]:
        """Scratch of a tile."""
        adds = self.added or prod(area.shape(*self.over)) > 1
        turns = prod(area.shape(*self.inner)) > 1
        return {self.a, self.b, self.c, *([self.term] if adds else []), *([self.turned] if turns else [])}

    def run(self, area: Area, build: TileBuilder, at: At = NOWHERE) -> None:
        """The calls of an iteration."""
        n, k, m = (prod(area.shape(*axes)) for axes in (self.rows, self.inner, self.columns))
        a = replace(area.held(self.a, at, (n, k)), shape=(n, k))
        b = replace(area.held(self.b, at, (k, m)), shape=(m, k) if self.trans_b else (k, m))
        c = area.held(self.c, at, (n, m))
        if self.turned and k > 1:
            stored, a = replace(a, shape=(k, n)), Piece(self.turned, (n, k))
            build.transpose(stored, a)
        adds = self.added or any(at[loop] for loop in self.over)
        build.matmul(a, b, Piece(self.term, (n, m)) if adds else c, trans_b=self.trans_b)
        if adds:
            build.add(c, Piece(self.term, c.shape))


class Added(Struct, frozen=True):
    """total += term, again and again where that is shorter: a bias."""

    total: str
    term: str

    def used(self, area: Area) -> Collection[str]:
        """No scratch."""
        return ()

    def run(self, area: Area, build: TileBuilder, at: At = NOWHERE) -> None:
        """The call of an iteration."""
        build.add(area.held(self.total, at, ()), area.held(self.term, at, ()))


class Call(Protocol):
    """Calls of an iteration, as data."""

    def used(self, area: Area) -> Collection[str]:
        """Scratch of a tile."""

    def run(self, area: Area, build: TileBuilder, at: At = NOWHERE) -> None:
        """Those of an iteration."""


Calls: TypeAlias = Sequence[Call]


class Each(Struct, frozen=True):
    """`kernels`, in order, in each iteration of `loops`; none in a tile that does not begin `once`."""

    loops: Axes
    kernels: Calls
    once: Axes = ()

    def used(self, area: Area) -> Collection[str]:
        """Scratch of a tile."""
        return (
            {name for kernel in self.kernels for name in kernel.used(area)} if area.begins(*self.once) else ()
        )

    def run(self, area: Area, build: TileBuilder, at: At = NOWHERE) -> None:
        """The calls of a tile."""
        if area.begins(*self.once):
            build.later(lambda: self._calls(area, TileBuilder(build.choice, build.dtype), at))

    def _calls(self, area: Area, build: TileBuilder, at: At) -> list[KernelCall]:
        for place in product(*map(range, area.shape(*self.loops))):
            for kernel in self.kernels:
                kernel.run(area, build, {**at, **dict(zip(self.loops, place, strict=True))})
        return build.calls()


class ProductLowering(AxesLowering):
    """A step whose kernels are of this file and `Fork`; a tile has the scratch it uses."""

    def has_scratch(self, area: Area, name: str) -> bool:
        """Whether a kernel uses it."""
        return any(name in kernel.used(area) for kernel in area.form.kernels)  # type: ignore[attr-defined]


def multiplied(
    form: Form, a: str, b: str, c: str, rows: str, inner: str, columns: str, term: str = ""
) -> Product:
    """C[rows, columns] = A[rows, inner] · B, stored as it is; added by way of `term` if there is one."""
    stored = form.parts(b)
    trans_b = stored.index(columns) < stored.index(inner)
    return Product(a, b, c, (rows,), (inner,), (columns,), trans_b, term, added=bool(term))


def turning(source: str, target: str, *matrix: str | Axes) -> Fork:
    """target[columns, rows] = source[rows, columns], the `matrix`; the larger over the cores."""
    rows, columns = ((axes,) if isinstance(axes, str) else axes for axes in matrix)
    sizes: dict[str, Axes] = {"N": rows, "M": columns}
    buffers, moves, both = f"X:{source} Y:{target}", f"{source} -> {target}", ("N", "M")
    return Fork("transpose_matrix", buffers, moves, lambda x: x, sizes, holds={source: both, target: both})

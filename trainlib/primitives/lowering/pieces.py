# SPDX-License-Identifier: Apache-2.0
"""Kernel calls on pieces of L1 buffers: one time step, one head, one matrix of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from configs.dtypes import DType
from configs.values import replace
from trainlib.ir.steps import Array, KernelCall, KernelChoice, Operand, Scratch, TileTask
from trainlib.primitives.lowering.calls import matmul_call, transpose_call, vector_add_call
from trainlib.primitives.lowering.kernel_call import Piece, form_of, kernel_call
from trainlib.primitives.lowering.row_loop import RowLoop

__all__ = ["Piece", "TileBuilder"]

_COLUMN_SUM = RowLoop(lambda x: x.sum(axis=0), "X", "Y", {"X": "i*M + r", "Y": "r"}, ("M",), ("N",))


class TileBuilder:
    """The kernel calls of a tile in their order, on numbers of one dtype, and the scratch they need."""

    def __init__(self, choice: KernelChoice, dtype: DType) -> None:
        self.choice = choice
        self.dtype = dtype
        self._made: list[Callable[[], Sequence[KernelCall]]] = []
        self.scratch: list[Scratch] = []

    def task(self, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> TileTask:
        """The tile of these boxes."""
        return TileTask(inputs, outputs, self.scratch, self.calls)

    def calls(self) -> list[KernelCall]:
        """All calls so far."""
        return [call for make in self._made for call in make()]

    def later(self, make: Callable[[], Sequence[KernelCall]]) -> None:
        """More calls, made when they are asked for."""
        self._made.append(make)

    def call(self, make: Callable[[], KernelCall]) -> None:
        """One more."""
        self.later(lambda: [make()])

    def temporary(self, name: str, *shape: int) -> Piece:
        """A new scratch buffer."""
        self.scratch.append(Scratch(name, shape, self.dtype))
        return Piece(name, shape)

    def run(
        self,
        nest: str,
        arrays: Mapping[str, Piece | str],
        reads: Sequence[Piece | str],
        writes: Sequence[Piece | str],
        compute: Callable[..., Any],
        **sizes: int,
    ) -> None:
        """A nest (`kernel_call`); `compute` takes the arrays read one by one and gives one or several."""

        def function(given: Sequence[Array]) -> tuple[Array, ...]:
            made = compute(*given)
            return made if isinstance(made, tuple) else (made,)

        choice, dtype = self.choice, self.dtype
        self.call(lambda: kernel_call(choice, nest, sizes, arrays, reads, writes, function, dtype))

    def loop(
        self,
        nest: str,
        arrays: Mapping[str, Piece | str],
        loop: RowLoop,
        **sizes: int,
    ) -> None:
        """A nest whose arrays a row program reads and writes."""

        def compute(*given: Array) -> tuple[Array, ...]:
            return tuple(loop.compute(dict(zip(loop.reads, given, strict=True))).values())

        reads, writes = ([arrays[name] for name in side] for side in (loop.reads, loop.writes))
        self.run(nest, arrays, reads, writes, compute, **sizes)
        self.known(rows=loop)

    def known(self, **details: Any) -> None:
        """What `compute` of the last nest knows beside its arrays (`KernelCall.details`)."""
        make = self._made.pop()

        def knowing() -> KernelCall:
            (call,) = make()
            work: Any = call.work  # of `kernel_call`
            known = {**call.details, **details}
            if form := form_of(call.kernel, known):
                work = partial(work, form=form)
            return replace(call, work=work, details=known)

        self.call(knowing)

    def copy(self, source: Piece, target: Piece) -> None:
        """target = source, elements over the cores."""
        elements = prod(source.shape)
        self.run("copy", {"X": source, "Y": target}, (source,), (target,), lambda x: x, elements=elements)

    def zero(self, target: Piece) -> None:
        """target = 0."""
        self.fill(target, target.shape, 0)

    def fill(self, target: Piece | str, shape: tuple[int, ...], value: float) -> None:
        """All elements set to a value."""

        def filled() -> Array:
            return np.full(shape, value, np.float32)

        self.run("set_to_value", {"Y": target}, (), (target,), filled, elements=prod(shape))
        self.known(value=value)

    def copy_or_zero(self, source: Piece | None, target: Piece) -> None:
        """target = source, or 0 where there is none."""
        if source is None:
            self.zero(target)
        else:
            self.copy(source, target)

    def add(self, total: Piece, term: Piece) -> None:
        """`vector_add_call` of pieces."""
        choice, dtype, elements = self.choice, self.dtype, prod(total.shape)
        repeated = prod(term.shape) < elements
        self.call(
            lambda: vector_add_call(
                choice, total=total, term=term, elements=elements, dtype=dtype, repeated=repeated
            )
        )

    def column_sum(self, source: Piece, target: Piece) -> None:
        """target[m] = sum over all other dimensions of source[..., m]: the gradient of a bias, one fork."""
        columns = source.shape[-1]
        rows = prod(source.shape[:-1])
        flat = Piece(source.name, (rows, columns), source.first or 0)
        arrays = {"X": flat, "Y": target}
        self.loop("column_sum", arrays, _COLUMN_SUM, N=rows, M=columns)

    def transpose(self, source: Piece, target: Piece) -> None:
        """`transpose_call`."""
        self.call(lambda: transpose_call(self.choice, source, target, self.dtype))

    def matmul(self, a: Piece, b: Piece, c: Piece, *, trans_b: bool = False) -> None:
        """`matmul_call`."""
        self.call(lambda: matmul_call(self.choice, a, b, c, self.dtype, trans_b=trans_b))

    def added_matmul(
        self, a: Piece, b: Piece, c: Piece, term: Piece | None, *, trans_b: bool = False
    ) -> None:
        """C = A · B, or C += A · B by way of `term` if there is one (PULP-TrainLib's ``mm_add``)."""
        self.matmul(a, b, term or c, trans_b=trans_b)
        if term is not None:
            self.add(c, term)

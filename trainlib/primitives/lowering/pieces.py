# SPDX-License-Identifier: Apache-2.0
"""Kernel calls on pieces of L1 buffers: one time step, one head, one matrix of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from configs.dtypes import DType
from trainlib.ir.steps import Array, KernelCall, KernelChoice, Operand, Scratch, TileTask
from trainlib.primitives.lowering.calls import matmul_call, transpose_call, vector_add_call
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call

__all__ = ["Piece", "TileBuilder"]


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
        sizes: Mapping[str, int],
        arrays: Mapping[str, Piece | str],
        reads: Sequence[Piece | str],
        writes: Sequence[Piece | str],
        compute: Callable[..., Any],
        details: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """A nest (`kernel_call`); `compute` takes the arrays read one by one and gives one or several."""

        def function(given: Sequence[Array]) -> tuple[Array, ...]:
            made = compute(*given)
            return made if isinstance(made, tuple) else (made,)

        self.call(
            lambda: kernel_call(
                self.choice, nest, sizes, arrays, reads, writes, function, self.dtype, details=details
            )
        )

    def copy(self, source: Piece, target: Piece) -> None:
        """target = source, elements over the cores."""
        sizes, arrays = {"elements": prod(source.shape)}, {"X": source, "Y": target}
        self.run("copy", sizes, arrays, (source,), (target,), lambda x: x)

    def zero(self, target: Piece) -> None:
        """target = 0."""
        self.fill(target, target.shape, 0)

    def fill(self, target: Piece | str, shape: tuple[int, ...], value: float) -> None:
        """All elements set to a value."""

        def filled() -> Array:
            return np.full(shape, value, np.float32)

        sizes = {"elements": prod(shape)}
        self.run("set_to_value", sizes, {"Y": target}, (), (target,), filled, {"value": value})

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

    def transpose(self, source: Piece, target: Piece) -> None:
        """`transpose_call`."""
        self.call(lambda: transpose_call(self.choice, source, target, self.dtype))

    def matmul(self, a: Piece, b: Piece, c: Piece, *, trans_b: bool = False) -> None:
        """`matmul_call`."""
        self.call(lambda: matmul_call(self.choice, a, b, c, self.dtype, trans_b=trans_b))

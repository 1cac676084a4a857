# SPDX-License-Identifier: Apache-2.0
"""The one way a lowering calls a kernel: a nest by name, its sizes, and what of which buffer each array is.

`trainlib.ir.steps.part` names elements of the leading dimension only. A `Piece` is any run of consecutive
elements: a call reads the named buffer and cuts the piece out, or reads and writes it with only the piece
changed. The cost is that of the nest on the pieces at their own addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

from arch.spec.isa import TeamWork
from configs.dtypes import FP32, DType
from configs.values import Struct, replace
from trainlib.ir.steps import Array, Function, KernelCall, KernelChoice
from trainlib.kernels.library import FP32_BYTES, LIBRARY
from trainlib.kernels.team import Array as Placed
from trainlib.kernels.team import team_work
from trainlib.primitives.lowering.row_loop import RowLoop


class Piece(Struct, frozen=True):
    """Elements of the buffer (or part) `name` from its element `first` on, as an array of `shape`.

    `first` None means the whole buffer. A nest that has the piece as an array walks it with `strides`, in
    elements; if there are none, in row-major order by its last dimensions. `dtype` None: that of the call.
    """

    name: str
    shape: tuple[int, ...] = ()
    first: int | None = None
    strides: tuple[int, ...] = ()
    dtype: DType | None = None

    def take(self, array: Array) -> Array:
        """The piece of the buffer's array."""
        start = self.first or 0
        return array.reshape(-1)[start : start + prod(self.shape)].reshape(self.shape)

    def put(self, array: Array | None, values: Array) -> Array:
        """The buffer's array with the piece replaced; `array` is None for a whole buffer."""
        if array is None:
            return values.reshape(self.shape)
        result = array.copy()
        start = self.first or 0
        result.reshape(-1)[start : start + prod(self.shape)] = values.reshape(-1)
        return result

    def row(self, index: int) -> Piece:
        """Element `index` of its leading dimension."""
        inner = self.shape[1:]
        return replace(self, shape=inner, first=(self.first or 0) + index * prod(inner))

    def address(self, addresses: Mapping[str, int], dtype: DType) -> int:
        """Byte address of its first element, for elements of `dtype` if the piece has no dtype of its own."""
        return addresses[self.name] + (self.first or 0) * (self.dtype or dtype).bytes

    def placed(self, addresses: Mapping[str, int], indices: int, dtype: DType) -> Placed:
        """The piece as an array of a nest that has so many indices."""
        strides = self.strides or (*(prod(self.shape[axis:]) for axis in range(1, indices)), 1)
        return Placed(self.address(addresses, dtype), strides, (self.dtype or dtype).bytes)


def kernel_call(
    choice: KernelChoice,
    nest: str,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Piece | str],
    reads: Sequence[Piece | str],
    writes: Sequence[Piece | str],
    function: Function,
    dtype: DType = FP32,
    *,
    fork: bool = True,
    details: Mapping[str, Any] = MappingProxyType({}),
) -> KernelCall:
    """A call of the nest `nest`.yaml of the codegen, any of its own files included.

    `sizes` are those the nest names, `arrays` what it touches by the names in the file; it is the form of the
    nest for the narrowest numbers among them, or its `form_of`. `function` maps the arrays of `reads` to
    those of `writes`. A name stands for a whole buffer or part: a vector to the nest. Without `fork` the
    master core is alone.
    """

    pieces = {name: Piece(item) if isinstance(item, str) else item for name, item in arrays.items()}
    dtypes = [piece.dtype or dtype for piece in pieces.values()]
    # Of the narrowest number format; indices and counts do not matter.
    element_bytes = min((item.bytes for item in dtypes if item.is_float), default=FP32_BYTES)

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        indices = LIBRARY.header(choice.codegen, nest).arrays
        placed = {
            name: piece.placed(addresses, indices.get(name, 1), dtype) for name, piece in pieces.items()
        }
        return team_work(
            choice.codegen,
            nest,
            sizes,
            placed,
            cores if fork else 1,
            element_bytes=element_bytes,
            form=form_of(nest, details),
        )

    described = {**details, "arrays": arrays}
    return piece_call(nest, reads, writes, work, function, fork=fork, details=described)


def form_of(nest: str, details: Mapping[str, Any]) -> str:
    """The name of the C that `deploy` writes for a row program or an update, of which a codegen may have a
    nest; or ""."""
    loop = details.get("rows")
    if isinstance(loop, RowLoop):
        return f"{details.get('source', nest)}{loop.mark}"
    return str(details.get("form", ""))


def piece_call(
    kernel: str,
    reads: Sequence[Piece | str],
    writes: Sequence[Piece | str],
    work: Callable[[int, Mapping[str, int]], TeamWork],
    function: Function,
    *,
    macs: int = 0,
    fork: bool = True,
    details: Mapping[str, Any] = MappingProxyType({}),
) -> KernelCall:
    """A call whose `function` maps arrays of what is read to arrays of what is written, pieces cut out."""
    names_read = tuple(item if isinstance(item, str) else item.name for item in reads)
    names_written = tuple(item if isinstance(item, str) else item.name for item in writes)
    changed = [item.name for item in writes if isinstance(item, Piece) and item.first is not None]
    plain = all(isinstance(item, str) for item in (*reads, *writes))

    def on_buffers(arrays: Sequence[Array]) -> tuple[Array, ...]:
        given = [
            array if isinstance(item, str) else item.take(array)
            for item, array in zip(reads, arrays, strict=False)
        ]
        before = iter(arrays[len(reads) :])
        return tuple(
            values
            if isinstance(item, str)
            else item.put(next(before) if item.first is not None else None, values)
            for item, values in zip(writes, function(given), strict=True)
        )

    return KernelCall(
        kernel,
        (*names_read, *changed),
        names_written,
        work,
        function if plain else on_buffers,
        macs=macs,
        fork=fork,
        details=details,
    )

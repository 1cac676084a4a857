"""Kernel calls on pieces of L1 buffers: one time step, one head, one matrix of many. Loop nests by file name.

`trainlib.steps.part` names elements of the leading dimension only. A `Piece` is any run of consecutive
elements: its call reads the named buffer and cuts the piece out, or reads and writes it with only the piece
changed. The cost is that of the piece at its own addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from arch.isa import CoreWork, TeamWork
from trainlib.kernels.catalogue import LIBRARY
from trainlib.kernels.expand import Array as Layout
from trainlib.primitives.lowering import nests
from trainlib.primitives.lowering.calls import matmul_call
from trainlib.steps import Array, KernelCall, KernelChoice

_FP32_BYTES = _INT32_BYTES = 4

Function = Callable[[Sequence[Array]], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of the buffer (or part) `name` from its element `first` on, as an array of `shape`.

    `first` None means the whole buffer, whose shape in L1 then is `shape`.
    """

    name: str
    shape: tuple[int, ...]
    first: int | None = None

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

    def address(self, addresses: Mapping[str, int], dtype: str) -> int:
        """Byte address of its first element."""
        return addresses[self.name] + (self.first or 0) * np.dtype(dtype).itemsize

    def row(self, index: int) -> Piece:
        """Element `index` of its leading dimension."""
        inner = self.shape[1:]
        return Piece(self.name, inner, (self.first or 0) + index * prod(inner))

    def rows(self, first: int, last: int) -> Piece:
        """Elements [first, last) of its leading dimension."""
        inner = self.shape[1:]
        return Piece(self.name, (last - first, *inner), (self.first or 0) + first * prod(inner))


def piece_call(
    kernel: str,
    reads: Sequence[Piece],
    writes: Sequence[Piece],
    work: Callable[[int, Mapping[str, int]], TeamWork],
    function: Function,
    *,
    macs: int = 0,
) -> KernelCall:
    """A call whose `function` maps arrays of the pieces read to arrays of the pieces written."""
    kept = [piece.name for piece in writes if piece.first is not None]

    def whole(arrays: Sequence[Array]) -> tuple[Array, ...]:
        pieces = [piece.take(array) for piece, array in zip(reads, arrays, strict=False)]
        before = iter(arrays[len(reads) :])
        results = function(pieces)
        return tuple(
            piece.put(next(before) if piece.first is not None else None, values)
            for piece, values in zip(writes, results, strict=True)
        )

    names = tuple(piece.name for piece in writes)
    return KernelCall(kernel, (*(piece.name for piece in reads), *kept), names, work, whole, macs=macs)


def nest_work(
    codegen: str,
    nest: str,
    sizes: Mapping[str, int],
    arrays: Mapping[str, tuple[int, ...]],
    places: Sequence[int],
    cores: int,
    dtype: str,
    numbers: Mapping[str, int] | None = None,
) -> TeamWork:
    """The nest `nest`.yaml of a codegen on `cores` cores, arrays of `dtype` at `places`.

    `arrays` gives, per array of the nest and in the order of `places`, its strides in elements; `sizes` are
    the sizes the nest names, `numbers` the addresses of int32 vectors. Raises InputError for an unknown nest.
    """
    kernel = LIBRARY.kernel(codegen, nest)

    def build(addresses: Sequence[int]) -> TeamWork:
        layouts = {
            array: Layout(address, tuple(_FP32_BYTES * stride for stride in strides))
            for (array, strides), address in zip(arrays.items(), addresses, strict=True)
        }
        layouts |= {array: Layout(address, (_INT32_BYTES,)) for array, address in (numbers or {}).items()}

        def work(core: int) -> CoreWork:
            names = {**sizes, "cores": cores, "core": core}
            for key, expression in kernel.names:
                names[key] = expression.evaluate(names)
            return kernel.expander.core_work(names, layouts, kernel.code_bytes)

        return TeamWork(nest, tuple(work(core) for core in range(cores)))

    return nests.for_dtype(build, places, dtype)


def nest_call(
    choice: KernelChoice,
    nest: str,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Piece],
    reads: Sequence[Piece],
    writes: Sequence[Piece],
    function: Function,
    dtype: str,
) -> KernelCall:
    """A call of a nest whose `arrays` are pieces, indexed by their last dimensions in row-major order.

    An array of one index takes a piece of any shape as a vector.
    """
    kernel = LIBRARY.kernel(choice.codegen, nest)
    strides = {
        array: (*(prod(piece.shape[axis:]) for axis in range(1, kernel.arrays[array])), 1)
        for array, piece in arrays.items()
    }

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        places = [piece.address(addresses, dtype) for piece in arrays.values()]
        return nest_work(choice.codegen, nest, sizes, strides, places, cores, dtype)

    return piece_call(nest, reads, writes, work, function)


def copy_call(choice: KernelChoice, source: Piece, target: Piece, dtype: str) -> KernelCall:
    """target = source, elements over the cores."""
    return nest_call(
        choice,
        "copy",
        {"elements": prod(source.shape)},
        {"X": source, "Y": target},
        (source,),
        (target,),
        lambda arrays: (arrays[0],),
        dtype,
    )


def zero_call(choice: KernelChoice, target: Piece, dtype: str) -> KernelCall:
    """target = 0."""
    return nest_call(
        choice,
        "set_to_value",
        {"elements": prod(target.shape)},
        {"Y": target},
        (),
        (target,),
        lambda arrays: (np.zeros(target.shape, np.float32),),
        dtype,
    )


def add_call(choice: KernelChoice, total: Piece, term: Piece, dtype: str) -> KernelCall:
    """total += term, elementwise; a term with fewer elements than the total repeats (a bias per row)."""
    return nest_call(
        choice,
        "vect_sum",
        {"elements": prod(total.shape)},
        {"X": total, "G": term, "Y": total},
        (total, term),
        (total,),
        lambda arrays: (arrays[0] + arrays[1],),
        dtype,
    )


def column_sum_call(choice: KernelChoice, source: Piece, target: Piece, dtype: str) -> KernelCall:
    """target[m] = sum over the other dimensions of source[..., m]: the gradient of a bias, in one fork."""
    columns = source.shape[-1]
    rows = prod(source.shape[:-1])
    flat = Piece(source.name, (rows, columns), source.first or 0)
    return nest_call(
        choice,
        "column_sum",
        {"N": rows, "M": columns},
        {"X": flat, "Y": target},
        (flat,),
        (target,),
        lambda arrays: (arrays[0].sum(axis=0),),
        dtype,
    )


def transpose_piece_call(choice: KernelChoice, source: Piece, target: Piece, dtype: str) -> KernelCall:
    """target[m, n] = source[n, m]; the target may be a buffer of another shape with as many elements."""
    rows, columns = source.shape
    turned = Piece(target.name, (columns, rows), target.first or 0)
    return nest_call(
        choice,
        "transpose_matrix",
        {"N": rows, "M": columns},
        {"X": source, "Y": turned},
        (source,),
        (target,),
        lambda arrays: (np.ascontiguousarray(arrays[0].T),),
        dtype,
    )


def piece_matmul_call(
    choice: KernelChoice,
    *,
    a: Piece,
    b: Piece,
    c: Piece,
    n: int,
    k: int,
    m: int,
    trans_b: bool,
    dtype: str,
    again: bool = False,
) -> KernelCall:
    """C[n,m] = A[n,k] · B, as `matmul_call`, on pieces of as many elements.

    A product that another tile computes too (`again`) costs its time here but adds no multiply-accumulates.
    """
    plain = matmul_call(
        choice, a="a", b="b", c="c", n=n, k=k, m=m, trans_b=trans_b, c_shape=c.shape, dtype=dtype
    )

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        pieces = {"a": a, "b": b, "c": c}
        team = plain.work(cores, {key: piece.address(addresses, dtype) for key, piece in pieces.items()})
        return replace(team, macs=0) if again else team

    macs = 0 if again else plain.macs
    return piece_call(plain.kernel, (a, b), (c,), work, plain.function, macs=macs)


def added_matmul_calls(
    choice: KernelChoice,
    *,
    a: Piece,
    b: Piece,
    c: Piece,
    n: int,
    k: int,
    m: int,
    trans_b: bool,
    dtype: str,
    scratch: Piece | None,
) -> list[KernelCall]:
    """C = A · B, or C += A · B by way of `scratch` if there is one (PULP-TrainLib's ``mm_add``)."""
    target = scratch or c
    calls = [piece_matmul_call(choice, a=a, b=b, c=target, n=n, k=k, m=m, trans_b=trans_b, dtype=dtype)]
    if scratch is not None:
        calls.append(add_call(choice, c, scratch, dtype))
    return calls

# SPDX-License-Identifier: Apache-2.0
"""Kernel calls and lowerings that primitives share: matmul, transpose, vector add.

Buffers are named by role (``x``, ``w``, ``dy``) or by `trainlib.ir.steps.part` of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from arch.spec.isa import TeamWork
from configs.dtypes import FP32, DType
from configs.values import replace
from trainlib.ir.graph import Op
from trainlib.ir.numerics import details_of_sums, matmul, sum_order
from trainlib.ir.steps import Array, Extent, KernelCall, KernelChoice, Operand
from trainlib.kernels import catalogue
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call, piece_call

VECTOR_ADD = "vect_sum"
"""Nest of the sum Y of two vectors X and G, elements over the cores; measured (KIND layer, vect_sum)."""

BROADCAST_ADD = "broadcast_sum"
"""PULP-TrainLib's sum of two tensors of any shapes, for which it gives up that of two vectors; measured."""

BATCH = "n"
"""Name of the dimension that cuts the batch, in extents and tile sizes."""


def box(op: Op, role: str, *region: Extent) -> Operand:
    """A box of the tensor of a role, one interval per dimension, in the buffer of that name."""
    return Operand(op[role], region, role)


def batch_extent(count: int) -> dict[str, int]:
    """The batch dimension as the outermost extent of a step; nothing for a batch of 1."""
    return {BATCH: count} if count > 1 else {}


def matmul_call(
    choice: KernelChoice, a: Piece, b: Piece, c: Piece, dtype: DType = FP32, *, trans_b: bool = False
) -> KernelCall:
    """C[N,M] = A[N,K] · B[K,M] in `dtype`, B stored [M,K] if `trans_b`; a vector is a row.

    C may have any shape of N·M elements in row-major order. Numbers follow `choice.accumulation` (see
    `trainlib.ir.numerics.matmul`).
    """
    n, k = (1, *a.shape)[-2:]
    m = prod(c.shape) // n
    order = sum_order(choice.kernel, n=n, k=k, m=m, trans_b=trans_b, cores=choice.cores)
    sums = choice.accumulation

    def work(cores: int, addresses: Mapping[str, int]) -> TeamWork:
        return catalogue.matmul_work(
            choice.kernel,
            choice.codegen,
            n=n,
            k=k,
            m=m,
            trans_b=trans_b,
            cores=cores,
            a_address=a.address(addresses, dtype),
            b_address=b.address(addresses, dtype),
            c_address=c.address(addresses, dtype),
            element_bytes=dtype.bytes,
        )

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        left, right = arrays
        right = right.reshape(m, k).T if trans_b else right.reshape(k, m)
        product = matmul(left.reshape(n, k), right, dtype=dtype, accumulation=sums, order=order)
        return (product.reshape(c.shape),)

    known = details_of_sums(sums, dtype, order)
    return piece_call(choice.kernel, (a, b), (c,), work, function, macs=n * k * m, details=known)


def factors(a: str, b: str, n: int, k: int, m: int, *, trans_b: bool) -> tuple[Piece, Piece]:
    """A [N,K] and B [K,M], which is stored [M,K] if `trans_b`, in buffers of these names."""
    return Piece(a, (n, k)), Piece(b, (m, k) if trans_b else (k, m))


def vector_add_call(
    choice: KernelChoice,
    *,
    total: str | Piece,
    term: str | Piece,
    elements: int,
    dtype: DType = FP32,
    repeated: bool = False,
) -> KernelCall:
    """total += term, forked; a term shorter than the total is `repeated` (a bias added to each row)."""
    sizes, arrays = {"elements": elements, "repeated": int(repeated)}, {"X": total, "G": term, "Y": total}

    def function(values: Sequence[Array]) -> tuple[Array, ...]:
        return (np.add(values[0], values[1]),)

    return kernel_call(choice, VECTOR_ADD, sizes, arrays, (total, term), (total,), function, dtype)


def transpose_call(choice: KernelChoice, source: Piece, target: Piece, dtype: DType = FP32) -> KernelCall:
    """target[m, n] = source[n, m], larger dimension over the cores; measured (KIND layer, transpose_matrix).

    The target may be a buffer of another shape with as many elements.
    """
    rows, columns = source.shape
    sizes = {"N": rows, "M": columns}
    placed = {"X": replace(source, strides=(columns, 1)), "Y": replace(target, strides=(rows, 1))}

    def function(arrays: Sequence[Array]) -> tuple[Array, ...]:
        return (np.ascontiguousarray(arrays[0].T),)

    return kernel_call(choice, "transpose_matrix", sizes, placed, (source,), (target,), function, dtype)

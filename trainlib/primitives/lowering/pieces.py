# SPDX-License-Identifier: Apache-2.0
"""Kernel calls on pieces of L1 buffers: one time step, one head, one matrix of many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from arch.isa import TeamWork
from configs.dtypes import DType
from trainlib.primitives.lowering.calls import matmul_call, transpose_piece_call, vector_add_call
from trainlib.primitives.lowering.kernel_call import Piece, kernel_call, piece_call
from trainlib.steps import KernelCall, KernelChoice

__all__ = [
    "Piece",
    "add_call",
    "added_matmul_calls",
    "column_sum_call",
    "copy_call",
    "kernel_call",
    "piece_call",
    "piece_matmul_call",
    "transpose_piece_call",
    "zero_call",
]


def copy_call(choice: KernelChoice, source: Piece, target: Piece, dtype: DType) -> KernelCall:
    """target = source, elements over the cores."""
    return kernel_call(
        choice,
        "copy",
        {"elements": prod(source.shape)},
        {"X": source, "Y": target},
        (source,),
        (target,),
        lambda arrays: (arrays[0],),
        dtype,
    )


def zero_call(choice: KernelChoice, target: Piece, dtype: DType) -> KernelCall:
    """target = 0."""
    return kernel_call(
        choice,
        "set_to_value",
        {"elements": prod(target.shape)},
        {"Y": target},
        (),
        (target,),
        lambda arrays: (np.zeros(target.shape, np.float32),),
        dtype,
    )


def add_call(choice: KernelChoice, total: Piece, term: Piece, dtype: DType) -> KernelCall:
    """`vector_add_call` of pieces."""
    return vector_add_call(choice, total=total, term=term, elements=prod(total.shape), dtype=dtype)


def column_sum_call(choice: KernelChoice, source: Piece, target: Piece, dtype: DType) -> KernelCall:
    """target[m] = sum over the other dimensions of source[..., m]: the gradient of a bias, in one fork."""
    columns = source.shape[-1]
    rows = prod(source.shape[:-1])
    flat = Piece(source.name, (rows, columns), source.first or 0)
    return kernel_call(
        choice,
        "column_sum",
        {"N": rows, "M": columns},
        {"X": flat, "Y": target},
        (flat,),
        (target,),
        lambda arrays: (arrays[0].sum(axis=0),),
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
    dtype: DType,
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
    dtype: DType,
    scratch: Piece | None,
) -> list[KernelCall]:
    """C = A · B, or C += A · B by way of `scratch` if there is one (PULP-TrainLib's ``mm_add``)."""
    target = scratch or c
    calls = [piece_matmul_call(choice, a=a, b=b, c=target, n=n, k=k, m=m, trans_b=trans_b, dtype=dtype)]
    if scratch is not None:
        calls.append(add_call(choice, c, scratch, dtype))
    return calls

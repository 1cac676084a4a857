# SPDX-License-Identifier: Apache-2.0
"""Passes of attention that are no plain matmul: biases, scale, softmax and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from configs.dtypes import DType
from trainlib.primitives.lowering.pieces import (
    Piece,
    kernel_call,
)
from trainlib.steps import Array, KernelCall, KernelChoice


def row_bias_call(choice: KernelChoice, total: Piece, bias: Piece, dtype: DType) -> KernelCall:
    """total[n, m] += bias[n]."""
    rows, columns = total.shape
    return kernel_call(
        choice,
        "row_bias",
        {"N": rows, "M": columns},
        {"Y": total, "G": bias},
        (total, bias),
        (total,),
        lambda arrays: (arrays[0] + arrays[1][:, None],),
        dtype,
    )


def row_sum_call(choice: KernelChoice, source: Piece, target: Piece, dtype: DType) -> KernelCall:
    """target[n] = sum over p and m of source[p, n, m]: the gradient of a bias per row, in one fork."""
    matrices, rows, columns = source.shape
    return kernel_call(
        choice,
        "row_sum",
        {"P": matrices, "N": rows, "M": columns},
        {"X": source, "Y": target},
        (source,),
        (target,),
        lambda arrays: (arrays[0].sum(axis=(0, 2)),),
        dtype,
    )


def scale_call(choice: KernelChoice, target: Piece, factor: float, dtype: DType) -> KernelCall:
    """target *= factor."""
    return kernel_call(
        choice,
        "scale_by_number",
        {"elements": prod(target.shape)},
        {"X": target, "Y": target},
        (target,),
        (target,),
        lambda arrays: (arrays[0] * np.float32(factor),),
        dtype,
    )


def softmax_calls(
    choice: KernelChoice, source: Piece, target: Piece, maxima: str, sums: str, dtype: DType
) -> tuple[KernelCall, ...]:
    """Softmax of every row of source[n, m], exact: row maximum, exponentials and sum, division."""
    rows, columns = target.shape
    sizes = {"N": rows, "M": columns}
    largest, total = Piece(maxima, (rows,)), Piece(sums, (rows,))

    def exponentials(arrays: Sequence[Array]) -> tuple[Array, ...]:
        powers = np.exp(arrays[0] - arrays[1][:, None])
        return powers, powers.sum(axis=1)

    return (
        kernel_call(
            choice,
            "row_max",
            sizes,
            {"X": source, "R": largest},
            (source,),
            (largest,),
            lambda arrays: (arrays[0].max(axis=1),),
            dtype,
        ),
        kernel_call(
            choice,
            "exp_sum_exact",
            sizes,
            {"X": source, "Y": target, "R": largest, "Z": total},
            (source, largest),
            (target, total),
            exponentials,
            dtype,
        ),
        kernel_call(
            choice,
            "row_div",
            sizes,
            {"X": target, "Z": total},
            (target, total),
            (target,),
            lambda arrays: (arrays[0] / arrays[1][:, None],),
            dtype,
        ),
    )


def softmax_gradient_calls(
    choice: KernelChoice, result: Piece, weights: Piece, gradient: Piece, sums: str, dtype: DType
) -> tuple[KernelCall, ...]:
    """result = (gradient - sum over the row of gradient · weights) · weights, for every row."""
    rows, columns = weights.shape
    sizes, total = {"N": rows, "M": columns}, Piece(sums, (rows,))
    return (
        kernel_call(
            choice,
            "softmax_bw_sum",
            sizes,
            {"X": weights, "G": gradient, "Z": total},
            (weights, gradient),
            (total,),
            lambda arrays: ((arrays[0] * arrays[1]).sum(axis=1),),
            dtype,
        ),
        kernel_call(
            choice,
            "softmax_bw_scale",
            sizes,
            {"X": weights, "G": gradient, "Z": total, "Y": result},
            (weights, gradient, total),
            (result,),
            lambda arrays: ((arrays[1] - arrays[2][:, None]) * arrays[0],),
            dtype,
        ),
    )

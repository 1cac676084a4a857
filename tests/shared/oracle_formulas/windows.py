# SPDX-License-Identifier: Apache-2.0
"""Pooling window by window; interpolation by matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shared.oracle_formulas import Oracles

if TYPE_CHECKING:
    from trainlib.ir.graph import Op
    from trainlib.ir.steps import Array
    from trainlib.primitives.definition import Values

LARGEST_OF_A_BYTE = 16
"""Rows and columns of a window whose place fits a byte; those of a larger one have 16 bits each."""


class _Axis(NamedTuple):
    size: int
    outputs: int
    kernel: int
    stride: int
    padding: int

    def window(self, output: int) -> slice:
        """What an output sees of the image."""
        first = output * self.stride - self.padding
        return slice(max(first, 0), min(first + self.kernel, self.size))


def axes_of(attributes: Mapping[str, Any]) -> tuple[_Axis, _Axis]:
    """Rows and columns."""
    return _Axis(*attributes["rows"]), _Axis(*attributes["columns"])


def each_window(op: Op) -> list[tuple[int, int, slice, slice]]:
    """(output row, output column, rows of its window, columns of its window)."""
    rows, columns = axes_of(op.attributes)
    places = np.ndindex(rows.outputs, columns.outputs)
    return [(h, w, rows.window(h), columns.window(w)) for h, w in places]


def place_bits(op: Op) -> int:
    """Bits of the column in a place."""
    return 4 if max(axis.kernel for axis in axes_of(op.attributes)) <= LARGEST_OF_A_BYTE else 16


def average_reference(op: Op, values: Values) -> Values:
    """Mean of every window, one by one."""
    x = values["x"]
    rows, columns = axes_of(op.attributes)
    y = np.empty((*x.shape[:2], rows.outputs, columns.outputs))
    for h, w, high, wide in each_window(op):
        window = x[:, :, high, wide].astype(np.float64)
        counted = window[0, 0].size
        if op.attributes["count_include_pad"]:
            counted = rows.kernel * columns.kernel
        y[:, :, h, w] = window.sum(axis=(2, 3)) / counted
    return {"y": y}


def average_gradient_reference(op: Op, values: Values) -> Values:
    """Every gradient spread evenly over its window."""
    dy = values["dy"].astype(np.float64)
    rows, columns = axes_of(op.attributes)
    dx = np.zeros((*dy.shape[:2], rows.size, columns.size))
    for h, w, high, wide in each_window(op):
        counted = dx[0, 0, high, wide].size
        if op.attributes["count_include_pad"]:
            counted = rows.kernel * columns.kernel
        dx[:, :, high, wide] += dy[:, :, h, w, None, None] / counted
    return {"dx": dx}


def _reference_forward(op: Op, values: Values) -> Values:
    x = values["x"]
    rows, columns = axes_of(op.attributes)
    y = np.empty((*x.shape[:2], rows.outputs, columns.outputs), x.dtype)
    argmax = np.empty(y.shape, np.int64)
    for h, w, high, wide in each_window(op):
        window = x[:, :, high, wide]
        first = window.reshape(*x.shape[:2], -1).argmax(axis=2)
        down, along = np.divmod(first, window.shape[3])
        cut = max(rows.padding - h * rows.stride, 0), max(columns.padding - w * columns.stride, 0)
        argmax[:, :, h, w] = ((cut[0] + down) << place_bits(op)) + cut[1] + along
        y[:, :, h, w] = window.max(axis=(2, 3))
    return {"y": y, "argmax": argmax}


def _reference_backward(op: Op, values: Values) -> Values:
    dy, place = values["dy"], values["argmax"].astype(np.int64)
    rows, columns = axes_of(op.attributes)
    top = np.arange(rows.outputs)[:, None] * rows.stride - rows.padding + (place >> place_bits(op))
    left = np.arange(columns.outputs) * columns.stride - columns.padding + place % (1 << place_bits(op))
    argmax = top * columns.size + left
    planes = [
        np.bincount(place.ravel(), weights=gradient.ravel(), minlength=rows.size * columns.size)
        for place, gradient in zip(
            argmax.reshape(-1, argmax[0, 0].size), dy.reshape(-1, dy[0, 0].size), strict=True
        )
    ]
    return {"dx": np.stack(planes).reshape(*dy.shape[:2], rows.size, columns.size)}


def _matrix(mode: str, inputs: int, outputs: int) -> Array:
    """The interpolation of one axis as a matrix [outputs, inputs]."""
    matrix = np.zeros((outputs, inputs))
    for row in range(outputs):
        if mode == "nearest":
            matrix[row, int(row * inputs / outputs + 1e-9)] = 1
            continue
        centre = min(max((2 * row + 1) * inputs / (2 * outputs) - 0.5, 0), inputs - 1)
        # A tent of width 1 around each input; beyond the last input its value is held.
        matrix[row] = np.maximum(0, 1 - np.abs(np.arange(inputs) - centre))
    return matrix


def _matrices(op: Op) -> tuple[Array, Array]:
    attributes = op.attributes
    return (
        _matrix(attributes["mode"], attributes["hi"], attributes["ho"]),
        _matrix(attributes["mode"], attributes["wi"], attributes["wo"]),
    )


def _interpolated(op: Op, values: Values) -> Values:
    rows, columns = _matrices(op)
    return {"y": rows @ values["x"].astype(np.float64) @ columns.T}


def _interpolated_gradient(op: Op, values: Values) -> Values:
    rows, columns = _matrices(op)
    return {"dx": rows.T @ values["dy"].astype(np.float64) @ columns}


ORACLES: Oracles = {
    **{(name, "FW"): average_reference for name in ("avg_pool2d", "global_avg_pool")},
    **{(name, "IG"): average_gradient_reference for name in ("avg_pool2d", "global_avg_pool")},
    ("interpolation", "FW"): _interpolated,
    ("interpolation", "IG"): _interpolated_gradient,
    ("max_pool2d", "FW"): _reference_forward,
    ("max_pool2d", "IG"): lambda op, values: _reference_backward(
        op, {"argmax": _reference_forward(op, values)["argmax"] if "x" in op else None, **values}
    ),
}

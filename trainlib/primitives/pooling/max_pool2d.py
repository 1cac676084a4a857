# SPDX-License-Identifier: Apache-2.0
"""Max pooling: y = the largest element of a window, `argmax` its row and column in the window.

The first of equal maxima wins, as in PyTorch and PULP-TrainLib. The library keeps no positions and searches
again in the backward pass, which therefore reads x; here FW saves them, as 16 · row + column in a byte (of
windows beyond 16 x 16 as 65536 · row + column in four), and IG adds every gradient at its saved place. A
layer in the variant as-published goes the library's way, which knows one stride and no padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from trainlib.ir.graph import Op
from trainlib.ir.steps import Array
from trainlib.primitives.definition import AsPublished, DrawnInput, Example, LayerPrimitive
from trainlib.primitives.pooling.pooling import (
    IMAGE,
    Plane,
    Pooling,
    PoolingSchema,
    axes_of,
    op_place_dtype,
    place_bits,
    pooling_plan,
    read_by,
    windows,
)


def _maxima(op: Op, x: Array, outputs: Plane, fetched: Plane) -> tuple[Array, Array]:
    """y and argmax of a box of results, from the box of x."""
    rows, columns = axes_of(op.attributes)
    view = windows(x, (rows, columns), outputs, fetched, -np.inf)
    flat = view.reshape(*view.shape[:3], -1)
    first = flat.argmax(axis=3)
    y = np.take_along_axis(flat, first[..., None], axis=3)[..., 0]
    down, along = np.divmod(first, columns.kernel)
    # Of a window of -inf alone the first element may be padding.
    down = np.maximum(down, rows.padding - np.arange(*outputs.rows)[:, None] * rows.stride)
    along = np.maximum(along, columns.padding - np.arange(*outputs.columns) * columns.stride)
    return y, ((down << place_bits(op)) + along).astype(op_place_dtype(op))


def _forward(op: Op, outputs: Plane, fetched: Plane, arrays: Sequence[Array]) -> tuple[Array, ...]:
    return _maxima(op, arrays[0], outputs, fetched)[: len(op.writes)]


def _backward(op: Op, inputs: Plane, reaching: Plane, arrays: Sequence[Array]) -> tuple[Array, ...]:
    (rows, columns), (argmax, dy) = axes_of(op.attributes), arrays
    top = np.arange(*reaching.rows)[:, None] * rows.stride - rows.padding - inputs.rows[0]
    left = np.arange(*reaching.columns) * columns.stride - columns.padding - inputs.columns[0]
    dx = np.zeros((len(dy), *inputs.shape), dy.dtype)
    down, along = np.divmod(argmax.astype(np.int64), 1 << place_bits(op))
    down, along = down + top, along + left
    mine = (down >= 0) & (down < inputs.shape[0]) & (along >= 0) & (along < inputs.shape[1])
    np.add.at(dx, (np.nonzero(mine)[0], down[mine], along[mine]), dy[mine])
    return (dx,)


def _search(op: Op, inputs: Plane, reaching: Plane, arrays: Sequence[Array]) -> tuple[Array, ...]:
    x, dy = arrays
    argmax = _maxima(op, x, reaching, read_by(op, reaching))[1]
    return _backward(op, inputs, reaching, (argmax, dy))


def _published(attributes: Mapping[str, Any]) -> bool:
    rows, columns = axes_of(attributes)
    return not (rows.is_padded or columns.is_padded) and rows.stride == columns.stride


PRIMITIVE = LayerPrimitive(
    name="max_pool2d",
    schema=PoolingSchema,
    plan=partial(pooling_plan, save_positions=True),
    steps=(
        Pooling("maxpool_fw_argmax", "X:x Y:y I:argmax", _forward).step("FW", "x -> y argmax"),
        Pooling("maxpool_bw_argmax", "G:dx Y:dy I:argmax", _backward, IMAGE).step("IG", "argmax dy -> dx"),
    ),
    published=AsPublished(
        (
            Pooling("maxpool_fw", "X:x Y:y", _forward).step("FW", "x -> y"),
            Pooling("maxpool_bw", "X:x G:dx Y:dy", _search, IMAGE).step("IG", "x dy -> dx"),
        ),
        offered=_published,
        needs="padding 0 and the same stride in rows and columns",
    ),
    examples=(
        Example({"kernel": 2}, (DrawnInput((3, 6, 4), distinct=True),)),
        Example({"kernel": [3, 2], "stride": [2, 1], "padding": [1, 0]}, ((2, 5, 7),)),
        Example({"kernel": 3, "stride": 2, "padding": 1}, (DrawnInput((2, 6, 5), low=-2, high=-1),)),
        Example({"kernel": 2, "stride": 3}, ((1, 8, 9),)),
        Example({"kernel": 3, "stride": 2, "padding": [2, 0, 0, 1]}, ((2, 5, 6),)),
        Example({"kernel": 2, "variant": "as-published"}, (DrawnInput((3, 7, 4), distinct=True),)),
        Example(
            {"kernel": [3, 2], "stride": 2, "variant": "as-published"},
            (DrawnInput((2, 8, 7), low=-2, high=-1, distinct=True),),
        ),
    ),
)

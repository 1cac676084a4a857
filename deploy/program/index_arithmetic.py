# SPDX-License-Identifier: Apache-2.0
"""Numbers that vary over the indices of loops, as C expressions of these indices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

WIDEST_ROW = 4096
"""Inner turns of an index that stands for two, that are tried."""


def expression(values: Numbers, indices: Sequence[str], table: Callable[[Numbers], str]) -> str:
    """C text whose value at every index is that of `values`, which has an axis per index.

    What is a sum of terms of one index each becomes one, each term a multiple of the index, of its quotient
    and rest (a loop that runs over rows and columns of tiles), a choice between alternating values, or
    another value in the last turn. All else is looked up: `table` keeps the values and gives the text of
    the array.
    """
    if values.ndim == 0:
        return str(int(values))
    origin = int(values[(0,) * values.ndim])
    terms: list[tuple[str, int]] = []
    rest = values - origin
    for axis, name in enumerate(indices):
        along = np.moveaxis(rest, axis, 0).reshape(values.shape[axis], -1)[:, 0]
        if not along.any():
            continue
        along_one = _along(along, name)
        if along_one is None:
            return _looked_up(values, indices, table)
        terms += along_one
        shape = [1] * values.ndim
        shape[axis] = -1
        rest = rest - along.reshape(shape)
    if rest.any():
        return _looked_up(values, indices, table)
    return _summed(origin, terms)


def _summed(origin: int, terms: Sequence[tuple[str, int]]) -> str:
    text = str(origin) if origin or not terms else ""
    for factor, weight in terms:
        sign = "-" if weight < 0 else "+"
        product = factor if abs(weight) == 1 else f"{abs(weight)} * {factor}"
        text = f"{text} {sign} {product}" if text else (f"-{product}" if weight < 0 else product)
    return text


def _along(along: Numbers, name: str) -> list[tuple[str, int]] | None:
    """Terms of an index that make these values, of which the first is 0; None if they follow no such rule."""
    turns = np.arange(len(along))
    if (along == along[1] * turns).all():
        return [(name, int(along[1]))]
    for width in range(2, min(len(along), WIDEST_ROW) // 2 + 1):
        inner = along[:width]
        if (along[turns % width] == along).all():
            return _repeating(inner, f"{name} % {width}", name, width)
        step, row = int(along[1]), int(along[width])
        if (along == step * (turns % width) + row * (turns // width)).all():
            return [*([(f"({name} % {width})", step)] if step else []), (f"({name} / {width})", row)]
    return _last_differs(along, name)


def _repeating(inner: Numbers, rest: str, name: str, width: int) -> list[tuple[str, int]] | None:
    turns = np.arange(width)
    if (inner == inner[1] * turns).all():
        return [(f"({rest})", int(inner[1]))]
    if not inner[:-1].any():
        return [(f"({rest} == {width - 1})", int(inner[-1]))]
    if not inner[2:].any() or (inner[1:] == inner[1]).all():
        return [(f"({rest} != 0)", int(inner[1]))] if (inner[1:] == inner[1]).all() else None
    return None


def _last_differs(along: Numbers, name: str) -> list[tuple[str, int]] | None:
    last = len(along) - 1
    steps = along[1] * np.arange(last) if last > 1 else np.zeros(last, np.int64)
    if last > 1 and (along[:-1] == steps).all():
        step = int(along[1])
        over = int(along[-1]) - step * last
        return [*([(name, step)] if step else []), (f"({name} == {last})", over)]
    if (along[1:] == along[1]).all():
        return [(f"({name} != 0)", int(along[1]))]
    return None


def _looked_up(values: Numbers, indices: Sequence[str], table: Callable[[Numbers], str]) -> str:
    flat = indices[0]
    for name, count in zip(indices[1:], values.shape[1:], strict=True):
        flat = f"({flat}) * {count} + {name}"
    return f"{table(values.reshape(-1))}[{flat}]"

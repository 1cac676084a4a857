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
        along = np.moveaxis(rest, axis, 0).reshape(values.shape[axis], -1)[:, 0].copy()
        along_one = _along(along, name) if along.any() else []
        if along_one is None:
            break
        terms += along_one
        np.moveaxis(rest, axis, -1)[...] -= along
    return _looked_up(values, indices, table) if rest.any() else _summed(origin, terms)


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
        if (along[turns % width] == along).all():
            return _repeating(along[:width], f"{name} % {width}")
        step, row = int(along[1]), int(along[width])
        if (along == step * (turns % width) + row * (turns // width)).all():
            return [*([(f"({name} % {width})", step)] if step else []), (f"({name} / {width})", row)]
    return _one_differs(along, name, int(along[1]))


def _repeating(inner: Numbers, rest: str) -> list[tuple[str, int]] | None:
    if (inner == inner[1] * np.arange(len(inner))).all():
        return [(f"({rest})", int(inner[1]))]
    return _one_differs(inner, rest, 0)


def _one_differs(along: Numbers, name: str, step: int) -> list[tuple[str, int]] | None:
    """The last is another than a multiple of the step, or the first another than all that follow."""
    last = len(along) - 1
    if (along[:-1] == step * np.arange(last)).all():
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

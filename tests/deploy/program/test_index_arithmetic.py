# SPDX-License-Identifier: Apache-2.0
"""Numbers as C expressions of loop indices: known ones by hand, and any by evaluating what is written."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from deploy.program.index_arithmetic import expression

NAMES = ("t", "u")


def evaluated(values: NDArray[np.int64]) -> tuple[str, NDArray[np.int64]]:
    """The text of some numbers and what C would make of it at every index."""
    tables: list[NDArray[np.int64]] = []

    def table(numbers: NDArray[np.int64]) -> str:
        tables.append(numbers)
        return f"table{len(tables) - 1}"

    names = NAMES[: values.ndim]
    text = expression(values, names, table)
    known = {f"table{number}": numbers.tolist() for number, numbers in enumerate(tables)}
    python = text.replace(" / ", " // ")
    found = np.zeros_like(values)
    for index in product(*map(range, values.shape)):
        found[index] = int(eval(python, {}, {**known, **dict(zip(names, index, strict=True))}))
    return text, found


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([7, 7, 7], "7"),
        ([0, 4, 8, 12], "4 * t"),
        ([100, 92, 84], "100 - 8 * t"),
        ([0, 64, 0, 64, 0], "64 * (t % 2)"),
        ([3, 3, 3, 5], "3 + 2 * (t == 3)"),
        ([0, 8, 16, 100, 108, 116], "8 * (t % 3) + 100 * (t / 3)"),
        ([16, 16, 9, 16, 16, 9], "16 - 7 * (t % 3 == 2)"),
        ([[0, 4], [40, 44], [80, 84]], "40 * t + 4 * u"),
    ],
)
def test_what_follows_a_rule_is_written_as_it(values: list[int], text: str) -> None:
    found, numbers = evaluated(np.array(values))
    assert found == text
    assert numbers.tolist() == values


def test_what_follows_none_is_looked_up() -> None:
    text, numbers = evaluated(np.array([[5, 1], [9, 2], [6, 5]]))
    assert text == "table0[(t) * 2 + u]"
    assert numbers.tolist() == [[5, 1], [9, 2], [6, 5]]


@given(
    st.lists(st.integers(-50, 50), min_size=4, max_size=4),
    st.integers(2, 7),
    st.integers(2, 5),
    st.lists(st.integers(-9, 9), min_size=35, max_size=35),
    st.sampled_from(["sum", "noise", "turns"]),
)
def test_any_numbers_come_out_as_they_are(
    parts: list[int], outer: int, inner: int, noise: list[int], kind: str
) -> None:
    t, u = np.arange(outer).reshape(-1, 1), np.arange(inner).reshape(1, -1)
    values = parts[0] + parts[1] * t + parts[2] * u
    if kind == "turns":
        values = parts[0] + parts[1] * (t % 2) + parts[2] * (t // 2) + parts[3] * (u == inner - 1)
    if kind == "noise":
        values = values + np.array(noise[: outer * inner]).reshape(outer, inner)
    assert evaluated(values)[1].tolist() == values.tolist()

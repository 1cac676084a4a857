# SPDX-License-Identifier: Apache-2.0
"""Loops that are found in statements: by hand, and what comes out unrolled is what went in."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.programs.rolling import Leaf, Loop, Node, rolled


def leaves(text: str) -> list[Leaf]:
    """A statement per character, each with its place as its number."""
    return [Leaf(form, np.array([place])) for place, form in enumerate(text)]


def shape(nodes: tuple[Node, ...]) -> str:
    """``A 3(B C)`` for A and three turns of a loop around B and C."""
    return " ".join(
        f"{node.count}({shape(node.body)})" if isinstance(node, Loop) else str(node.form) for node in nodes
    )


def test_tiles_that_repeat_are_a_loop() -> None:
    assert shape(rolled(leaves("PLKSLKSLKSW"))) == "P 3(L K S) W"


def test_loops_that_are_alike_are_a_loop_of_loops() -> None:
    text = "W" + "LKKKKS" * 3
    assert shape(rolled(leaves(text))) == "W 3(L 4(K) S)"


def test_two_lines_are_no_loop() -> None:
    assert shape(rolled(leaves("ABAB"))) == "A B A B"


def test_numbers_have_an_axis_per_loop() -> None:
    (first, loop) = rolled(leaves("W" + "LKKKKS" * 3))
    assert isinstance(first, Leaf)
    assert isinstance(loop, Loop)
    assert isinstance(loop.body[1], Loop)
    (inner,) = loop.body[1].body
    assert isinstance(inner, Leaf)
    assert inner.numbers.tolist() == [[[2, 3, 4, 5], [8, 9, 10, 11], [14, 15, 16, 17]]]


def unrolled(nodes: Sequence[Node], *index: int) -> Iterator[tuple[Hashable, tuple[int, ...]]]:
    """(form, numbers) of every statement in the order they are executed; `index` is that of loops around."""
    for node in nodes:
        if isinstance(node, Leaf):
            yield node.form, tuple(int(values[index]) for values in node.numbers)
        else:
            for turn in range(node.count):
                yield from unrolled(node.body, *index, turn)


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 9)), max_size=60))
def test_unrolled_it_is_what_it_was(statements: list[tuple[str, int]]) -> None:
    given_leaves = [Leaf(form, np.array([number])) for form, number in statements]
    assert [(form, *numbers) for form, numbers in unrolled(rolled(given_leaves))] == statements

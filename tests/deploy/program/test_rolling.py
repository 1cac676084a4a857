# SPDX-License-Identifier: Apache-2.0
"""Loops that are found in statements: by hand, and what comes out unrolled is what went in."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from scheduler.programs.rolling import Leaf, Loop, Node, places_of, rolled, table_nodes


def shape(nodes: tuple[Node, ...]) -> str:
    """``A 3(B C)`` for A and three turns of a loop around B and C."""
    return " ".join(
        f"{node.count}({shape(node.body)})" if isinstance(node, Loop) else str(node.form) for node in nodes
    )


def test_tiles_that_repeat_are_a_loop() -> None:
    assert shape(rolled("PLKSLKSLKSW")) == "P 3(L K S) W"


def test_loops_that_are_alike_are_a_loop_of_loops() -> None:
    text = "W" + "LKKKKS" * 3
    assert shape(rolled(text)) == "W 3(L 4(K) S)"


def test_two_lines_are_no_loop() -> None:
    assert shape(rolled("ABAB")) == "A B A B"


def test_places_have_an_axis_per_loop() -> None:
    (first, loop) = rolled("W" + "LKKKKS" * 3)
    assert isinstance(first, Leaf)
    assert isinstance(loop, Loop)
    assert isinstance(loop.body[1], Loop)
    (inner,) = loop.body[1].body
    assert isinstance(inner, Leaf)
    assert places_of(inner, [loop, loop.body[1]]).tolist() == [[2, 3, 4, 5], [8, 9, 10, 11], [14, 15, 16, 17]]


def unrolled(nodes: Sequence[Node], *around: tuple[Loop, int]) -> Iterator[tuple[int, Hashable]]:
    """Place and form of every statement in the order they are executed; `around` are loops, turns."""
    for node in nodes:
        if isinstance(node, Leaf):
            places = places_of(node, [loop for loop, _ in around])
            yield int(places[tuple(turn for _, turn in around)]), node.form
        else:
            for turn in range(node.count):
                yield from unrolled(node.body, *around, (node, turn))


@given(st.lists(st.sampled_from("ABC"), max_size=60))
def test_unrolled_it_is_what_it_was(forms: list[str]) -> None:
    assert [*unrolled(rolled(forms))] == [*enumerate(forms)]


@given(st.lists(st.sampled_from("ABC"), max_size=60))
def test_a_table_executes_what_is_rolled(forms: list[str]) -> None:
    assert [*unrolled(tuple(table_nodes(rolled(forms))))] == [*enumerate(forms)]


def test_a_table_has_two_turns_in_one_and_short_loops_written_out() -> None:
    assert shape(tuple(table_nodes(rolled("PLKSLKSLKSLKSLKSW")))) == "P 2(L K S L K S) L K S W"
    assert shape(tuple(table_nodes(rolled("PLKSLKSLKSW")))) == "P L K S L K S L K S W"

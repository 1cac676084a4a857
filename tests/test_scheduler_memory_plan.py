"""Addresses: nothing that lives at the same time shares a byte, and dead bytes are used again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.memory_plan import Allocation, Request, check_no_overlap, first_fit


def test_buffers_that_never_live_together_share_an_address() -> None:
    plan = first_fit([Request("a", 100, 0, 1), Request("b", 100, 2, 3)], "l2")
    assert plan["a"].address == plan["b"].address == 0


def test_buffers_that_live_together_do_not() -> None:
    plan = first_fit([Request("a", 100, 0, 2), Request("b", 90, 2, 3), Request("c", 8, 3, 3)], "l2")
    assert [plan[name].address for name in "abc"] == [0, 100, 0]


def test_addresses_are_whole_words() -> None:
    plan = first_fit([Request("a", 10, 0, 0), Request("b", 9, 0, 0)], "l2")
    assert plan["b"].address == 12


def test_the_checker_sees_an_overlap() -> None:
    one = Allocation("a", "l1", 0, 8, 0, 1)
    with pytest.raises(ValueError, match="overlap"):
        check_no_overlap([one, Allocation("b", "l1", 4, 8, 1, 1)])
    check_no_overlap([one, Allocation("b", "l1", 4, 8, 2, 2), Allocation("c", "l2", 0, 8, 0, 1)])


requests = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 9), st.integers(0, 9)), max_size=25)


@given(requests)
def test_first_fit_never_overlaps_and_never_exceeds_the_sum(drawn: list[tuple[int, int, int]]) -> None:
    wanted = [Request(f"t{i}", size, min(a, b), max(a, b)) for i, (size, a, b) in enumerate(drawn)]
    plan = first_fit(wanted, "l2")
    check_no_overlap(plan.values())
    assert len(plan) == len(wanted)
    words = sum(-(-request.size_bytes // 4) * 4 for request in wanted)
    assert max((item.end_address for item in plan.values()), default=0) <= words

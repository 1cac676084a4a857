# SPDX-License-Identifier: Apache-2.0
"""What docs/paper.md says in words holds; its tables are tested by docs/test_pages.py."""

from tools.pages import paper as writer


def test_starts_are_two_and_the_same_random_ones_each_time() -> None:
    found = writer.starts()
    assert len({*found}) == 2 + writer.RANDOM_STARTS
    assert found == writer.starts()
    assert all(len(start) == 16 and min(start) >= 0 and max(start) < 8 for start in found)


def test_the_kernel_that_shares_the_long_side_wins() -> None:
    assert not any("_M" in writer.fastest(shape) for shape in writer.TALL)
    assert all("_M" in writer.fastest(shape) for shape in writer.WIDE)

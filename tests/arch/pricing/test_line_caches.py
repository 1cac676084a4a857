# SPDX-License-Identifier: Apache-2.0
"""Lines in caches whose ways are replaced at random: expectations against the caches themselves."""

from __future__ import annotations

import math
import random

import pytest

from arch.pricing.line_caches import CodePath
from arch.pricing.line_engine import NEVER, fetch, missing_of
from arch.pricing.window import EngineChoice, compiled
from shared.soc_fixture import soc_timing

ICACHE = soc_timing().icache


def drawn_misses(lines: int, passes: int, *, empty_first: bool, seed: int, ways: int = 4) -> list[int]:
    """Misses of each pass over `lines` of one set of a cache that draws the way it replaces."""
    draw, held, misses = random.Random(seed), [-1] * ways, []
    for _ in range(passes):
        missed = 0
        for line in range(lines):
            if line not in held:
                missed += 1
                empty = [way for way, other in enumerate(held) if other < 0]
                held[empty[0] if empty_first and empty else draw.randrange(ways)] = line
        misses.append(missed)
    return misses


def one_set(lines: int) -> list[float]:
    """A cache of one set of 4 ways, empty."""
    return [1.0, 0.0, 0.0, *[NEVER] * lines]


def expected_misses(lines: int, passes: int, *, empty_first: bool) -> list[float]:
    cache, misses = one_set(lines), []
    for _ in range(passes):
        missed = 0.0
        for line in range(lines):
            missing = missing_of(cache, 1, line)
            missed += missing
            if missing:
                fetch(cache, 1, 4, int(empty_first), line, missing)
        misses.append(missed)
    return misses


@pytest.mark.parametrize("empty_first", [True, False])
@pytest.mark.parametrize("lines", [2, 4, 5, 6, 8, 12])
def test_expected_misses_are_the_mean_over_caches_that_draw(lines: int, empty_first: bool) -> None:
    runs = [drawn_misses(lines, 6, empty_first=empty_first, seed=seed) for seed in range(2_000)]
    for turn, expected in enumerate(expected_misses(lines, 6, empty_first=empty_first)):
        mean = sum(run[turn] for run in runs) / len(runs)
        assert expected == pytest.approx(mean, abs=0.06 * lines), turn


def test_a_full_set_holds_as_many_lines_as_it_has_ways() -> None:
    cache = one_set(7)
    for line in [*range(7)] * 5:
        fetch(cache, 1, 4, 1, line, missing_of(cache, 1, line))
    assert sum(1 - missing_of(cache, 1, line) for line in range(7)) == pytest.approx(4, abs=0.05)


def test_a_line_from_l2_comes_behind_the_reads_before_it_and_one_that_is_there_costs_nothing() -> None:
    path = CodePath(ICACHE)
    jump = ICACHE.jump_from_l2_cycles - ICACHE.jump_cycles
    line = ICACHE.line_from_l2_cycles - 5
    assert path.walk([7, 8], 5, 1000, (math.inf, 100)) == jump + 100 + line + 100
    assert path.walk([7, 8], 5, 2000) == 0
    path.leave_private()
    near = ICACHE.jump_from_shared_cycles - ICACHE.jump_cycles + ICACHE.line_from_shared_cycles - 5
    assert path.walk([7, 8], 5, 3000) == near
    assert path.lines_from_l2 == 2
    until = CodePath(ICACHE)
    late = 1000 + jump + 130  # the second line is asked for when the first begins
    assert until.walk([7, 8], 5, 1000, (late, 100)) == jump + 100 + line + 30


def test_compiled_code_gives_the_same_to_the_last_bit() -> None:
    if compiled() is None:
        pytest.skip("no Numba")
    draw, plain, fast = (
        random.Random(3),
        CodePath(ICACHE, EngineChoice(1 << 60)),
        CodePath(ICACHE, EngineChoice(0)),
    )
    for _ in range(20):
        stretches = [(draw.randrange(400), draw.randrange(1, 40)) for _ in range(30)]
        assert (plain.visit(stretches) == fast.visit(stretches)).all()

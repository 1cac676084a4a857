# SPDX-License-Identifier: Apache-2.0
"""What a call of a kernel waits for code that other code put out of the private cache.

The yardstick is `arch.pricing.fetch_oracle`, which walks the caches line by line with the shift register of
the hardware; what that holds is not known, so its figure is the mean over its states.
"""

from __future__ import annotations

import pytest

from arch.pricing.code_fetch import icache_stall_cycles
from arch.pricing.code_refills import surviving_share
from arch.pricing.fetch_oracle import pass_stall_cycles
from arch.pricing.nest_reader import NestReader
from arch.pricing.scoreboard import CoreNest
from arch.spec.isa import CodeLayout, CoreWork, Instruction, Loop, Op
from arch.spec.soc_config import load_soc
from configs.values import replace
from trainlib.kernels.expand import Expander
from trainlib.kernels.nest import parse_nest

SOC = load_soc("pulp-cluster-rtl")
ICACHE = SOC.icache
SEEDS = range(256)
ALU = Instruction(Op.ALU)


def nest(*body: Instruction | Loop, code_bytes: int = 0, layout: CodeLayout | None = None) -> CoreNest:
    reader = NestReader(SOC.core, SOC.fpu, SOC.l1.word_bytes, SOC.l2)
    return reader.read(CoreWork(body, (), code_bytes, layout))


def straight(lines: int) -> CoreNest:
    return nest(*[ALU] * (4 * lines))


@pytest.mark.parametrize("lines", [8, 16, 32, 64, 128])
def test_the_expectation_is_the_mean_over_the_states_of_the_replacement_register(lines: int) -> None:
    """Two calls of straight code, before each of them code of the program, and of fork and join."""
    between = range(8_000, 8_000 + ICACHE.between_calls_lines)
    around = range(between.stop, between.stop + ICACHE.call_lines)
    alone = replace(ICACHE, shared_bytes=1 << 16)  # what misses here is in the shared cache
    everything = [*between, *around, *range(lines)]
    waits = []
    for seed in SEEDS:
        *_, fork, kernel = pass_stall_cycles([everything, between, around, range(lines)], alone, seed)
        # Both come from L2 the first time only, and nothing does the second time.
        waits.append(fork + kernel)
    assert icache_stall_cycles(straight(lines), ICACHE) == pytest.approx(sum(waits) / len(waits), rel=0.07)


def test_small_kernels_stay_beside_the_code_around_them_and_large_ones_put_it_out() -> None:
    refill = ICACHE.private_refill_stall_cycles
    small, large = (icache_stall_cycles(straight(lines), ICACHE) for lines in (8, 64))
    assert small < (8 + ICACHE.call_lines) * refill / 2
    assert large > (64 + ICACHE.call_lines) * refill * 0.85
    assert surviving_share(8, ICACHE) > 0.5
    assert surviving_share(64, ICACHE) < 0.2


def test_a_set_of_one_way_keeps_only_the_line_fetched_last() -> None:
    """Also its factor of survival, which is 0, starts anew."""
    direct = replace(ICACHE, private_ways=1, fetch_bytes_per_cycle=0)
    waits = [icache_stall_cycles(straight(lines), direct) // 4 for lines in (12, 20, 32, 44)]
    # 32 sets: of the lines around, 12 lie in the sets 0 to 11 and those of fork and join in the next 8.
    assert waits == [12, 20 + 8, 20 + 8, 2 * 12 + 8 + 8]


def test_a_loop_that_fits_is_refilled_once_and_one_that_does_not_in_every_turn() -> None:
    small, large = ([ALU] * (4 * lines) for lines in (16, 64))
    waits = {
        (lines, trips): icache_stall_cycles(nest(Loop(trips, tuple(body), hardware=True)), ICACHE)
        for lines, body in ((16, small), (64, large))
        for trips in (1, 10, 100, 1000)
    }
    assert waits[16, 1000] == waits[16, 100] < 1.5 * waits[16, 1]
    # 64 lines in 8 sets of 4 ways: rtl-icache.csv has 3.1 to 3.9 cycles a line and pass.
    assert (waits[64, 1000] - waits[64, 100]) / 900 / 64 == pytest.approx(3.2, abs=0.1)


def test_the_prefetcher_hides_a_refill_behind_compressed_code() -> None:
    body = [ALU] * 80
    others = replace(ICACHE, between_calls_lines=20, call_lines=0)  # refills of the kernel alone
    whole, mixed, compressed = (
        icache_stall_cycles(nest(*body, code_bytes=size), others) for size in (320, 240, 160)
    )
    # Eight instructions a line: its words are there after four of them, the next line after the other four.
    assert whole > mixed > compressed
    assert compressed <= ICACHE.private_refill_stall_cycles
    without = replace(others, fetch_bytes_per_cycle=0)
    assert icache_stall_cycles(nest(*body, code_bytes=160), without) > 5 * compressed


def test_code_the_sizes_skip_leaves_gaps() -> None:
    """Two parts 512 B apart lie in the same sets and put each other out, side by side they do not."""
    body = (Loop(100, (ALU,) * 80, hardware=True),)
    near = icache_stall_cycles(nest(*body, code_bytes=1600, layout=CodeLayout(((0, 80),), 400)), ICACHE)
    runs = tuple((128 * part, 16) for part in range(5))
    apart = nest(*body, code_bytes=4 * 528, layout=CodeLayout(runs, 528))
    assert icache_stall_cycles(apart, ICACHE) > 10 * near


def test_a_kernel_knows_where_in_its_text_its_instructions_lie() -> None:
    expander = Expander(parse_nest("A*2 if (N > 4) { A*10 } for i in 0..N branch { A B }"), "test")
    short, long, longer = (expander.core_work({"N": size}, {}, 56).layout for size in (3, 5, 6))
    assert short is not None
    assert long is not None
    assert (short.instructions, short.runs) == (14, ((0, 2), (12, 2)))
    assert long.runs == ((0, 2), (2, 10), (12, 2))
    assert longer is long


def test_nothing_is_charged_where_nothing_runs_between_two_calls() -> None:
    gvsoc = load_soc("pulp-cluster-rtl", "gvsoc").icache
    assert gvsoc.between_calls_lines == gvsoc.call_lines == 0
    assert icache_stall_cycles(straight(16), gvsoc) == 0

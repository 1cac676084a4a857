# SPDX-License-Identifier: Apache-2.0
"""Windows against whole kernels, and properties of the pricing of kernels."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window_plan import BUDGET_INSTRUCTIONS, START_OFFSETS_CYCLES, PricingWindow
from arch.spec.isa import TeamWork
from arch.spec.timing import SocTiming
from configs.values import replace
from shared.arch_pricing_cases import (
    DYNAMIC_FPU,
    GVSOC_CORE,
    PRIVATE_FPU,
    STATIC_FPU,
    matmul_team,
    nests,
    soc,
)
from shared.tiers import sweep_nine_of_ten
from shared.whole_kernel import WHOLE_KERNEL
from trainlib.kernels.catalogue import matmul_work

KERNELS = ["mm", "mm_M", "mm_u2", "mm_unroll_2x2", "mm_unroll_2x4", "mm_unroll_4x1", "mm_M_unroll_4x4"]
FPUS = {"private": PRIVATE_FPU, "static": STATIC_FPU, "dynamic": DYNAMIC_FPU}
LOCK_STEP = [(128, 256, 192), (256, 192, 128), (192, 128, 256), (192, 192, 192), (160, 224, 192)]
"""Rows and columns are whole turns of the 16 banks, so all cores meet at one bank."""


DEFAULT_WINDOW = PricingWindow(starts=START_OFFSETS_CYCLES[:1])
"""The default from one start, as the whole kernel is priced."""


def window_cases() -> list[tuple[str, str, int, int, int, bool]]:
    """54 cases too long for the default window: 30 in lock step, 24 of any size."""
    choose = random.Random(22)
    sizes = [LOCK_STEP[index % len(LOCK_STEP)] for index in range(30)]
    sizes += [tuple(choose.randint(170, 210) for _ in range(3)) for _ in range(24)]  # type: ignore[misc]
    return [
        (choose.choice(KERNELS), list(FPUS)[index % 3], n, k, m, choose.random() < 0.5)
        for index, (n, k, m) in enumerate(sizes)
    ]


def matmul(name: str, n: int, k: int, m: int, trans_b: bool, cores: int = 8) -> TeamWork:
    return matmul_work(name, "clang-xpulp", n, k, m, trans_b, cores, 0, 4 * n * k, 4 * (n * k + k * m))


@pytest.mark.parametrize("case", sweep_nine_of_ten(window_cases(), lambda case: case[1]))
def test_windows_of_long_kernels_are_within_two_per_cent_of_the_whole(case):
    """Makespan of the default window against executing everything, all from the same start."""
    name, fpu, n, k, m, trans_b = case
    timing = soc(conflicts=True, fpu=FPUS[fpu])
    work = matmul(name, n, k, m, trans_b)
    window, whole = (TeamCostModel(timing, how).price(work) for how in (DEFAULT_WINDOW, WHOLE_KERNEL))
    assert [core.instructions for core in window.cores] == [core.instructions for core in whole.cores]
    assert abs(window.cycles / whole.cycles - 1) <= 0.02


def test_the_kernels_are_longer_than_a_window():
    """Else nothing is compared."""
    works = [matmul(name, n, k, m, trans_b) for name, _, n, k, m, trans_b in window_cases()]
    issues = [sum(work.issued) for work in works]
    assert sum(count > BUDGET_INSTRUCTIONS for count in issues) >= 50


def test_the_known_window_beyond_two_per_cent():
    """Of the 108 cases of seeds 21 and 22 one is off: it changes its pattern of conflicts behind the window.

    Listed so that nobody takes the bound for proven; the test fails when the case gets better or worse.
    """
    timing = soc(conflicts=True, fpu=STATIC_FPU)
    work = matmul("mm_M", 160, 224, 192, trans_b=False)
    window, whole = (TeamCostModel(timing, how).price(work).cycles for how in (DEFAULT_WINDOW, WHOLE_KERNEL))
    assert round(100 * (window / whole - 1), 1) == -6.8


def slower(timing: SocTiming, field: str, cycles: int) -> SocTiming:
    """`timing` with one latency of the core or the FPU longer."""
    part = "core" if hasattr(timing.core, field) else "fpu"
    block = getattr(timing, part)
    return replace(timing, **{part: replace(block, **{field: getattr(block, field) + cycles})})


LATENCIES = [
    *GVSOC_CORE.__struct_fields__,
    *("fma_cycles", "latency_cycles", "interval_cycles", "divsqrt_latency_cycles", "divsqrt_interval_cycles"),
]


@settings(max_examples=150, derandomize=True, deadline=None)
@given(nests(), st.sampled_from(LATENCIES), st.integers(1, 4))
def test_one_core_is_never_faster_with_more_latency(work, field, cycles):
    team = TeamWork("random", (work,))
    before = TeamCostModel(soc()).price(team).cycles
    assert TeamCostModel(slower(soc(), field, cycles)).price(team).cycles >= before


def test_more_banks_or_fpus_are_not_slower_on_the_mean_and_anomalies_are_few(record_property):
    """Arbitration has anomalies: removing a conflict can bring two other requests together later."""
    choose = random.Random(11)
    works = [
        matmul_team(choose.randint(1, 4), choose.randint(3, 24), 2 * choose.randint(2, 12)) for _ in range(60)
    ]

    def cycles(**changes: int) -> list[int]:
        timing = soc(conflicts=True, fpu=replace(DYNAMIC_FPU, count=changes.get("fpus", 4)))
        timing = replace(timing, l1=replace(timing.l1, banks=changes.get("banks", 16)))
        return [TeamCostModel(timing).price(work).cycles for work in works]

    base = cycles()
    for name, better in (("banks", cycles(banks=32)), ("fpus", cycles(fpus=8))):
        ratios = [after / before for after, before in zip(better, base, strict=True)]
        anomalies = [ratio for ratio in ratios if ratio > 1]
        worst = max(anomalies, default=1.0)
        record_property(name, f"{len(anomalies)} of {len(works)} slower, worst by {100 * (worst - 1):.1f} %")
        assert sum(ratios) / len(ratios) <= 1
        assert len(anomalies) <= len(works) // 4
        assert worst < 1.1

# SPDX-License-Identifier: Apache-2.0
"""Speed of pricing a kernel: how many the AutoTuner can ask for in a second, from its shape to its cycles.

Shapes are those of tiles that fit L1 twice (double buffering): N, K, M from 4 to 48, all kernels, both
layouts of B, operands one after another. Imports are done, the window programs of the kernels are there, and
no answer is: every query is another shape.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.soc_config import load_soc, with_values
from arch.spec.timing import SocTiming
from trainlib.kernels.catalogue import kernel_names, matmul_work

pytestmark = pytest.mark.bench

CODEGEN = "clang-xpulp"
Query = tuple[str, int, int, int, bool]

MACHINES = {
    "rtl, 4-dynamic, conflicts": ("rtl", "4-dynamic", True),
    "rtl, private, conflicts": ("rtl", "private", True),
    "gvsoc, 4-static, conflicts": ("gvsoc", "4-static", True),
    "gvsoc, 4-static": ("gvsoc", "4-static", False),
    "gvsoc, private": ("gvsoc", "private", False),
}


def queries(count: int, seed: int) -> list[Query]:
    """Distinct random shapes over all kernels."""
    choose = random.Random(seed)
    names = kernel_names(CODEGEN)
    found: dict[Query, None] = {}
    while len(found) < count:
        n, k, m = (choose.randint(4, 48) for _ in range(3))
        found[choose.choice(names), n, k, m, choose.random() < 0.5] = None
    return list(found)


def ask(cost_model: TeamCostModel, asked: list[Query], cores: int) -> None:
    for name, n, k, m, trans_b in asked:
        addresses = (0, 4 * n * k, 4 * (n * k + k * m))
        cost_model.price(matmul_work(name, CODEGEN, n, k, m, trans_b, cores, *addresses))


def machine(profile: str, fpus: str, conflicts: bool) -> SocTiming:
    return with_values(load_soc("pulp-open", profile), {"l1.bank_conflicts": conflicts, "fpu": fpus})


@pytest.mark.parametrize("name", list(MACHINES))
def test_new_shapes(benchmark: Any, report: Callable[[str], None], name: str) -> None:
    timing = machine(*MACHINES[name])
    cost_model = TeamCostModel(timing)
    ask(cost_model, queries(400, seed=1), timing.cores)
    rounds, each = 5, 40
    batches = iter([queries(each * rounds, seed=2)[i::rounds] for i in range(rounds)])
    benchmark.pedantic(
        lambda batch: ask(cost_model, batch, timing.cores),
        setup=lambda: ((next(batches),), {}),
        rounds=rounds,
    )
    rate = each / benchmark.stats.stats.median
    report(f"new shapes, 8 cores, {name:28s} {rate:12,.0f} kernels/s")


def test_repeated_shapes(benchmark: Any, report: Callable[[str], None]) -> None:
    timing = machine("rtl", "4-dynamic", True)
    cost_model = TeamCostModel(timing)
    asked = queries(50, seed=3)
    ask(cost_model, asked, timing.cores)
    benchmark.pedantic(lambda: ask(cost_model, asked, timing.cores), rounds=20, warmup_rounds=1)
    report(f"repeated shapes, 8 cores {'':34s} {50 / benchmark.stats.stats.median:12,.0f} kernels/s")

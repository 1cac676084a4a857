# SPDX-License-Identifier: Apache-2.0
"""Works given by their numbers: the same price as the loop nests they stand for."""

from __future__ import annotations

import pytest

from arch.pricing.contention import ClusterModel
from arch.pricing.cost_model import Traffic
from arch.pricing.nest_reader import NestReader
from arch.pricing.pipeline import price_core
from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window_plan import PricingWindow
from arch.spec.isa import TeamWork
from arch.spec.soc_config import load_soc
from trainlib.kernels.catalogue import matmul_work
from trainlib.kernels.expand import Expander
from trainlib.kernels.nest import parse_nest

WORKS = [
    ("mm", (7, 5, 9), 8, (0, 4), None),
    ("mm_unroll_2x4", (17, 6, 10), 8, (4, 20), None),
    ("mm_unroll_4x2", (9, 3, 5), 4, (0, 128), None),  # falls back
    ("mm_M_unroll_1x4", (4, 7, 33), 8, (2, 6), 2),
    ("mm", (5, 6, 7), 3, (1, 3), 1),
]
"""Kernel, sizes, cores, two addresses, bytes of an element."""


def work_of(kernel: str, sizes: tuple[int, int, int], cores: int, at: tuple[int, int], size: int | None):
    first, second = at
    return matmul_work(
        kernel, "clang-xpulp", *sizes, True, cores, first, second, first + 4000, element_bytes=size
    )


@pytest.mark.parametrize("profile", ["rtl", "gvsoc"])
@pytest.mark.parametrize("call", WORKS)
def test_a_team_costs_by_its_numbers_what_its_bodies_cost(profile, call):
    timing, work = load_soc("pulp-open", profile), work_of(*call)
    bodies = TeamWork(work.kernel, work.cores)
    for traffic in (Traffic.NONE, Traffic.BOTH):
        by_numbers, by_bodies = (TeamCostModel(timing).price(team, traffic) for team in (work, bodies))
        assert (by_numbers, by_numbers.dma) == (by_bodies, by_bodies.dma)
    assert TeamCostModel(timing).least_cycles(work) == TeamCostModel(timing).least_cycles(bodies)


def test_a_nest_that_accesses_only_its_stack_costs_what_its_bodies_cost():
    """Its numbers are none: words of the stack lie where they lie."""
    expander = Expander(parse_nest("L*3 for i in 0..N jump { L L A S B! }"), "here")
    form = expander.form({"N": 14}, expander.placed({}), 100)
    bodies = TeamWork("stack", (expander.work(form),) * 8)
    numbers = _ByNumbers("stack", bodies.cores)
    object.__setattr__(numbers, "numbers", form)
    by_numbers, by_bodies = (
        TeamCostModel(load_soc("pulp-open", "rtl")).price(team) for team in (numbers, bodies)
    )
    assert by_numbers == by_bodies


class _ByNumbers(TeamWork):
    def form(self, member):
        return self.numbers


@pytest.mark.parametrize("profile", ["rtl", "gvsoc"])
@pytest.mark.parametrize("call", WORKS)
def test_what_a_core_takes_alone_in_closed_form_is_what_the_pipeline_takes(profile, call):
    timing = load_soc("pulp-open", profile)
    reader = NestReader(timing.core, timing.fpu, timing.l1.word_bytes, timing.l2)
    nest = reader.read(work_of(*call).core(0))
    closed = ClusterModel(timing, PricingWindow()).alone(nest)
    assert (closed is None) == nest.shape.crosses
    if closed is not None:
        assert closed == price_core(nest, timing.core, timing.fpu, timing.icache, timing.l1.word_bytes)

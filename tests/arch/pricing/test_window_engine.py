# SPDX-License-Identifier: Apache-2.0
"""The two engines of a window: the same functions as plain Python and compiled, with equal results."""

from __future__ import annotations

import dataclasses
import inspect
import sys

import numba
import pytest

from arch.pricing import window_engine
from arch.pricing.cost_model import Traffic
from arch.pricing.team_cost_model import TeamCostModel
from arch.pricing.window import PLAIN, EngineChoice, compiled
from arch.pricing.window_plan import PricingWindow
from shared.arch_pricing_cases import DYNAMIC_FPU, matmul_team, soc
from shared.whole_kernel import WHOLE_KERNEL

ENGINES = (EngineChoice(1 << 60), EngineChoice(0))
"""Plain Python whatever it takes, and compiled from the first item on."""


@pytest.mark.parametrize("arbitration", ["rotating", "round_robin"])
def test_plain_and_compiled_engine_give_the_same_extrapolated_numbers(arbitration):
    """Marks and multiplied counters included, on a machine with two orders of service and pools."""
    machine = soc(conflicts=True, fpu=dataclasses.replace(DYNAMIC_FPU, latency_cycles=3))
    machine = dataclasses.replace(machine, l1=dataclasses.replace(machine.l1, arbitration=arbitration))
    work = matmul_team(6, 27, 30)
    plain, fast = (
        TeamCostModel(machine, PricingWindow(3000), engine).price(work, Traffic.BOTH) for engine in ENGINES
    )
    assert (plain, plain.dma) == (fast, fast.dma)
    assert plain != TeamCostModel(machine, WHOLE_KERNEL).price(work, Traffic.BOTH)


def test_a_process_loads_the_compiled_engine_once_it_has_executed_enough():
    choice = EngineChoice(100)
    engines = [choice.take(60), choice.take(60), choice.take(1)]
    assert engines == [PLAIN, compiled(), compiled()]


def test_without_numba_everything_runs_in_plain_python(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    compiled.cache_clear()
    try:
        assert EngineChoice(0).take(1) is PLAIN
    finally:
        compiled.cache_clear()


def test_an_install_nobody_may_write_to_compiles_for_the_process(monkeypatch):
    """Numba refuses `cache=True` when it finds no folder to keep its result in."""
    wanted: list[bool] = []

    def njit(*, cache=None, **_):
        if cache is not None:
            wanted.append(cache)
        if cache:
            raise RuntimeError("no locator available")
        return lambda function: function

    work = matmul_team(1, 4, 4)
    expected = TeamCostModel(soc(conflicts=True)).price(work)
    monkeypatch.setattr(numba, "njit", njit)
    monkeypatch.setattr(numba.extending, "intrinsic", lambda _: lambda bits: window_engine.place(int(bits)))
    compiled.cache_clear()
    try:
        uncached = TeamCostModel(soc(conflicts=True), engine=EngineChoice(0)).price(work)
    finally:
        compiled.cache_clear()
    assert wanted == [True, False]
    assert uncached == expected


def test_the_functions_of_the_engine_are_short():
    """One function was 285 lines; parts that Numba inlines need not be."""
    functions = [*window_engine.PARTS, *window_engine.WHOLE, window_engine.price_window]
    assert max(len(inspect.getsource(function).splitlines()) for function in functions) <= 100

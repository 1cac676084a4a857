"""Speed of the event model: simulated cycles and events per second, and the price of an event.

Machines differ and drift, so the figure to quote is the ratio to a bare SimPy timeout timed in the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
import simpy

from pulptrain.session import prepare
from pulptrain.settings import Settings
from scheduler.executor import Executor
from trainlib.training_data import initial_values

TIMEOUTS = 20_000
pytestmark = pytest.mark.bench


def bare_simpy() -> None:
    """`TIMEOUTS` timeouts of one process: the cheapest thing SimPy can do."""
    env = simpy.Environment()

    def process() -> Generator[simpy.Event, Any, None]:
        for _ in range(TIMEOUTS):
            yield env.timeout(1)

    env.process(process())
    env.run()


@pytest.fixture(scope="session")
def bare_seconds() -> list[float]:
    return []


def test_bare_simpy_timeout(benchmark: Any, bare_seconds: list[float], report: Callable[[str], None]) -> None:
    benchmark.pedantic(bare_simpy, rounds=15, warmup_rounds=2)
    seconds = benchmark.stats.stats.median / TIMEOUTS
    bare_seconds.append(seconds)
    report(f"bare SimPy timeout                 {1 / seconds:12,.0f} events/s")


@pytest.mark.parametrize("model", ["digits-cnn", "tutorial-cnn"])
@pytest.mark.parametrize("functional", [False, True], ids=["timing-only", "with-numbers"])
def test_event_model(
    benchmark: Any, bare_seconds: list[float], report: Callable[[str], None], model: str, functional: bool
) -> None:
    prepared = prepare(model, Settings())
    executor = Executor(prepared.schedule, prepared.timing, prepared.pricer, functional=functional)
    if functional:
        graph = prepared.schedule.graph
        executor.load(initial_values(graph, prepared.spec, 0))
    result = executor.simulate()
    benchmark.pedantic(executor.simulate, rounds=15, warmup_rounds=2)
    seconds = benchmark.stats.stats.median
    per_event = seconds / result.events
    name = f"{model} {'with numbers' if functional else 'timing only'}"
    report(
        f"{name:34s} {result.events / seconds:12,.0f} events/s "
        f"{result.cycles / seconds / 1e6:8.2f} M cycles/s {per_event / bare_seconds[0]:6.2f} x bare timeout "
        f"per event ({result.events} events, {result.cycles:,} cycles)"
    )


def test_replayed_iteration(benchmark: Any, report: Callable[[str], None]) -> None:
    prepared = prepare("digits-cnn", Settings())
    executor = Executor(prepared.schedule, prepared.timing, prepared.pricer)
    graph = prepared.schedule.graph
    executor.load(initial_values(graph, prepared.spec, 0))
    executor.simulate()
    benchmark.pedantic(executor.replay, rounds=50, warmup_rounds=3)
    report(f"digits-cnn replayed iteration      {1 / benchmark.stats.stats.median:12,.0f} iterations/s")

# SPDX-License-Identifier: Apache-2.0
"""Speed of the AutoTuner: candidates per second with 1 and 2 workers, and time by number of candidates.

Nothing is in a cache and no kernel is priced when a measurement begins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from arch.spec.soc_config import load_soc
from configs.model_file import load_model
from scheduler.options import ScheduleOptions
from scheduler.search.driver import drive
from scheduler.search.progress import NoMeter
from scheduler.search.workers import Workers, open_workers
from scheduler.tuner import evaluate
from scheduler.tuner.search_space import Question, SpaceRules
from scheduler.tuner.strategies import OpSearch, StrategyOptions
from scheduler.tuner.task import task_of
from trainlib.training.phases import build_training_graph

CUTS = (1, 2, 4)
"""Tilings per op and buffer depth."""
pytestmark = pytest.mark.bench


def questions(cuts: int) -> list[Question]:
    """The convolution steps of tutorial-cnn on PULP-open, im2col as the layer says."""
    graph, timing = build_training_graph(load_model("tutorial-cnn")), load_soc("pulp-open")
    tasks = [task_of(graph, op) for op in graph.ops if op.name in ("conv1.FW", "conv1.WG")]
    return [
        Question(task, timing, ScheduleOptions().codegen, SpaceRules(cuts=cuts, variants=()))
        for task in tasks
    ]


def search(cuts: int, workers: Workers, strategy: str) -> tuple[int, int]:
    """(candidates, evaluated) of a search that finds nothing in a cache."""
    searches = [OpSearch(asked, StrategyOptions(strategy), None, NoMeter()) for asked in questions(cuts)]
    drive([item.steps() for item in searches], workers)
    return sum(len(item.candidates) for item in searches), sum(len(item.evaluations) for item in searches)


@pytest.mark.parametrize("strategy", ["exhaustive", "pruned"])
@pytest.mark.parametrize("cuts", CUTS)
def test_time_by_number_of_candidates(
    benchmark: Any, report: Callable[[str], None], cuts: int, strategy: str
) -> None:
    found = (0, 0)

    def once() -> None:
        nonlocal found
        evaluate._machines.of.cache_clear()  # nothing is priced yet
        with open_workers(1) as workers:
            found = search(cuts, workers, strategy)

    benchmark.pedantic(once, rounds=3, warmup_rounds=1)
    seconds, (candidates, evaluated) = benchmark.stats.stats.median, found
    report(
        f"tune, 1 worker, {strategy:10s} {candidates:5d} candidates, {evaluated:5d} evaluated "
        f"{seconds:7.2f} s {candidates / seconds:8,.0f} candidates/s "
        f"{evaluated / seconds:8,.0f} evaluated/s"
    )


@pytest.mark.parametrize("count", [1, 2])
def test_candidates_per_second(benchmark: Any, report: Callable[[str], None], count: int) -> None:
    """Worker processes have been started, as they are for all but the first moment of a search."""
    found = (0, 0)
    pools = ExitStack()

    def fresh() -> tuple[tuple[Workers], dict[str, Any]]:
        pools.close()
        evaluate._machines.of.cache_clear()
        workers = pools.enter_context(open_workers(count))
        asked = questions(1)[0]
        list(workers.executor.map(evaluate.evaluate_candidates, [asked] * 4 * count, [[]] * 4 * count))
        return (workers,), {}

    def once(workers: Workers) -> None:
        nonlocal found
        found = search(CUTS[-1], workers, "exhaustive")

    with pools:
        benchmark.pedantic(once, setup=fresh, rounds=3)
    seconds = benchmark.stats.stats.median
    report(
        f"tune, {count} worker{'s' * (count > 1)} {found[1]:5d} evaluated {seconds:7.2f} s "
        f"{found[1] / seconds:8,.0f} candidates/s"
    )

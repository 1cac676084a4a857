# SPDX-License-Identifier: Apache-2.0
"""Speed of the event model (simulated cycles and events per second, the price of an event) and of `run`.

Machines differ and drift, so the figure to quote is the ratio to a bare SimPy timeout timed in the same run.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import simpy

from arch.blocks.soc import Soc
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.program import Compute, Effect, Place, Program
from arch.spec.soc_config import load_soc
from pulptrain.inputs.settings import Settings
from pulptrain.running.session import Prepared, prepare
from scheduler.executor import Executor
from traces.events import Work
from traces.recorder import Recorder
from trainlib.ir.steps import Array
from trainlib.kernels.catalogue import matmul_work
from trainlib.training.phases import initial_weights
from trainlib.training.training_data import sample_stream

TIMEOUTS = 20_000
KERNELS = 2_000
pytestmark = pytest.mark.bench


def first_values(prepared: Prepared) -> dict[str, Array]:
    """Values of the first iteration."""
    graph = prepared.schedule.graph
    return {**next(sample_stream(graph, prepared.spec, 0)), **initial_weights(graph, 0)}


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
    executor = Executor(prepared.schedule, prepared.timing, prepared.cost_model, functional=functional)
    if functional:
        executor.load(first_values(prepared))
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
    executor = Executor(prepared.schedule, prepared.timing, prepared.cost_model)
    executor.load(first_values(prepared))
    executor.simulate()
    benchmark.pedantic(executor.replay, rounds=50, warmup_rounds=3)
    report(f"digits-cnn replayed iteration      {1 / benchmark.stats.stats.median:12,.0f} iterations/s")


def test_resnet8_event_loop(benchmark: Any, bare_seconds: list[float], report: Callable[[str], None]) -> None:
    """Double buffering, timing only, traced, kernel costs memoised by the run before."""
    prepared = prepare("resnet8", Settings(l2="4MiB"))

    def loop() -> tuple[int, int]:
        executor = Executor(
            prepared.schedule, prepared.timing, prepared.cost_model, Recorder(), functional=False
        )
        result = executor.simulate()
        return result.cycles, result.events

    cycles, events = loop()
    benchmark.pedantic(loop, rounds=7, warmup_rounds=1)
    seconds = benchmark.stats.stats.median
    report(
        f"resnet8 event loop, traced         {events / seconds:12,.0f} events/s "
        f"{cycles / seconds / 1e6:8.2f} M cycles/s {seconds / events / bare_seconds[0]:6.2f} x bare timeout "
        f"per event ({events} events, {cycles:,} cycles)"
    )


def kernels() -> tuple[Soc, Soc, Program]:
    """`KERNELS` calls of one matmul on eight cores, and the SoCs that run them, the first traced."""
    timing = load_soc("pulp-open")
    team = matmul_work("mm_unroll_2x4", "clang-xpulp", 16, 16, 16, False, 8, 0, 1024, 2048)
    a, b, c = (Place("l1", address, (16, 16)) for address in (0, 1024, 2048))
    effect = Effect((a, b), (c,), lambda arrays: [arrays[0] @ arrays[1]])
    actions = [
        Compute(number, work=Work("op", "FW", number), team=team, effect=effect) for number in range(KERNELS)
    ]
    cost_model = TeamCostModel(timing)
    traced, alone = (Soc(timing, cost_model, tracer) for tracer in (Recorder(), None))
    return traced, alone, Program("kernels", tuple(actions))


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "timing-only"])
def test_kernel_of_eight_cores(
    benchmark: Any, bare_seconds: list[float], report: Callable[[str], None], traced: bool
) -> None:
    """Events and records of a kernel at a known price, beside which no transfer runs."""
    *socs, program = kernels()
    soc = socs[0 if traced else 1]
    benchmark.pedantic(lambda: soc.run(program, effects=False), rounds=15, warmup_rounds=2)
    seconds = benchmark.stats.stats.median / KERNELS
    report(
        f"kernel of eight cores, {'traced' if traced else 'timing only':11s} "
        f"{seconds * 1e6:8.1f} us {seconds / bare_seconds[0]:6.2f} x bare timeout"
    )


@pytest.mark.parametrize("numbers", [False, True], ids=["timing-only", "with-numbers"])
def test_whole_command_for_resnet8(tmp_path: Path, report: Callable[[str], None], numbers: bool) -> None:
    """Wall-clock time of the command, Python's start included: without and with what the first run kept."""
    command = [sys.executable, "-m", "pulptrain", "run", "resnet8", "--l2", "4MiB", "--quiet"]
    command += ["--cache", str(tmp_path / "kept.sqlite"), *([] if numbers else ["--no-functional"])]
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        subprocess.run(command, check=True)
        seconds.append(time.perf_counter() - started)
    what = "with numbers" if numbers else "timing only"
    report(
        f"pulptrain run resnet8, {what:13s} cold {seconds[0]:6.2f} s, second run {min(seconds[1:]):6.2f} s"
    )

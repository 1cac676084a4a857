# SPDX-License-Identifier: Apache-2.0
"""The event unit: mutex, software events, barriers and forks, against micro.csv where it measured them."""

from __future__ import annotations

import csv
import gzip
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.blocks.soc import Soc
from arch.spec.soc_config import load_soc
from arch.spec.timing import EventUnitTiming
from arch.systemc.module import Body, Thread
from configs.errors import PulptrainError
from scheduler.validation.rows import micro_sync
from shared.paths import MEASURED
from shared.soc_fixture import EVENT_UNIT, FixedCostModel, Recorder, Script, team

MICRO = MEASURED / "micro.csv.gz"
GVSOC = load_soc("pulp-open", "gvsoc")
with gzip.open(MICRO, "rt", encoding="utf-8") as _file:
    ROWS = [
        row
        for row in csv.DictReader(_file)
        if row["group"] in ("sync", "offload") and row["bank_conflicts"] == "0" and row["fpus"] == "4-static"
    ]


def measured(name: str, cores: int) -> float:
    """`cycles_per_op` of a row. Rows on one core, and on two for code only workers run, had cold caches."""
    (cycles,) = {
        float(row["cycles_per_op"])
        for row in ROWS
        if row["name"].startswith(name) and int(row["cores"]) == cores
    }
    return cycles


def close(cycles: float) -> Any:
    """5 % or half a cycle, whichever is larger."""
    return pytest.approx(cycles, rel=0.05, abs=0.5)


class Bench(micro_sync.Bench):
    """`order` has the cores as they got the mutex."""

    def __init__(self, timing: EventUnitTiming = GVSOC.event_unit) -> None:
        super().__init__(timing)
        self.order: list[int] = []

    def locks_and_unlocks(self, number: int, hold_cycles: int = 0) -> Body:
        mutex = self.unit.mutex
        yield from mutex.lock(number, Thread(f"core{number}"))
        self.order.append(number)
        if hold_cycles:
            yield self.env.timeout(hold_cycles)
        yield from mutex.unlock(number)


@pytest.mark.parametrize("cores", range(2, 9))
def test_a_contended_mutex_takes_the_measured_cycles(cores: int) -> None:
    bench = Bench()
    for number in range(cores):
        bench.core(number, bench.locks_and_unlocks(number))
    bench.env.run()
    assert min(bench.ended.values()) == close(measured("mutex_lock_unlock_min", cores))
    if cores > 2:
        assert max(bench.ended.values()) == close(measured("mutex_lock_unlock_max", cores))


def test_the_lowest_waiting_core_gets_the_mutex_whoever_came_first() -> None:
    bench = Bench()
    for number, start in ((5, 0), (7, 1), (6, 2), (1, 3)):
        bench.core(number, bench.locks_and_unlocks(number, hold_cycles=20), start)
    bench.env.run()
    assert bench.order == [5, 1, 6, 7]


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=8))
def test_one_core_at_a_time_holds_the_mutex_and_nobody_is_forgotten(cores: list[tuple[int, int]]) -> None:
    bench = Bench(EVENT_UNIT)
    held: list[tuple[int, int]] = []

    def visit(number: int, hold: int) -> Body:
        mutex = bench.unit.mutex
        yield from mutex.lock(number, Thread(f"core{number}"))
        begin = int(bench.env.now)
        yield bench.env.timeout(hold)
        held.append((begin, int(bench.env.now)))
        yield from mutex.unlock(number)

    for number, (start, hold) in enumerate(cores):
        bench.core(number, visit(number, hold), start)
    bench.env.run()
    assert len(held) == len(cores)
    assert all(one[1] < two[0] for one, two in pairwise(held))


def test_freeing_a_mutex_of_another_core_is_an_error() -> None:
    bench = Bench()
    bench.core(0, bench.unit.mutex.lock(0, Thread("core0")))
    bench.core(1, bench.unit.mutex.unlock(1), start_cycles=5)
    with pytest.raises(PulptrainError, match="core 1 frees a mutex that it does not hold"):
        bench.env.run()


@pytest.mark.parametrize("cores", range(2, 9))
def test_barriers_take_the_measured_cycles(cores: int) -> None:
    rounds = 10
    bench = Bench()
    barriers = [bench.unit.barrier(cores) for _ in range(rounds)]

    def body() -> Body:
        for barrier in barriers:
            yield barrier.arrive()

    for number in range(cores):
        bench.core(number, body())
    bench.env.run()
    (cycles,) = set(bench.ended.values())
    assert cycles / rounds == close(measured("barrier_back_to_back_per_barrier", cores))
    wake = cycles / rounds + micro_sync.STAMP_CYCLES
    assert wake == close(measured("barrier_last_arrival_to_resume_max", cores))


@pytest.mark.parametrize("cores", range(3, 9))
def test_the_team_starts_when_it_was_seen_to_start(cores: int) -> None:
    tracer = Recorder()
    script = Script()
    script.compute(team("nothing much", cores))
    Soc(GVSOC, FixedCostModel({"nothing much": 100}), tracer).run(script.program())
    called = tracer.track("soc.cluster.core0")[0][1]
    (master,) = tracer.compute("soc.cluster.core0")
    (worker,) = tracer.compute(f"soc.cluster.core{cores - 1}")
    assert master.start_cycles - called == close(measured("fork_core0_entry_delay", cores))
    assert worker.start_cycles - called == close(measured("fork_slave_entry_delay_max", cores))
    if cores != 4:  # 5 cycles there, and 7 for every other team
        assert GVSOC.event_unit.fork_push_cycles == close(measured("team_config", cores))


def test_the_controller_hears_of_the_end_as_soon_as_measured() -> None:
    # Four warm runs; in some the store to L2 and the polling take two cycles longer, in each other's way.
    parts = [
        min(float(row["cycles_per_op"]) for row in ROWS if row["name"] == name)
        for name in ("core0_L2flag_write_cost", "core0_L2flag_write_to_fc_poll_seen")
    ]
    assert GVSOC.fc.completion_cycles == close(sum(parts))

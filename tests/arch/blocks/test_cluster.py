# SPDX-License-Identifier: Apache-2.0
"""Programs on the cluster with exact event lists: one tile, many tiles, fork, join, offload, DMA traffic."""

from __future__ import annotations

import pytest

from arch.blocks.event_unit import Barrier, EventUnit, TeamJob
from arch.blocks.soc import Soc
from arch.spec.isa import CoreWork, TeamWork
from arch.spec.program import Compute, DmaStart, DmaWait, Place, Program, Release
from arch.spec.timing import ClockTiming
from arch.systemc.clock import Clock
from arch.systemc.module import Module, Thread
from configs.errors import ConfigError, DeadlockError, InputError, PulptrainError
from shared.soc_fixture import (
    BARRIER,
    BEAT,
    CHECK,
    COMMAND,
    COMPLETION,
    DONE,
    EVENT_UNIT,
    JOIN,
    MASTER,
    OFFLOAD,
    PROGRAM,
    PUSH,
    SLEEP_MIN,
    WAKE,
    WORKER,
    FixedCostModel,
    Script,
    read,
    run,
    soc_timing,
    team,
    write,
)
from traces.events import COMPUTE, TRANSFER, Work

FORK_TEAM = PUSH + WORKER + BARRIER + JOIN
FORK_ALONE = MASTER + BARRIER + JOIN
"""What a fork costs the master on top of the kernel: with workers, and with a team of one."""


@pytest.mark.smoke
def test_one_tile_single_buffered() -> None:
    script = Script()
    script.wait(script.start(read(0, 0, 1024)))
    script.compute(team("mm", 2))
    script.wait(script.start(write(1024, 4096, 512)))
    cycles, tracer, _ = run(script.program(), FixedCostModel({"mm": 400}), soc_timing(cores=2))

    pushed = OFFLOAD + PROGRAM
    there = pushed + COMMAND + BEAT - 1 + 128
    forked = there + WAKE
    joined = forked + PUSH + WORKER + 400 + BARRIER
    stored = joined + JOIN + PROGRAM
    written = stored + COMMAND + BEAT - 1 + 64 + 1  # two bursts, one gap
    ended = written + WAKE
    assert tracer.track("soc.cluster.core0") == [
        (0, OFFLOAD, "offload"),
        (OFFLOAD, pushed, "dma_program"),
        (pushed, forked, "dma_wait"),
        (forked, forked + MASTER, "fork"),
        (forked + MASTER, forked + MASTER + 400, COMPUTE),
        (forked + MASTER + 400, joined, "barrier"),
        (joined, joined + JOIN, "fork"),
        (joined + JOIN, stored, "dma_program"),
        (stored, ended, "dma_wait"),
        (ended, ended + COMPLETION, "offload"),
    ]
    assert tracer.track("soc.cluster.core1") == [
        (0, OFFLOAD, "offload"),
        (OFFLOAD, forked + PUSH, "idle"),
        (forked + PUSH, forked + PUSH + WORKER, "fork"),
        (forked + PUSH + WORKER, joined - BARRIER, COMPUTE),
        (joined - BARRIER, joined, "barrier"),
        (joined, ended, "idle"),
        (ended, ended + COMPLETION, "offload"),
    ]
    assert tracer.track("soc.cluster.dma.in") == [(pushed + COMMAND, there, TRANSFER)]
    assert tracer.track("soc.cluster.dma.out") == [(stored + COMMAND, written, TRANSFER)]
    assert tracer.track("soc.fc") == [
        (0, OFFLOAD, "offload"),
        (OFFLOAD, ended, "idle"),
        (ended, ended + COMPLETION, "offload"),
    ]
    assert cycles == ended + COMPLETION


def test_address_code_before_a_transfer_is_time_to_program_it() -> None:
    start = DmaStart(0, (), Work("op"), (read(0, 0, 64),), code_cycles=25)
    _, tracer, _ = run(Program("test", (start, DmaWait(1, transfer=0))))
    assert (OFFLOAD, OFFLOAD + 25 + PROGRAM, "dma_program") in tracer.track("soc.cluster.core0")


def test_code_before_a_kernel_is_time_of_core_0() -> None:
    kernel = Compute(0, (), Work("op"), team("mm", 2), code_cycles=25)
    _, tracer, _ = run(Program("test", (kernel,)), FixedCostModel({"mm": 400}), soc_timing(cores=2))
    forked = OFFLOAD + 25
    assert tracer.track("soc.cluster.core0")[1:3] == [
        (OFFLOAD, forked, "dma_program"),
        (forked, forked + MASTER, "fork"),
    ]
    assert (OFFLOAD, forked + PUSH, "idle") in tracer.track("soc.cluster.core1")


def tile_loop(tiles: int, size_bytes: int, depth: int) -> Script:
    """Per tile: load the tile `depth` - 1 ahead, wait for this one, compute; loads only, one core."""
    script = Script()
    buffers = [1 << 15, 0]
    loads = {}

    def load(tile: int) -> None:
        loads[tile] = script.start(read(buffers[tile % 2], size_bytes * tile, size_bytes), tile=tile)

    for tile in range(depth - 1):
        load(tile)
    for tile in range(tiles):
        if tile + depth - 1 < tiles:
            load(tile + depth - 1)
        script.wait(loads[tile])
        script.compute(team("mm", 1), tile=tile)
    return script


def test_tiles_single_buffered_add_up() -> None:
    tiles, kernel, transfer = 6, 700, 4096 // 8
    cycles, _, _ = run(tile_loop(tiles, 4096, 1).program(), FixedCostModel({"mm": kernel}))
    tile = PROGRAM + COMMAND + BEAT - 1 + transfer + WAKE + FORK_ALONE + kernel
    assert cycles == OFFLOAD + tiles * tile + COMPLETION


@pytest.mark.parametrize("kernel", [10, 100, 300, 2000, 5000])
@pytest.mark.parametrize("tiles", [2, 3, 9])
def test_tiles_double_buffered_are_fill_plus_the_larger_per_tile_plus_drain(kernel: int, tiles: int) -> None:
    transfer = 4096 // 8
    cycles, _, _ = run(tile_loop(tiles, 4096, 2).program(), FixedCostModel({"mm": kernel}))
    # The load of tile 1 is programmed behind that of tile 0, and hides in the transfer of tile 0.
    first_there = OFFLOAD + PROGRAM + COMMAND + BEAT - 1 + transfer
    fill = first_there + WAKE
    compute = kernel + FORK_ALONE
    # A tile's turn of the master: compute, program the next load, look and find this one there already.
    turn = compute + PROGRAM + DONE
    if WAKE + compute + PROGRAM + CHECK >= transfer:
        # Compute-bound. The last tile is not followed by a load: it is only looked for.
        assert cycles == fill + (tiles - 1) * turn - PROGRAM + compute + COMPLETION
    else:
        # Transfer-bound: the engine is never idle, and the last tile is computed when its bytes are there.
        assert cycles == first_there + (tiles - 1) * transfer + WAKE + compute + COMPLETION


def test_double_buffering_is_never_slower() -> None:
    for kernel in (10, 200, 400, 500, 600, 2000):
        cost_model = FixedCostModel({"mm": kernel})
        single, double = (run(tile_loop(8, 4096, depth).program(), cost_model)[0] for depth in (1, 2))
        assert double < single


def test_an_empty_wait_sleeps_at_least_as_long_as_its_code_takes() -> None:
    script = Script()
    script.wait(script.start(read(0, 0, 64)))  # ends between the status read and the sleep
    _, tracer, _ = run(script.program())
    assert tracer.track("soc.cluster.core0")[2] == (
        OFFLOAD + PROGRAM,
        OFFLOAD + PROGRAM + SLEEP_MIN,
        "dma_wait",
    )


def test_cores_that_end_early_wait_at_the_barrier() -> None:
    script = Script()
    script.compute(team("mm", 8))
    cycles, tracer, _ = run(script.program(), FixedCostModel({"mm": 400}, skew=30))
    # Worker 1 is the last: it starts 9 cycles after the master and has 30 cycles less to do than he.
    ends = {0: OFFLOAD + MASTER + 400}
    ends |= {core: OFFLOAD + PUSH + WORKER + 400 - 30 * core for core in range(1, 8)}
    released = max(ends.values()) + BARRIER
    for core, end in ends.items():
        track = tracer.track(f"soc.cluster.core{core}")
        assert (end, released, "barrier") in track
        assert [entry[1] for entry in track if entry[2] == COMPUTE] == [end]
    assert cycles == released + JOIN + COMPLETION


def test_fork_of_one_core_needs_no_worker() -> None:
    script = Script()
    script.compute(team("mm", 1))
    cycles, tracer, _ = run(script.program(), FixedCostModel({"mm": 400}))
    assert cycles == OFFLOAD + FORK_ALONE + 400 + COMPLETION
    assert tracer.track("soc.cluster.core1") == [
        (0, OFFLOAD, "offload"),
        (OFFLOAD, cycles - COMPLETION, "idle"),
        (cycles - COMPLETION, cycles, "offload"),
    ]


def test_without_fork_the_master_pays_the_kernel_only() -> None:
    script = Script()
    script.compute(team("mm", 1), fork=False)
    cycles, _, _ = run(script.program(), FixedCostModel({"mm": 400}))
    assert cycles == OFFLOAD + 400 + COMPLETION


def test_a_team_can_leave_cores_out_even_the_master() -> None:
    script = Script()
    script.compute(TeamWork("mm", (None, None, CoreWork(()), CoreWork(()))))
    cycles, tracer, _ = run(script.program(), FixedCostModel({"mm": 400}))
    assert cycles == OFFLOAD + FORK_TEAM + 400 + COMPLETION
    busy = [core for core in range(8) if tracer.compute(f"soc.cluster.core{core}")]
    assert busy == [2, 3]


def test_offload_of_an_empty_program() -> None:
    cycles, tracer, _ = run(Script().program())
    assert cycles == OFFLOAD + COMPLETION
    assert tracer.track("soc.cluster.core3") == [
        (0, OFFLOAD, "offload"),
        (OFFLOAD, cycles, "offload"),
    ]


def test_the_slower_soc_clock_stretches_its_own_cycles_only() -> None:
    timing = soc_timing(clock=ClockTiming(150_000_000, 100_000_000, 50_000_000))
    assert run(Script().program(), timing=timing)[0] == 150 + 45


def test_a_kernel_advances_at_the_rate_of_the_traffic_it_meets() -> None:
    # Twice as slow while the DMA reads: a transfer of 512 cycles that lies wholly inside the kernel leaves
    # 256 cycles of its work undone.
    script = Script()
    load = script.start(read(0, 0, 4096))
    script.compute(team("mm", 1), fork=False)
    script.wait(load)
    cost_model = FixedCostModel({"mm": 1000}, slowdown=2)
    _, tracer, _ = run(script.program(), cost_model)
    (share,) = tracer.compute("soc.cluster.core0")
    assert share.duration_cycles == 1000 + 256
    assert dict(share.stalls) == {"load_use": 250, "bank_conflict": 256}
    assert share.busy_cycles == share.instructions == 750
    # Without an influence of the traffic the same overlap costs nothing.
    _, tracer, _ = run(script.program(), FixedCostModel({"mm": 1000}))
    assert tracer.compute("soc.cluster.core0")[0].duration_cycles == 1000


def test_a_kernel_shorter_than_the_transfer_runs_at_the_slow_rate_throughout() -> None:
    script = Script()
    load = script.start(read(0, 0, 16384))
    script.wait(script.start(write(32768, 65536, 16384)))
    script.compute(team("mm", 4))
    script.wait(load)
    script.compute(team("mm", 4))
    load = script.start(read(0, 0, 16384))
    script.compute(team("mm", 4))
    script.wait(load)
    _, tracer, _ = run(script.program(), FixedCostModel({"mm": 300}, slowdown=3))
    durations = [share.duration_cycles for share in tracer.compute("soc.cluster.core3")]
    assert durations == [300, 300, 900]


def test_a_missing_dependency_is_a_deadlock_that_says_who_waits_for_what() -> None:
    script = Script()
    script.compute(team("mm", 1), deps=(1,))
    script.compute(team("mm", 1))
    with pytest.raises(DeadlockError) as caught:
        run(script.program(), FixedCostModel({"mm": 10}))
    assert caught.value.time_cycles == OFFLOAD
    assert dict(caught.value.waiting)["soc.cluster.core0"] == (
        "action 1, on which action 0 depends, but which comes later"
    )
    assert "soc.cluster.core0 waits for action 1" in str(caught.value)


def test_waiting_for_a_transfer_nobody_started_is_a_deadlock() -> None:
    script = Script()
    script.wait(1)
    script.start(read(0, 0, 64))
    with pytest.raises(DeadlockError, match="the transfer of action 1, which has not been started"):
        run(script.program())


def test_depending_on_a_transfer_waits_for_its_last_byte() -> None:
    script = Script()
    load = script.start(read(0, 0, 4096))
    script.compute(team("mm", 1), fork=False, deps=(load,))
    _, tracer, _ = run(script.program(), FixedCostModel({"mm": 10}))
    there = OFFLOAD + PROGRAM + COMMAND + BEAT - 1 + 512
    assert (OFFLOAD + PROGRAM, there, "dma_wait") in tracer.track("soc.cluster.core0")
    assert tracer.compute("soc.cluster.core0")[0].start_cycles == there


def test_time_restarts_in_every_run() -> None:
    script = tile_loop(3, 1024, 2)
    soc = Soc(soc_timing(), FixedCostModel({"mm": 100}))
    first, second = soc.run(script.program()), soc.run(script.program())
    assert (first.cycles, first.events) == (second.cycles, second.events)


def test_few_events_per_action() -> None:
    script = tile_loop(50, 4096, 2)
    soc = Soc(soc_timing(), FixedCostModel({"mm": 1000}))
    result = soc.run(script.program())
    assert result.events / len(script.actions) < 6


def test_a_barrier_releases_a_fixed_time_after_the_last_arrival() -> None:
    soc = Soc(soc_timing(), FixedCostModel({}))
    soc.run(Script().program())
    env, log = soc.env, []
    start = env.now
    barrier = Barrier(env, 3, wake_cycles=6)

    def core(delay: int):  # type: ignore[no-untyped-def]
        yield env.timeout(delay)
        yield barrier.arrive()
        log.append((delay, env.now - start))

    for delay in (20, 5, 11):
        env.process(core(delay))
    env.run()
    assert sorted(log) == [(5, 26), (11, 26), (20, 26)]


def test_every_core_of_a_job_takes_it_once_and_in_the_order_of_the_pushes() -> None:
    soc = Soc(soc_timing(), FixedCostModel({}))
    soc.run(Script().program())
    env = soc.env
    root = Module(None, "bench")
    unit = EventUnit(root, "event_unit", EVENT_UNIT)
    root.start(env)
    begin, log = env.now, []

    def worker(core: int, delay: int, thread: Thread):  # type: ignore[no-untyped-def]
        for _ in range(2):
            yield env.timeout(delay)
            job = yield from unit.pop(core, thread)
            log.append((core, job.work.op, env.now - begin))

    for name in ("a", "b"):
        unit.push(TeamJob(Work(op=name), int(env.now), unit.barrier(1)), (1, 2))
    env.process(worker(1, 10, Thread("worker1")))
    env.process(worker(2, 25, Thread("worker2")))
    env.run()
    assert log == [(1, "a", 10), (1, "b", 20), (2, "a", 25), (2, "b", 50)]


@pytest.mark.parametrize(
    ("work", "fork", "message"),
    [
        (team("mm", 9), True, "needs 9 cores"),
        (team("mm", 2), False, r"cannot run on cores \[0, 1\]"),
        (TeamWork("mm", (None, None)), True, r"cannot run on cores \[\]"),
    ],
)
def test_teams_that_do_not_fit_the_cluster_are_refused(work: TeamWork, fork: bool, message: str) -> None:
    script = Script()
    script.compute(work, fork=fork)
    with pytest.raises(InputError, match=message):
        run(script.program(), FixedCostModel({"mm": 10}))


def test_actions_must_be_numbered_in_order() -> None:
    script = Script()
    script.actions.append(Release(3, (), Work(), (Place("l1", 0, (4,)),)))
    with pytest.raises(InputError, match="action 0 of program 'test' has id 3, not its position"):
        run(script.program())


def test_a_port_left_open_fails_elaboration() -> None:
    soc = Soc(soc_timing(), FixedCostModel({}))
    soc.fc.mailbox._target = None
    with pytest.raises(PulptrainError, match=r"not bound: soc\.fc\.mailbox"):
        soc.elaborate()
    with pytest.raises(PulptrainError, match="the port is bound twice"):
        soc.cluster.cores[0].events.bind(soc.cluster.events)


def test_modules_have_hierarchical_names() -> None:
    paths = [module.path for module in Soc(soc_timing(cores=2), FixedCostModel({})).modules()]
    assert {"soc", "soc.l2", "soc.fc", "soc.cluster.core1", "soc.cluster.dma.in"} <= set(paths)
    assert len(paths) == len(set(paths))


def test_clock_conversion_rounds_up_never_down() -> None:
    slow, fast = Clock("periph", 50_000_000), Clock("cluster", 175_000_000)
    assert [slow.cycles_in(n, fast) for n in (0, 1, 2, 3)] == [0, 4, 7, 11]
    assert [fast.cycles_in(n, slow) for n in (1, 3, 4, 7)] == [1, 1, 2, 2]
    assert fast.cycles_in(10**18, fast) == 10**18
    assert fast.seconds(350) == pytest.approx(2e-6)
    with pytest.raises(ConfigError, match="0 Hz"):
        Clock("dead", 0)

# SPDX-License-Identifier: Apache-2.0
"""L3 behind the uDMA: cycles in closed form, one bus for both directions, bytes that really move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.blocks.soc import Soc
from arch.spec.program import Place, UdmaCommand, UdmaStart, UdmaWait
from arch.spec.timing import ClockTiming, SocTiming
from configs.errors import DeadlockError, InputError, RaceError
from configs.values import replace
from shared.soc_fixture import (
    L3_BURST,
    OFFLOAD,
    SETUP,
    UDMA_PROGRAM,
    UDMA_WAKE,
    FixedCostModel,
    Recorder,
    Script,
    read,
    run,
    soc_timing,
    team,
)
from traces.events import TRANSFER, Work


class L3Script(Script):
    """A script that also starts and awaits transfers between L2 and L3."""

    def l3_start(self, *commands: UdmaCommand) -> int:
        return self._add(UdmaStart(len(self.actions), (), Work("op", "FW"), commands))

    def l3_wait(self, transfer: int) -> int:
        return self._add(UdmaWait(len(self.actions), (), Work("op", "FW"), transfer))


def load(size: int, l2: int = 0, l3: int = 0) -> UdmaCommand:
    return UdmaCommand(True, l2, l3, size)


def store(size: int, l2: int = 0, l3: int = 0) -> UdmaCommand:
    return UdmaCommand(False, l2, l3, size)


def bus(size: int) -> int:
    """Peripheral cycles of a transfer: a set-up per burst, a byte per cycle."""
    return -(-size // L3_BURST) * SETUP + size


@pytest.mark.parametrize("size", [1, 4, 511, 512, 513, 4096])
def test_a_transfer_takes_its_bursts_one_after_the_other(size: int) -> None:
    script = L3Script()
    script.l3_wait(script.l3_start(load(size)))
    _, tracer, _ = run(script.program())
    begun = OFFLOAD + UDMA_PROGRAM
    assert tracer.track("soc.udma") == [(begun, begun + bus(size), TRANSFER)]
    assert tracer.track("soc.cluster.core0")[1:3] == [
        (OFFLOAD, begun, "dma_program"),
        (begun, begun + bus(size) + UDMA_WAKE, "dma_wait"),
    ]


def test_the_bus_runs_on_the_peripheral_clock() -> None:
    timing = soc_timing(clock=ClockTiming(150_000_000, 150_000_000, 50_000_000))
    script = L3Script()
    script.l3_wait(script.l3_start(load(1000)))
    _, tracer, _ = run(script.program(), timing=timing)
    (start, end, _) = tracer.track("soc.udma")[0]
    assert end - start == 3 * bus(1000)


def test_both_directions_share_the_bus_and_the_cluster_computes_meanwhile() -> None:
    script = L3Script()
    transfers = [script.l3_start(load(1024)), script.l3_start(store(1024, l2=4096, l3=4096))]
    script.compute(team("mm", 8))
    for transfer in transfers:
        script.l3_wait(transfer)
    _, tracer, _ = run(script.program(), FixedCostModel({"mm": 500}))
    (one, two) = tracer.track("soc.udma")
    assert two[0] == one[1]
    assert two[1] - one[0] == 2 * bus(1024)
    (share,) = tracer.compute("soc.cluster.core0")
    assert share.end_cycles < one[1]


def test_a_full_queue_blocks_the_issuer() -> None:
    script = L3Script()
    transfers = [script.l3_start(load(1024, l2=1024 * i)) for i in range(4)]
    for transfer in transfers:
        script.l3_wait(transfer)
    _, tracer, _ = run(script.program())
    # One runs, two wait; the fourth goes in when the second begins.
    first_end = tracer.track("soc.udma")[0][1]
    programming = [end for _, end, kind in tracer.track("soc.cluster.core0") if kind == "dma_program"]
    assert programming[3] == first_end


def test_bytes_go_from_l3_through_l2_and_back_and_replay_repeats_it() -> None:
    values = np.random.default_rng(0).normal(size=(300,)).astype(np.float32)
    soc = Soc(soc_timing(), FixedCostModel({}))
    soc.load(Place("l3", 16, (300,)), values)
    script = L3Script()
    script.l3_wait(script.l3_start(load(600, l2=128, l3=16), load(600, l2=728, l3=616)))
    script.l3_wait(script.l3_start(store(1200, l2=128, l3=8000)))
    log = soc.run(script.program()).effect_log
    assert np.array_equal(soc.fetch(Place("l3", 8000, (300,))), values)
    soc.load(Place("l3", 16, (300,)), 2 * values)
    soc.replay(log)
    assert np.array_equal(soc.fetch(Place("l3", 8000, (300,))), 2 * values)


def test_reading_l2_before_the_transfer_has_ended_is_a_race() -> None:
    script = L3Script()
    script.l3_start(load(4096))
    script.l3_start(store(4096, l2=0, l3=8192))
    script.wait(script.start(read(0, 0, 256)))
    with pytest.raises(RaceError, match=r"DMA in .* touches l2 bytes 0 to 256, which uDMA in .* has used"):
        run(script.program())


def test_mistakes_are_named() -> None:
    outside = L3Script()
    outside.l3_start(load(64, l3=64 * 1024))
    with pytest.raises(InputError, match="a uDMA transfer uses bytes 65536 to 65600"):
        run(outside.program())
    empty = L3Script()
    empty.l3_start(load(0))
    with pytest.raises(InputError, match="has 0 B: use 1 B"):
        run(empty.program())
    never = L3Script()
    never.l3_wait(0)
    with pytest.raises(DeadlockError, match="the transfer of action 0, which has not been started"):
        run(never.program())


def duration(timing: SocTiming, size: int) -> int:
    script = L3Script()
    script.l3_wait(script.l3_start(load(size)))
    _, tracer, _ = run(script.program(), timing=timing)
    start, end, _ = tracer.track("soc.udma")[0]
    return end - start


@given(st.integers(1, 5000), st.integers(1, 40), st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0]))
def test_less_latency_or_more_bandwidth_is_never_slower(size: int, setup: int, rate: float) -> None:
    timing = soc_timing()
    l3 = replace(timing.l3, burst_setup_peripheral_cycles=setup, bytes_per_peripheral_cycle=rate)
    here = duration(replace(timing, l3=l3), size)
    assert duration(replace(timing, l3=replace(l3, burst_setup_peripheral_cycles=setup - 1)), size) <= here
    assert duration(replace(timing, l3=replace(l3, bytes_per_peripheral_cycle=2 * rate)), size) <= here


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 900)), min_size=1, max_size=6))
def test_every_byte_crosses_the_bus_once(moves: list[tuple[bool, int]]) -> None:
    script = L3Script()
    commands = [UdmaCommand(to_l2, 1000 * i, 1000 * i, size) for i, (to_l2, size) in enumerate(moves)]
    script.l3_wait(script.l3_start(*commands))
    tracer = Recorder()
    Soc(soc_timing(), FixedCostModel({}), tracer).run(script.program())
    pieces = [piece for piece in tracer.slices if piece.track == "soc.udma"]
    assert sum(piece.bytes for piece in pieces) == sum(size for _, size in moves)
    assert sum(piece.duration_cycles for piece in pieces) == sum(bus(size) for _, size in moves)

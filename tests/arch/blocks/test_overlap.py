# SPDX-License-Identifier: Apache-2.0
"""DMA against cores in L1: loads and kernels beside transfers, against cycles measured on the reference."""

from __future__ import annotations

import csv
import gzip
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arch.blocks.progress import Progress
from arch.blocks.soc import Soc
from arch.pricing.cost_model import CoreCost, DmaService, TeamCost, Traffic
from arch.pricing.team_cost_model import TeamCostModel
from arch.spec.isa import CoreWork, Instruction, Loop, Op, Stream, TeamWork
from arch.spec.program import Command
from arch.spec.soc_config import load_soc
from arch.spec.timing import SocTiming
from pulptrain.inputs.settings import with_options
from shared.paths import MEASURED
from shared.soc_fixture import COMMAND, Recorder, Script, soc_timing
from trainlib.kernels.catalogue import matmul_work


@cache
def measured(name: str) -> list[dict[str, str]]:
    with gzip.open(MEASURED / f"{name}.csv.gz", "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def machine(conflicts: bool, fpus: str = "4-static") -> SocTiming:
    return with_options(load_soc("pulp-open", "gvsoc"), bank_conflicts=conflicts, fpus=fpus)


STREAMS = {"seq_1of2": (4, 256), "same_word_1of2": (0, 0), "stride64B_1of2": (64, 0)}
"""Stride of the loads of one core, and distance of the first loads of two cores, in bytes."""


def loading_team(cores: int, traffic: str, trips: int) -> TeamWork:
    """Cores 1 to `cores` load a word every other instruction; core 0 drives the DMA."""
    stride, apart = STREAMS[traffic]
    body = (Instruction(Op.LOAD, dst=1, stream=0), Instruction(Op.ALU))
    works = [
        CoreWork(
            (Instruction(Op.HWLOOP), Loop(trips, body, hardware=True)), (Stream(apart * core, (stride,)),)
        )
        for core in range(1, cores + 1)
    ]
    return TeamWork(traffic, (None, *works))


def transfer_cycles(timing: SocTiming, *, to_l1: bool, size: int, team: TeamWork | None) -> int:
    """Length of a transfer that begins while the team is at work, behind one that covers the fork."""
    script = Script()
    first = script.start(Command(to_l1, 0, "l2", 0, 1024))
    second = script.start(Command(to_l1, 1024, "l2", 4096, size))
    if team is not None:
        script.compute(team)
    script.wait(first)
    script.wait(second)
    tracer = Recorder()
    Soc(timing, TeamCostModel(timing), tracer, detect_races=False).run(script.program(), effects=False)
    start, end, _ = tracer.track("soc.cluster.dma.in" if to_l1 else "soc.cluster.dma.out")[1]
    return end - start


def loads_rows(bank_conflicts: str) -> list[dict[str, str]]:
    return [row for row in measured("dma-contention") if row["bank_conflicts"] == bank_conflicts]


def predicted_against_measured(row: dict[str, str]) -> tuple[float, int]:
    """(predicted, measured) `dma_total_cycles`; what programming and waiting take is that of the idle row."""
    cores, size, to_l1 = int(row["n_traffic_cores"]), int(row["bytes"]), row["dir"] == "L2toL1"
    alike = ("bank_conflicts", "dir", "bytes", "traffic")
    (idle,) = [
        int(other["dma_total_cycles"])
        for other in measured("dma-contention")
        if other["n_traffic_cores"] == "0" and all(other[key] == row[key] for key in alike)
    ]
    timing = machine(row["bank_conflicts"] == "1")
    alone = transfer_cycles(timing, to_l1=to_l1, size=size, team=None)
    team = loading_team(cores, row["traffic"], size // 4)
    beside = transfer_cycles(timing, to_l1=to_l1, size=size, team=team)
    return idle + beside - alone, int(row["dma_total_cycles"])


@pytest.mark.parametrize(
    ("step", "compared"), [(5, 25), pytest.param(1, 126, marks=pytest.mark.slow)], ids=["fifth", "all"]
)
def test_loads_of_the_cores_slow_the_dma_down_as_measured(step: int, compared: int) -> None:
    errors = []
    for row in loads_rows("1")[::step]:
        if row["n_traffic_cores"] != "0":
            predicted, cycles = predicted_against_measured(row)
            errors.append((abs(predicted - cycles) / cycles, predicted, row))
    assert len(errors) == compared
    mean = sum(error for error, *_ in errors) / len(errors)
    assert mean < 0.03
    # Streams of several cores fall in and out of step with the DMA; the phase is not known.
    assert max(errors, key=lambda entry: entry[0])[0] < 0.12


@pytest.mark.parametrize("row", loads_rows("0")[1::16], ids=lambda row: f"{row['dir']}-{row['traffic']}")
def test_without_conflicts_the_dma_does_not_feel_the_cores(row: dict[str, str]) -> None:
    predicted, cycles = predicted_against_measured(row)
    assert predicted == pytest.approx(cycles, abs=4)


def kernel_beside_dma(row: dict[str, str], *, transfers: int) -> tuple[int, int]:
    """(fork to join of the kernel, first command to the end of the last wait), cycles of the master."""
    timing = machine(row["bank_conflicts"] == "1", row["fpus"])
    n, k, m = (int(row[size]) for size in "nkm")
    a, b, c = 0, 4 * n * k, 4 * (n * k + k * m)
    team = matmul_work(
        row["kernel"],
        row["codegen"],
        n=n,
        k=k,
        m=m,
        trans_b=False,
        cores=int(row["cores"]),
        a_address=a,
        b_address=b,
        c_address=c,
    )
    buffer, size, to_l1 = 4 * (n * k + k * m + n * m), int(row["bytes"]), row["direction"] == "l2_to_l1"
    script = Script()
    begun = [script.start(Command(to_l1, buffer, "l2", size * i, size)) for i in range(transfers)]
    script.compute(team)
    for transfer in begun:
        script.wait(transfer)
    tracer = Recorder()
    Soc(timing, cost_model(timing), tracer).run(script.program(), effects=False)
    track = tracer.track("soc.cluster.core0")
    forks = [entry for entry in track if entry[2] == "fork"]
    over = max(end for _, end, kind in track if kind in ("dma_wait", "fork"))
    return forks[-1][1] - forks[0][0], over - track[0][1]


@cache
def cost_model(timing: SocTiming) -> TeamCostModel:
    return TeamCostModel(timing)


@pytest.mark.parametrize(
    ("bank_conflicts", "step"), [("0", 7), ("1", 28), pytest.param("1", 7, marks=pytest.mark.slow)]
)
def test_kernels_and_transfers_overlap_as_measured(bank_conflicts: str, step: int) -> None:
    rows = [row for row in measured("overlap") if row["bank_conflicts"] == bank_conflicts][::step]
    kernel_errors, dma_errors = [], []
    for row in rows:
        kernel, dma = kernel_beside_dma(row, transfers=int(row["transfers"]))
        kernel_errors.append(abs(kernel / int(row["cycles"]) - 1))
        dma_errors.append(abs(dma / int(row["cycles_dma_with_compute"]) - 1))
    assert sum(kernel_errors) / len(rows) < 0.08
    assert sum(dma_errors) / len(rows) < 0.08


class HalfRateCostModel:
    """Kernels of fixed length that leave the DMA one word a cycle, half of what its ports can move."""

    def __init__(self, cycles: int) -> None:
        self.cycles = cycles

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        service = (1, 1)
        dma = DmaService(service, service) if traffic else None
        return TeamCost(tuple(CoreCost(self.cycles, self.cycles) for _ in work.cores), dma)


def transfers_beside(kernel: int, *sizes: int, gap: int = 0) -> list[tuple[int, int]]:
    """(start, end) of transfers, a kernel of `kernel` cycles starting `gap` after they are programmed."""
    script = Script()
    begun = [script.start(Command(True, 16384 * i, "l2", 16384 * i, size)) for i, size in enumerate(sizes)]
    if gap:
        script.compute(TeamWork("gap", (CoreWork(()),)), fork=False)
    script.compute(TeamWork("kernel", (CoreWork(()),)), fork=False)
    for transfer in begun:
        script.wait(transfer)
    tracer = Recorder()

    class CostModel(HalfRateCostModel):
        def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
            if work.kernel == "gap":
                return TeamCost((CoreCost(gap, gap),))
            return super().price(work, traffic)

    Soc(soc_timing(), CostModel(kernel), tracer).run(script.program(), effects=False)
    return [(start, end) for start, end, _ in tracer.track("soc.cluster.dma.in")]


def test_a_transfer_wholly_beside_a_kernel_takes_as_long_as_l1_lets_it() -> None:
    ((start, end),) = transfers_beside(10_000, 4096)
    assert end - start == 1024
    ((start, end),) = transfers_beside(1, 4096)
    assert end - start == 512


def test_a_transfer_advances_at_the_rate_of_the_kernels_it_meets() -> None:
    # The kernel starts COMMAND cycles before the transfer. What it lasts beside it, it delays it by half.
    ((start, end),) = transfers_beside(200 + COMMAND, 4096)
    assert end - start == 512 + 100
    # A kernel that begins in the middle holds up the rest only.
    ((start, end),) = transfers_beside(10_000, 4096, gap=300 + COMMAND)
    assert end - start == 300 + 2 * 212


def test_a_delayed_transfer_delays_its_successor() -> None:
    # The kernel begins when both are programmed, and ends before the first transfer does.
    (first, second) = transfers_beside(400, 4096, 2048)
    assert first[1] - first[0] == 512 + 200
    assert second == (first[1], first[1] + 256)


PHASES = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 500)), max_size=8)


@given(st.integers(0, 50), st.integers(1, 500), PHASES)
def test_progress_ends_when_all_parts_are_done(
    start: int, cycles: int, phases: list[tuple[int, int]]
) -> None:
    """Piecewise rates against exact fractions: the end is the first cycle in which nothing is left."""
    progress = Progress(start, cycles)
    rates = [(start, cycles)]
    now = 0
    done = []
    for wait, slower in phases:
        now += wait
        if now >= progress.end_cycles:
            break
        done.append(Fraction(*progress.change(now, slower)))
        rates.append((max(now, start), slower))
    edges = [begin for begin, _ in rates[1:]] + [progress.end_cycles]
    parts = [Fraction(end - begin, rate) for (begin, rate), end in zip(rates, edges, strict=True)]
    assert done == parts[:-1]
    assert sum(parts) >= 1
    assert sum(parts) - Fraction(1, rates[-1][1]) < 1
    assert Fraction(*progress.left) == 1 - sum(parts[:-1])

# SPDX-License-Identifier: Apache-2.0
"""KIND overlap: a kernel on the team while transfers in one direction run."""

from __future__ import annotations

from arch.program import Action, Command, Compute, DmaStart, DmaWait
from arch.timing import SocTiming
from scheduler.validation.cases import CORES, CYCLES, MACHINE_COLUMNS, Case, Column
from scheduler.validation.machines import machine_of, program_cycles
from scheduler.validation.mm import matmul_team
from scheduler.validation.prediction import Prediction

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("codegen"),
    Column("kernel"),
    Column("n", 1),
    Column("k", 1),
    Column("m", 1),
    CORES,
    Column("direction", choices=("l2_to_l1", "l1_to_l2")),
    Column("bytes", 1),
    Column("transfers", 1),
    CYCLES,
    Column("cycles_dma_with_compute", 1),
)


def predict_kernel(case: Case) -> Prediction:
    """The kernel from fork to join, while the transfers run."""
    timing, starts, kernel, _ = _parts(case)
    with_kernel = program_cycles(timing, case.id, [*starts, kernel])
    return Prediction(with_kernel - program_cycles(timing, case.id, starts))


def predict_transfers(case: Case) -> Prediction:
    """From the first command to the end of the last wait: starts, kernel, waits."""
    timing, starts, kernel, waits = _parts(case)
    return Prediction(program_cycles(timing, case.id, [*starts, kernel, *waits]))


def _parts(case: Case) -> tuple[SocTiming, list[Action], Compute, list[Action]]:
    n, k, m = case.number("n"), case.number("k"), case.number("m")
    size_bytes, count = case.number("bytes"), case.number("transfers")
    buffer = 4 * (n * k + k * m + n * m)
    to_l1 = case.text("direction") == "l2_to_l1"
    timing = machine_of(case, l1_bytes=buffer + size_bytes, l2_bytes=size_bytes * count)
    if count > timing.dma.transfer_ids:
        raise case.error(
            f"{count} transfers are pushed before the first is waited for",
            f"at most {timing.dma.transfer_ids}, the identifiers of the DMA",
        )
    starts: list[Action] = [
        DmaStart(index, commands=(Command(to_l1, buffer, "l2", size_bytes * index, size_bytes),))
        for index in range(count)
    ]
    kernel = Compute(count, team=matmul_team(case))
    waits: list[Action] = [DmaWait(count + 1 + index, transfer=index) for index in range(count)]
    return timing, starts, kernel, waits

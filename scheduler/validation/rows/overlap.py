# SPDX-License-Identifier: Apache-2.0
"""KIND overlap: a kernel on the team while transfers run, in one direction or alternating."""

from __future__ import annotations

from arch.spec.program import Action, Command, Compute, DmaStart, DmaWait
from arch.spec.timing import SocTiming
from scheduler.validation.rows.cases import CORES, CYCLES, KERNEL_COLUMNS, Case, Column
from scheduler.validation.rows.machines import machine_of, program_cycles
from scheduler.validation.rows.measured_code import (
    BARE_LEAVE_CYCLES,
    master_code,
    measured_on_rtl,
    registers_only,
    without_wrapper,
)
from scheduler.validation.rows.mm import matmul_team
from scheduler.validation.rows.prediction import Prediction

COLUMNS = (
    *KERNEL_COLUMNS,
    Column("n", 1),
    Column("k", 1),
    Column("m", 1),
    CORES,
    Column("direction", choices=("l2_to_l1", "l1_to_l2", "both")),
    Column("bytes", 1),
    Column("transfers", 1),
    CYCLES,
    Column("cycles_dma_with_compute", 1),
    Column("cycles_compute_alone", 0, extra=True),
)


BARE_BEFORE_CYCLES = 22
"""Code before the first push of the program measured on RTL: what its transfers alone (column
`cycles_dma_alone` of rtl-overlap.csv) take more than the same bytes in 1d of rtl-dma.csv.
"""

BARE_ISSUE_CYCLES = 32
"""All code around the pushes up to the kernel: mean of column `cycles_issue` less pushes, with refills."""

BARE_WAIT_CYCLES = 31
"""Code from the end of the kernel to the status read: where the transfers had ended before the kernel,
`cycles_dma_with_compute` less `cycles`, `cycles_issue` and what follows the read, in the mean. Most of it is
refills of code that the kernel has put out; it is hidden where the transfers last longer.
"""


def predict_kernel(case: Case) -> Prediction:
    """The kernel from fork to join, while the transfers run."""
    timing, starts, kernel, _ = _parts(case)
    with_kernel = program_cycles(timing, case.id, [*starts, kernel])
    return Prediction(with_kernel - program_cycles(timing, case.id, starts))


def predict_transfers(case: Case) -> Prediction:
    """From the first command to the end of the last wait: starts, kernel, waits."""
    timing, starts, kernel, waits = _parts(case)
    leave_cycles = BARE_LEAVE_CYCLES if measured_on_rtl(case) else 0
    return Prediction(program_cycles(timing, case.id, [*starts, kernel, *waits]) + leave_cycles)


def _parts(case: Case) -> tuple[SocTiming, list[Action], Compute, list[Action]]:
    n, k, m = case.number("n"), case.number("k"), case.number("m")
    size_bytes, count = case.number("bytes"), case.number("transfers")
    buffer = 4 * (n * k + k * m + n * m)
    direction = case.text("direction")
    apart = size_bytes if direction == "both" else 0
    l1_bytes = buffer + size_bytes + apart * max(0, count - 1)
    timing = machine_of(case, l1_bytes=l1_bytes, l2_bytes=size_bytes * count)
    bare = measured_on_rtl(case)
    if bare:
        timing = without_wrapper(registers_only(timing))
    if count > timing.dma.transfer_ids:
        raise case.error(
            f"{count} transfers start before the first wait, which is too many",
            f"use at most {timing.dma.transfer_ids}, the number of DMA transfer identifiers",
        )
    starts = master_code(0, BARE_BEFORE_CYCLES) if bare else []
    transfers = []
    for index in range(count):
        to_l1 = index % 2 == 0 if direction == "both" else direction == "l2_to_l1"
        l1_address, l2_address = buffer + apart * index, size_bytes * index
        transfers.append(len(starts))
        command = Command(to_l1, l1_address, "l2", l2_address, size_bytes)
        starts.append(DmaStart(len(starts), commands=(command,)))
    if bare:
        starts += master_code(len(starts), BARE_ISSUE_CYCLES - BARE_BEFORE_CYCLES)
    kernel = Compute(len(starts), team=matmul_team(case))
    first = kernel.id + 1
    waits = master_code(first, BARE_WAIT_CYCLES) if bare else []
    first += len(waits)
    waits += [DmaWait(first + index, transfer=transfer) for index, transfer in enumerate(transfers)]
    return timing, starts, kernel, waits

"""KIND overlap: a kernel on the team while transfers in one direction run."""

from __future__ import annotations

from arch.program import Action, Command, Compute, DmaStart, DmaWait
from arch.timing import SocTiming
from configs.dtypes import DTYPES
from scheduler.validation.bare_loop import bare_driver
from scheduler.validation.cases import BUILD, CORES, CYCLES, MACHINE_COLUMNS, Case, Column
from scheduler.validation.machines import machine_of, program_cycles
from scheduler.validation.mm import matmul_team
from scheduler.validation.prediction import Prediction
from trainlib.kernels.catalogue import element_bytes_of

BOTH = "both"
"""Transfers in both directions in turn, the first into L1."""

COLUMNS = (
    *MACHINE_COLUMNS,
    Column("codegen"),
    Column("kernel"),
    Column("dtype", choices=tuple(dtype.word for dtype in DTYPES)),
    Column("n", 1),
    Column("k", 1),
    Column("m", 1),
    CORES,
    Column("direction", choices=("l2_to_l1", "l1_to_l2", BOTH)),
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


def _command(to_l1: bool, buffer: int, index: int, size_bytes: int) -> Command:
    l1_address = buffer if to_l1 else buffer + size_bytes
    return Command(to_l1, l1_address, "l2", size_bytes * index, size_bytes)


def _parts(case: Case) -> tuple[SocTiming, list[Action], Compute, list[Action]]:
    n, k, m = case.number("n"), case.number("k"), case.number("m")
    size_bytes, count = case.number("bytes"), case.number("transfers")
    buffer = element_bytes_of(case.text("dtype")) * (n * k + k * m + n * m)
    direction = case.text("direction")
    timing = machine_of(case, l1_bytes=buffer + 2 * size_bytes, l2_bytes=size_bytes * count)
    if case.cells.get(BUILD):
        timing = bare_driver(timing)
    if count > timing.dma.transfer_ids:
        raise case.error(
            f"{count} transfers are pushed before the first is waited for",
            f"at most {timing.dma.transfer_ids}, the identifiers of the DMA",
        )
    # What goes out lies beside what comes in: they would overwrite each other.
    inwards = [direction == "l2_to_l1" or (direction == BOTH and index % 2 == 0) for index in range(count)]
    starts: list[Action] = [
        DmaStart(index, commands=(_command(to_l1, buffer, index, size_bytes),))
        for index, to_l1 in enumerate(inwards)
    ]
    kernel = Compute(count, team=matmul_team(case))
    waits: list[Action] = [DmaWait(count + 1 + index, transfer=index) for index in range(count)]
    return timing, starts, kernel, waits

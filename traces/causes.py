# SPDX-License-Identifier: Apache-2.0
"""Why cores stand still: what core 0 waits for, and what a core without work waits for.

Two stall words say that a core waits and not for what. A `dma_wait` is put to the direction of the transfer
that is waited for, or to L3. What a worker is `idle` for is what core 0 does at that time: it waits for a
transfer itself, programs the DMA, forks, computes alone, or executes a kernel without rows for the worker.
All other words are causes themselves, so that the causes of a core add up to the makespan, as the stalls do.
"""

from __future__ import annotations

from collections.abc import Mapping

from traces.events import COMPUTE, Slice
from traces.parts import BUSY

DMA_IN, DMA_OUT, L3 = "dma_in", "dma_out", "l3"
SERIAL, NO_ROWS = "serial", "no_rows"

MEANINGS: Mapping[str, str] = {
    DMA_IN: "Core 0 and the workers wait for a transfer from L2 to L1.",
    DMA_OUT: "Core 0 and the workers wait until a result has left L1.",
    L3: "Core 0 and the workers wait for a transfer from or to L3.",
    SERIAL: "A worker waits while core 0 computes alone.",
    NO_ROWS: "The kernel has no work for this core.",
}
"""Causes that are no stall words (`traces.stall_words` has those), and `barrier`, which is imbalance."""

SPLIT = ("dma_wait", "idle")
"""Stall words that stand for several causes."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "compute": (BUSY,),
    "load-use": ("load_use", "misaligned", "l2_access"),
    "latency": ("multicycle",),
    "branches": ("branch",),
    "FPU": ("fpu",),
    "divider": ("divider",),
    "bank conflicts": ("bank_conflict",),
    "code refills": ("icache",),
    "DMA in": (DMA_IN,),
    "DMA out": (DMA_OUT,),
    "L3": (L3,),
    "imbalance": ("barrier", NO_ROWS),
    "serial code": (SERIAL,),
    "overhead of tiles": ("fork", "dma_program"),
    "offload": ("offload",),
}
"""What an op may be bound by, and the causes that are counted for it."""

CAUSES = tuple(cause for causes in GROUPS.values() for cause in causes)
"""Every cause, in the order they are shown."""


_FOR_WORKERS = {"barrier": NO_ROWS, "idle": "offload"}


def cause_for_workers(before: Slice | None, event: Slice, after: Slice | None) -> str:
    """What a worker without work waits for during a slice of the master, between those next to it.

    A kernel of the team stands between its fork and its join. Of a wait for a transfer its cause is that of
    the master.
    """
    if event.kind != COMPUTE:
        return _FOR_WORKERS.get(event.kind, event.kind)
    if before is None or after is None or before.kind != "fork" or after.kind not in ("barrier", "fork"):
        return SERIAL
    return NO_ROWS if before.work == event.work == after.work else SERIAL


def causes_of(words: Mapping[str, int], waits: Mapping[str, int]) -> dict[str, int]:
    """Core-cycles by cause, all causes in their order: of busy and stall words, and of what waits are for."""
    return {cause: words.get(cause, 0) + waits.get(cause, 0) for cause in CAUSES}


def bound_by(causes: Mapping[str, int]) -> dict[str, int]:
    """Core-cycles by what an op is bound by (`GROUPS`), the largest first, nothing that is 0."""
    groups = {name: sum(causes[cause] for cause in members) for name, members in GROUPS.items()}
    return dict(
        sorted(((name, cycles) for name, cycles in groups.items() if cycles), key=lambda item: -item[1])
    )

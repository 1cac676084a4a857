# SPDX-License-Identifier: Apache-2.0
"""Why cores stand still: what core 0 waits for, and what a core without work waits for.

Two stall words say that a core waits and not for what. A `dma_wait` is put to the direction of the transfer
that is waited for, or to L3. What a worker is `idle` for is what core 0 does at that time: it waits for a
transfer itself, programs the DMA, forks, computes alone, or executes a kernel without rows for the worker.
All other words are causes themselves, so that the causes of a core add up to the makespan, as the stalls do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from traces.events import COMPUTE, Slice, Work
from traces.tracks import OUTWARD, UDMA, track_name

DMA_IN, DMA_OUT, L3 = "dma_in", "dma_out", "l3"
SERIAL, NO_ROWS = "serial", "no_rows"
BUSY = "busy"

MEANINGS: Mapping[str, str] = {
    DMA_IN: "Core 0 waits for a transfer from L2 into L1, and the workers with it.",
    DMA_OUT: "Core 0 waits until a result has left L1, and the workers with it.",
    L3: "Core 0 waits for a transfer from or to L3, and the workers with it.",
    SERIAL: "A worker waits while core 0 computes alone.",
    NO_ROWS: "A kernel has no share for this core.",
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


class Waits:
    """By op the causes of the `SPLIT` cycles of the cores that were counted.

    `master` are the slices of core 0 in order; `owners` names for each the op its cycles belong to ("" for
    none), see `traces.metrics`.
    """

    def __init__(self, master: Sequence[Slice], owners: Sequence[str], transfers: Iterable[Slice]) -> None:
        self._directions, self._from_l3 = _moved(transfers)
        self._master = master
        self._owners = owners
        self._for_workers = [self._cause_for_workers(number) for number in range(len(self._master))]
        self._ends = [event.end_cycles for event in self._master]
        self._idle: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.by_op: dict[str, dict[str, int]] = {}

    def count(self, run: Iterable[Slice]) -> dict[str, int]:
        """Add up the waits of a core, whose slices are `run`; returns its causes."""
        core: dict[str, int] = {}
        for event in run:
            if event.kind not in SPLIT:
                continue
            transfer = self._of_transfer(event) if event.kind == "dma_wait" else ""
            for number, cycles in self._meanwhile(event.start_cycles, event.end_cycles):
                cause = transfer or self._for_workers[number]
                core[cause] = core.get(cause, 0) + cycles
                if op := self._owners[number]:
                    of_op = self.by_op.setdefault(op, {})
                    of_op[cause] = of_op.get(cause, 0) + cycles
        return core

    def _meanwhile(self, start_cycles: int, end_cycles: int) -> list[tuple[int, int]]:
        """(slice of the master, cycles in it) of an interval; mostly all workers ask for the same."""
        counted = self._idle.get((start_cycles, end_cycles))
        if counted is None:
            counted = self._idle[start_cycles, end_cycles] = []
            number = bisect_right(self._ends, start_cycles)
            while number < len(self._ends) and start_cycles < end_cycles:
                until_cycles = min(self._ends[number], end_cycles)
                counted.append((number, until_cycles - start_cycles))
                start_cycles = until_cycles
                number += 1
        return counted

    def _cause_for_workers(self, number: int) -> str:
        """What a worker without work waits for during a slice of the master."""
        event = self._master[number]
        if event.kind == "dma_wait":
            return self._of_transfer(event)
        if event.kind == COMPUTE:
            return NO_ROWS if self._is_forked(number) else SERIAL
        return {"barrier": NO_ROWS, "idle": "offload"}.get(event.kind, event.kind)

    def _is_forked(self, number: int) -> bool:
        """On the master a kernel of the team stands between its fork and its join."""
        if not 0 < number < len(self._master) - 1:
            return False
        before, event, after = self._master[number - 1 : number + 2]
        same = before.work == event.work == after.work
        return same and before.kind == "fork" and after.kind in ("barrier", "fork")

    def _of_transfer(self, event: Slice) -> str:
        """The cause of a wait: L3 if the uDMA was still at it and the DMA had not begun."""
        direction, begun_cycles = self._directions.get(event.work, (L3, event.end_cycles))
        over_cycles = self._from_l3.get(event.work, 0)
        is_l3 = over_cycles > event.start_cycles and begun_cycles >= event.end_cycles
        return L3 if is_l3 else direction


def _moved(transfers: Iterable[Slice]) -> tuple[dict[Work, tuple[str, int]], dict[Work, int]]:
    """By what something was moved for: of the DMA its direction and first cycle, of the uDMA its last."""
    directions: dict[Work, tuple[str, int]] = {}
    from_l3: dict[Work, int] = {}
    for event in transfers:
        name = track_name(event.track)
        if name.family == UDMA:
            from_l3[event.work] = max(from_l3.get(event.work, 0), event.end_cycles)
        elif event.work not in directions or event.start_cycles < directions[event.work][1]:
            directions[event.work] = DMA_OUT if name.direction == OUTWARD else DMA_IN, event.start_cycles
    return directions, from_l3


def causes_of(words: Mapping[str, int], waits: Mapping[str, int]) -> dict[str, int]:
    """Core-cycles by cause, all causes in their order: of busy and stall words, and of what waits are for."""
    return {cause: words.get(cause, 0) + waits.get(cause, 0) for cause in CAUSES}


def bound_by(causes: Mapping[str, int]) -> dict[str, int]:
    """Core-cycles by what an op is bound by (`GROUPS`), the largest first, nothing that is 0."""
    groups = {name: sum(causes[cause] for cause in members) for name, members in GROUPS.items()}
    return dict(
        sorted(((name, cycles) for name, cycles in groups.items() if cycles), key=lambda item: -item[1])
    )

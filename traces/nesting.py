# SPDX-License-Identifier: Apache-2.0
"""An iteration as nested intervals: phases, their ops, the tiles of these; read off the slices of the master.

A tile lasts from the fork of its first kernel to the join of its last. An op lasts from the master's first
action for it after the op before, to its last before the next: what is prefetched for it earlier is in the
op that it is hidden behind. A phase is a row of ops. So intervals are in one another or apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from traces.events import Slice, Work
from traces.tracks import op_label

PHASE, OP, TILE = "phase", "op", "tile"

PHASES = {"FW": "forward", "LOSS": "loss", "IG": "backward", "WG": "backward", "UPD": "update"}
"""Phase of a step; any other (sums of gradients, clipping) is in the phase of the op before."""

FIRST_PHASE = "forward"

_MANAGING = frozenset({"dma_wait", "dma_program", "icache", "offload", "idle"})
"""Kinds of slices in which the master executes no kernel; code is fetched before the fork."""


class Mark(NamedTuple):
    """An interval begins, or with `end` the one that began last and has not ended ends.

    `duration_cycles` is that of a tile or op that begins.
    """

    time_cycles: int
    level: str
    name: str = ""
    work: Work = Work()
    duration_cycles: int = 0
    end: bool = False


@dataclass(slots=True)
class _Interval:
    name: str
    work: Work
    start_cycles: int
    end_cycles: int
    parts: list[_Interval] = field(default_factory=list)


def marks(master: Sequence[Slice]) -> Iterator[Mark]:
    """Begins and ends in order of time, of the slices of the master in their order."""
    phase, end_cycles = "", 0
    for op in _ops(master):
        step = op.work.step.partition("_")[0]
        its_phase = PHASES.get(step) or phase or FIRST_PHASE
        if its_phase != phase:
            if phase:
                yield Mark(end_cycles, PHASE, end=True)
            phase = its_phase
            yield Mark(op.start_cycles, PHASE, phase)
        for interval, level in ((op, OP), *((tile, TILE) for tile in op.parts)):
            duration_cycles = interval.end_cycles - interval.start_cycles
            yield Mark(interval.start_cycles, level, interval.name, interval.work, duration_cycles)
            if level == TILE:
                yield Mark(interval.end_cycles, TILE, end=True)
        end_cycles = op.end_cycles
        yield Mark(end_cycles, OP, end=True)
    if phase:
        yield Mark(end_cycles, PHASE, end=True)


def _ops(master: Sequence[Slice]) -> Iterator[_Interval]:
    """Ops with their tiles; one that executes no kernel has the time in which its transfers are managed."""
    with_kernels = {_label(event.work) for event in master if event.kind not in _MANAGING}
    op: _Interval | None = None
    begun_cycles: dict[str, int] = {}
    for event in master:
        work, name = event.work, _label(event.work)
        executes = event.kind not in _MANAGING
        if not work.op:
            continue
        if op is not None and name == op.name:
            op.end_cycles = event.end_cycles
        elif executes or name not in with_kernels:
            if op is not None:
                yield op
            op = _Interval(name, work, begun_cycles.get(name, event.start_cycles), event.end_cycles)
        else:
            begun_cycles.setdefault(name, event.start_cycles)
            continue
        begun_cycles.clear()
        if executes:
            _add_to_tile(op.parts, event)
    if op is not None:
        yield op


def _add_to_tile(tiles: list[_Interval], event: Slice) -> None:
    work = event.work
    name = f"{TILE} {work.tile}" if work.tile >= 0 else work.what or event.kind
    if tiles and tiles[-1].name == name:
        tiles[-1].end_cycles = event.end_cycles
    else:
        tiles.append(_Interval(name, work, event.start_cycles, event.end_cycles))


def _label(work: Work) -> str:
    return op_label(work.op, work.step)

# SPDX-License-Identifier: Apache-2.0
"""What planning a graph gives: its schedule. Nothing that plans is imported here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from configs.values import Struct

if TYPE_CHECKING:
    from arch.spec.program import Program
    from scheduler.memory.host_memory import ProgramSize
    from scheduler.memory.memory_plan import MemoryPlan
    from scheduler.options import ScheduleOptions
    from scheduler.tiles.l1_layout import L1Layout
    from scheduler.tiles.tiling import Tiling
    from scheduler.tiles.tiling_candidates import Counts
    from trainlib.ir.graph import Op, TrainingGraph


class OpSchedule(Struct, frozen=True):
    """What was chosen for one op."""

    op: Op
    kernel: str
    tiling: Tiling
    layout: L1Layout
    macs: int
    useful_macs: int
    """Those that meet no zero of padding or of strides."""
    estimated_cycles: int
    """By which the tiling won, see `TilingChoice`; 0 where the user fixed it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A graph, where everything lives, what was chosen per op, and the actions that carry it out."""

    graph: TrainingGraph
    options: ScheduleOptions
    ops: tuple[OpSchedule, ...]
    plan: MemoryPlan
    program: Program
    notes: tuple[str, ...]
    counts: Counts
    """Tilings considered for all ops together."""
    resident: tuple[str, ...]
    """What stays in L1 between ops, as `ScheduleOptions.resident` says it."""
    size: ProgramSize
    """Of the program, as it was counted before there was one."""

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Highest address used per level; L1 without the reserved stacks."""
        return self.plan.peak_bytes


class LateSchedule:
    """Stands for a schedule that is made when something of it is first read; `make` remembers it."""

    def __init__(self, make: Callable[[], Schedule]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)

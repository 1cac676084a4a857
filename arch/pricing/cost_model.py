# SPDX-License-Identifier: Apache-2.0
"""What a kernel costs on a team of cores: the result types and the interface the cluster asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag
from typing import Protocol

from arch.spec.isa import TeamWork


class Traffic(IntFlag):
    """DMA traffic class while a kernel runs; it decides how much L1 bandwidth the DMA takes."""

    NONE = 0
    IN = 1
    OUT = 2
    BOTH = 3


@dataclass(frozen=True, slots=True)
class CoreCost:
    """Time of one core in one kernel: cycles = instructions + sum of stalls, by word of `STALLS`."""

    cycles: int
    instructions: int
    stalls: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DmaService:
    """What L1 leaves to the DMA beside a kernel: (words, cycles its ports took to move them) per direction.

    None for a direction without traffic.
    """

    inward: tuple[int, int] | None
    outward: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class TeamCost:
    """Cost of one kernel, one entry per core of the team; the slowest core ends it.

    `dma` is None when the kernel does not hold the DMA up.
    """

    cores: tuple[CoreCost, ...]
    dma: DmaService | None = field(default=None, compare=False)

    @property
    def cycles(self) -> int:
        """Cycles of the slowest core."""
        return max((core.cycles for core in self.cores), default=0)


class CostModel(Protocol):
    """Anything that can say what a kernel costs under a class of DMA traffic."""

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        """Price `work`; results are deterministic and may be memoised."""

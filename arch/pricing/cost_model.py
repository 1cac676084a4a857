# SPDX-License-Identifier: Apache-2.0
"""What a kernel costs on a team of cores: the result types and the interface the cluster asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag
from functools import cached_property
from typing import Protocol

from arch.spec.isa import TeamWork
from arch.spec.timing import SocTiming
from configs.values import Struct


class Traffic(IntFlag):
    """DMA traffic class while a kernel runs; it decides how much L1 bandwidth the DMA takes."""

    NONE = 0
    IN = 1
    OUT = 2
    BOTH = 3


class CoreCost(Struct, frozen=True):
    """Time of one core in one kernel: cycles = instructions + sum of stalls, by word of `STALLS`."""

    cycles: int
    instructions: int
    stalls: tuple[tuple[str, int], ...] = ()


class DmaService(Struct, frozen=True):
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

    def least_cycles(self, work: TeamWork) -> int:
        """What no price of `work` is below, found with less effort than a price."""
        return 0


class TeamCostModelWhenAsked:
    """The `TeamCostModel` of a machine, made at its first price: a run may find them all kept."""

    def __init__(self, timing: SocTiming) -> None:
        self._timing = timing

    @cached_property
    def _model(self) -> CostModel:
        from arch.pricing.team_cost_model import TeamCostModel

        return TeamCostModel(self._timing)

    def price(self, work: TeamWork, traffic: Traffic = Traffic.NONE) -> TeamCost:
        """As `TeamCostModel.price`."""
        return self._model.price(work, traffic)

    def least_cycles(self, work: TeamWork) -> int:
        """As `TeamCostModel.least_cycles`."""
        return self._model.least_cycles(work)

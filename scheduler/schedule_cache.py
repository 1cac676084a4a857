# SPDX-License-Identifier: Apache-2.0
"""What planning a graph has found out, for further schedules of it on the same SoC or one with another L2."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.tiles.code_cost import CodeCost
    from scheduler.tiling_choice import RankedTilings, ShortList, TilingChoice


class ScheduleCache:
    """Answers of `scheduler.schedule.build_schedule` and of the search of residents, filled while they plan.

    It saves time and changes no result. The schedules that share one may differ in what is resident and in
    the sizes of L2 and L3, and in nothing else. `scheduler.run_cache` keeps its tilings and residents from
    run to run.
    """

    def __init__(
        self,
        kept: Callable[[object], TilingChoice | None] = lambda alike: None,
        resident: tuple[str, ...] | None = None,
    ) -> None:
        self._kept = kept
        self.tilings: dict[object, TilingChoice] = {}
        """What makes ops alike -> how they are cut."""
        self.siblings: dict[object, TilingChoice] = {}
        """The same of ops with nothing resident that are alike but for their time step, and L1 bytes."""
        self.rankings: dict[object, RankedTilings] = {}
        """Op, names of what it finds resident, depths and streams -> its candidates and what they move."""
        self.short_lists: dict[object, ShortList] = {}
        """What makes ops alike but for what they may load early, L1 bytes -> cuts worth building."""
        self.code: CodeCost | None = None
        """What ops wait for their code; None as long as nobody has asked."""
        self.keep_rankings = False
        """Whether the same ops will be asked again; else a ranking, tens of MiB, goes when its op is cut."""
        self.resident = resident
        """What `scheduler.resident_search` has chosen to stay in L1; None if it has not been asked."""

    def of_another_l2(self) -> ScheduleCache:
        """The same for a machine with more or less L2: only what stays in L1 is chosen anew."""
        other = copy(self)
        other.resident = None
        return other

    def tiling(self, alike: object) -> TilingChoice | None:
        """How ops like this are cut, as this process or an earlier one has chosen."""
        choice = self.tilings.get(alike) or self._kept(alike)
        if choice is not None:
            self.tilings[alike] = choice
        return choice

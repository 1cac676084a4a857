# SPDX-License-Identifier: Apache-2.0
"""Defects of fork, join, barriers and mutexes, and of kernels that transfers run beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from arch.blocks.event_unit import Barrier, Mutex
from arch.blocks.kernel_run import KernelRun
from arch.blocks.master import Master
from arch.pricing.cost_model import Traffic
from arch.pricing.team_cost_model import TeamCostModel
from arch.systemc.module import Body
from tools.timing_defects.change import Change, Replacement, registrar

DEFECTS: dict[str, Change] = {}
_defect = registrar(DEFECTS, "fork and join")


def _forks(**wrong: Any) -> list[Replacement]:
    """The master with other costs of the event unit."""
    right = Master.__init__

    def changed(self: Master, cluster: Any, core: Any, driver: Any, timing: Any) -> None:
        unit = replace(timing.event_unit, **{name: change(timing) for name, change in wrong.items()})
        right(self, cluster, core, driver, replace(timing, event_unit=unit))

    return [(Master, "__init__", changed)]


@_defect("arch/blocks/master.py", "workers begin 8 cycles late")
def _late_workers() -> Sequence[Replacement]:
    return _forks(fork_worker_cycles=lambda timing: timing.event_unit.fork_worker_cycles + 8)


@_defect("arch/blocks/master.py", "workers begin with the master")
def _workers_at_once() -> Sequence[Replacement]:
    return _forks(fork_worker_cycles=lambda timing: 0)


@_defect("arch/blocks/master.py", "the fork costs the master nothing")
def _free_fork() -> Sequence[Replacement]:
    return _forks(fork_master_cycles=lambda timing: 0)


@_defect("arch/blocks/master.py", "the join costs the master nothing")
def _free_join() -> Sequence[Replacement]:
    return _forks(join_cycles=lambda timing: 0)


@_defect("arch/blocks/event_unit.py", "a barrier opens one cycle late")
def _late_barrier() -> Sequence[Replacement]:
    right = Barrier.__init__

    def wrong(self: Barrier, env: Any, size: int, wake_cycles: int) -> None:
        right(self, env, size, wake_cycles + 1)

    of_kernels = _forks(barrier_wake_cycles=lambda timing: timing.event_unit.barrier_wake_cycles + 1)
    return [(Barrier, "__init__", wrong), *of_kernels]


@_defect("arch/blocks/event_unit.py", "freeing a mutex takes no cycle")
def _free_unlock() -> Sequence[Replacement]:
    def wrong(self: Mutex, core: int) -> Body:
        self._owner = min(self._waiting, default=None)
        if self._owner is not None:
            self._waiting.pop(self._owner).notify(self._timing.event_wake_cycles)
        yield from ()

    return [(Mutex, "unlock", wrong)]


@_defect("arch/blocks/kernel_run.py", "a kernel ends with its fastest core")
def _fastest_core() -> Sequence[Replacement]:
    def wrong(self: KernelRun) -> int:
        return min(share.end_cycles for share in self.shares.values())

    return [(KernelRun, "end_cycles", property(wrong))]


@_defect(
    "arch/blocks/kernel_run.py", "a transfer that begins or ends beside a kernel does not change its pace"
)
def _no_retime() -> Sequence[Replacement]:
    return [(KernelRun, "retime", lambda self, traffic: None)]


@_defect("arch/blocks/kernel_run.py", "kernels and transfers do not feel each other")
def _no_traffic() -> Sequence[Replacement]:
    right = KernelRun.__init__

    def wrong(
        self: KernelRun, env: Any, model: Any, team: Any, starts: Any, traffic: Any, *args: Any
    ) -> None:
        right(self, env, model, team, starts, Traffic.NONE, *args)

    return [(KernelRun, "__init__", wrong), *_no_retime()]


@_defect("arch/pricing/team_cost_model.py", "all cores of a team are priced as if they began together")
def _no_skew() -> Sequence[Replacement]:
    right = TeamCostModel._members

    def wrong(self: TeamCostModel, *args: Any) -> Any:
        return tuple(replace(member, start_cycles=0) for member in right(self, *args))

    return [(TeamCostModel, "_members", wrong)]

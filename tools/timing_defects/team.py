# SPDX-License-Identifier: Apache-2.0
"""Defects of fork, join, barriers and mutexes, and of kernels that transfers run beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arch.blocks.event_unit import Barrier, Mutex
from arch.blocks.kernel_run import KernelRun
from arch.blocks.master import Master
from arch.pricing.cost_model import Traffic
from arch.pricing.team_cost_model import TeamCostModel
from arch.systemc.module import Body
from configs.values import replace
from tools.timing_defects.change import Change, Replacement, around, registrar

DEFECTS: dict[str, Change] = {}
_defect = registrar(DEFECTS, "fork and join")


def _forks(**wrong: Any) -> list[Replacement]:
    """The master with other costs of the event unit."""

    def changed(right: Any, self: Master, cluster: Any, core: Any, driver: Any, timing: Any) -> None:
        unit = replace(timing.event_unit, **{name: change(timing) for name, change in wrong.items()})
        right(self, cluster, core, driver, replace(timing, event_unit=unit))

    return around(Master, "__init__", changed)


_defect("arch/blocks/master.py", "workers begin 8 cycles late")(
    lambda: _forks(fork_worker_cycles=lambda timing: timing.event_unit.fork_worker_cycles + 8)
)
_defect("arch/blocks/master.py", "workers begin with the master")(
    lambda: _forks(fork_worker_cycles=lambda timing: 0)
)
_defect("arch/blocks/master.py", "the fork costs the master nothing")(
    lambda: _forks(fork_master_cycles=lambda timing: 0)
)
_defect("arch/blocks/master.py", "the join costs the master nothing")(
    lambda: _forks(join_cycles=lambda timing: 0)
)
_defect("arch/blocks/event_unit.py", "a barrier opens one cycle late")(
    lambda: [
        *around(Barrier, "__init__", lambda right, self, env, size, wake: right(self, env, size, wake + 1)),
        *_forks(barrier_wake_cycles=lambda timing: timing.event_unit.barrier_wake_cycles + 1),
    ]
)


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
    wrong = property(lambda self: min(share.end_cycles for share in self.shares.values()))
    return [(KernelRun, "end_cycles", wrong)]


@_defect(
    "arch/blocks/kernel_run.py",
    "a transfer that begins or ends during a kernel does not change the kernel's speed",
)
def _no_retime() -> Sequence[Replacement]:
    return [(KernelRun, "retime", lambda self, traffic: None)]


@_defect("arch/blocks/kernel_run.py", "kernels and transfers do not slow each other down")
def _no_traffic() -> Sequence[Replacement]:
    def wrong(right: Any, self: KernelRun, env: Any, model: Any, team: Any, starts: Any, *args: Any) -> None:
        right(self, env, model, team, starts, Traffic.NONE, *args[1:])

    return [*around(KernelRun, "__init__", wrong), *_no_retime()]


@_defect("arch/pricing/team_cost_model.py", "all cores of a team are priced as if they began together")
def _no_skew() -> Sequence[Replacement]:
    def wrong(right: Any, *args: Any) -> Any:
        return tuple(replace(member, start_cycles=0) for member in right(*args))

    return around(TeamCostModel, "_members", wrong)

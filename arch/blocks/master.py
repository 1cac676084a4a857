# SPDX-License-Identifier: Apache-2.0
"""The master thread of the cluster: core 0 carries out the actions of a Program in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from arch.blocks.core import Core, CoreShare, TeamShares, Workers
from arch.blocks.dma import Transfer
from arch.blocks.dma_driver import DmaDriver, programming_cycles
from arch.blocks.event_unit import TeamJob
from arch.blocks.kernel_run import KernelRun
from arch.blocks.stretches import Stretches
from arch.blocks.udma import Udma, UdmaOrder
from arch.pricing.cost_model import TeamCost
from arch.spec.isa import TeamWork
from arch.spec.program import (
    Action,
    Compute,
    DmaStart,
    DmaWait,
    Program,
    Release,
    TeamTransfer,
    UdmaStart,
    UdmaWait,
)
from arch.spec.timing import SocTiming
from arch.systemc.module import Body, Module, Notification, Port, Thread
from arch.systemc.transaction import Target, Transaction, TxnCommand
from configs.errors import InputError

if TYPE_CHECKING:
    from arch.blocks.cluster import Cluster

__all__ = ["Master", "programming_cycles"]

_WAITS = (DmaWait, UdmaWait)


class _Shares(NamedTuple):
    """What the cores do in a kernel, in cycles from its call, and if nothing disturbed it its price.

    `over` is the end of the last core, `own` the share of a master that computes alone.
    """

    cost: TeamCost | None
    over: int
    own: CoreShare | None
    team: TeamShares | None

    @staticmethod
    def of(run: KernelRun, crew: _Crew, called: int, over: int, cost: TeamCost | None = None) -> _Shares:
        """Those of a kernel that is over."""
        if crew.workers is not None:
            return _Shares(cost, over - called, None, crew.workers.shares(called + crew.pushed, run))
        start, end, stalls, instructions = run.share(0)
        return _Shares(cost, over - called, (start - called, end - called, stalls, instructions), None)


class _Crew:
    """Who computes the kernels of a team (kept, so that no other takes its identity).

    `workers` if they are forked; in cycles from the call the push that calls them and when each core begins;
    what they did in the last kernel that was alone.
    """

    __slots__ = ("pushed", "shares", "starts", "team", "waits_for", "workers")

    def __init__(self, team: TeamWork) -> None:
        self.team = team
        self.waits_for = f"the end of kernel {team.kernel}"
        self.workers: Workers | None = None
        self.starts: dict[int, int] = {}
        self.pushed = 0
        self.shares: _Shares | None = None


class Master(Module):
    """SC_THREAD of core 0: takes a program from the mailbox, executes it, tells the fabric controller.

    An action has ended when the master goes on to the next one, except that a `DmaStart` or `UdmaStart`
    has ended when its transfer has; the wait for it does not count its own start among its dependencies.
    """

    def __init__(self, cluster: Cluster, core: Core, driver: DmaDriver, timing: SocTiming) -> None:
        super().__init__(cluster, "master")
        self._cluster = cluster
        self._core = core
        self._driver = driver
        self._timing = timing
        self.udma: Port[Udma] = Port(self, "udma")
        self.completion: Port[Target] = Port(self, "completion")
        self.stretches: Stretches | None = None
        """If set, what has been run before is passed over: nobody sees it."""
        self._executes: Mapping[type[Action], Callable[[Any, Thread], Body]] = {
            DmaStart: self._start_transfer,
            DmaWait: self._wait_transfer,
            UdmaWait: self._wait_transfer,
            TeamTransfer: self._team_transfer,
            UdmaStart: self._start_udma,
            Compute: self._compute,
            Release: self._release,
        }

    def reset(self) -> None:
        """No transfer begun; wait for a task."""
        self._transfers: dict[int, Transfer] = {}
        self._teams: dict[tuple[int, ...], Workers] = {}
        self._crews: dict[tuple[int, bool], _Crew] = {}
        thread = Thread(self._core.path)
        self.spawn(thread, self._run(thread))

    def _run(self, thread: Thread) -> Body:
        thread.waits_for = "a task from the fabric controller"
        program: Program = yield self._cluster.task
        for core in self._cluster.cores:
            core.lose("offload", int(self.env.now))
        actions = program.actions
        walk = self.stretches.walk(program) if self.stretches is not None else None
        position = 0
        while position < len(actions):
            if walk is not None and position == walk.border:
                position, passed_cycles = walk.go_on(self.env.now, self._transfers, self._passed)
                if passed_cycles:
                    yield self.env.timeout(passed_cycles)
                if position == len(actions):
                    break
            action = actions[position]
            position += 1
            if action.id != position - 1:
                raise InputError(
                    f"action {position - 1} of program {program.name!r} has id {action.id}, not its position",
                    where=program.name,
                    cure="number the actions 0, 1, 2 ... in program order",
                )
            if action.deps:
                yield from self._wait_for_deps(action, thread)
            if (fetch := self._cluster.fetch) is not None:
                waits = fetch.before(action, self.env.now)
                if waits:
                    yield self.env.timeout(waits)
                    self._core.lose("icache", int(self.env.now), action.work)
            execute = self._executes.get(type(action))
            if execute is None:
                raise InputError(f"action {action.id} is a {type(action).__name__}, which no core executes")
            yield from execute(action, thread)
        if walk is not None:
            walk.go_on(self.env.now, self._transfers, self._passed)
        done = Transaction(TxnCommand.WRITE, 0, 0, self._core.path)
        yield from self.completion.target.transport(done, thread)

    def _passed(self, action: Action) -> Transfer:
        """A transfer that is over, begun by an action that is passed over."""
        transfer = self._cluster.dma.take_id(0, action.work)
        assert transfer is not None
        return transfer

    def _wait_for_deps(self, action: Action, thread: Thread) -> Body:
        for dep in action.deps:
            if isinstance(action, _WAITS) and dep == action.transfer:
                continue
            transfer = self._transfers.get(dep)
            if transfer is not None and not transfer.over:
                thread.waits_for = f"the transfer of action {dep}, on which action {action.id} depends"
                if transfer.certain:
                    ends = transfer.ends_at_cycles or 0
                    if ends < self.env.now:
                        continue
                    if ends > self.env.now:
                        yield self.env.timeout(ends - self.env.now)
                    yield self.env.timeout()  # behind the end, which is in this cycle
                else:
                    yield transfer.ended
                self._core.lose("dma_wait", int(self.env.now), action.work)
            elif not 0 <= dep < action.id:
                thread.waits_for = f"action {dep}, on which action {action.id} depends, but which comes later"
                yield self.env.event()

    def _release(self, action: Release, thread: Thread) -> Body:
        self._cluster.effects.release(action)
        yield from ()

    def _start_transfer(self, action: DmaStart, thread: Thread) -> Body:
        transfer = yield from self._driver.start(
            self._core, action.commands, action.work, thread, code_cycles=action.code_cycles, alone=True
        )
        self._transfers[action.id] = transfer

    def _wait_transfer(self, action: DmaWait | UdmaWait, thread: Thread) -> Body:
        transfer = self._transfers.get(action.transfer)
        if transfer is None:
            thread.waits_for = f"the transfer of action {action.transfer}, which has not been started"
            yield self.env.event()
        elif isinstance(action, DmaWait):
            what = f"action {action.transfer}"
            yield from self._driver.wait(self._core, transfer, what, action.work, thread, alone=True)
        else:
            yield from self._wait_udma(transfer, action, thread)

    def _start_udma(self, action: UdmaStart, thread: Thread) -> Body:
        env = self.env
        transfer = self._transfers[action.id] = Transfer(
            -1, len(action.commands), action.work, Notification(env)
        )
        for command in action.commands:
            yield env.timeout(self._timing.l3.program_cycles)
            order = UdmaOrder(command, transfer)
            txn = Transaction(
                TxnCommand.WRITE, command.l3_address, command.size_bytes, self._core.path, extension=order
            )
            yield from self.udma.target.transport(txn, thread)
        if not action.commands:
            transfer.ended.notify_listeners()
        self._core.lose("dma_program", int(env.now), action.work)

    def _wait_udma(self, transfer: Transfer, action: UdmaWait, thread: Thread) -> Body:
        cycles = self._timing.event_unit.event_load_cycles
        if not transfer.over:
            thread.waits_for = f"the uDMA event of action {action.transfer}"
            yield transfer.ended
            cycles = self._timing.l3.wake_cycles
        yield self.env.timeout(cycles)
        self._core.lose("dma_wait", int(self.env.now), action.work)

    def _compute(self, action: Compute, thread: Thread) -> Body:
        """A kernel from its call to the end of the join, numbers included."""
        env, cluster, effect = self.env, self._cluster, action.effect
        crew = self._crews.get((id(action.team), action.fork)) or self._crew(action)
        if action.code_cycles:
            yield env.timeout(action.code_cycles)
            self._core.lose("dma_program", int(env.now), action.work)
        called = env.now
        if cluster.dma.at_rest and self.udma.target.idle:
            ended = self._compute_alone(action, crew, called)
            if ended > called:
                yield env.timeout(ended - called)
            return
        starts = {core: called + start for core, start in crew.starts.items()}
        first = min(starts.values())
        if first > called:
            yield env.timeout(first - called)
        under_way = None
        if effect is not None:
            under_way = cluster.effects.kernel_begin(crew.team.kernel, effect, action.work)
        run = cluster.begin_kernel(action, starts)
        thread.waits_for = crew.waits_for
        yield run.over
        cluster.end_kernel()
        if effect is not None and under_way is not None:
            cluster.effects.kernel_end(effect, under_way)
        ended = self._account(action, crew, called, _Shares.of(run, crew, called, env.now))
        if ended > env.now:
            yield env.timeout(ended - env.now)

    def _compute_alone(self, action: Compute, crew: _Crew, called: int) -> int:
        """A kernel nobody can see anything of before its join: it is one event. Returns when that ends."""
        effect, team = action.effect, crew.team
        if effect is not None:
            self._cluster.effects.kernel_alone(team.kernel, effect, action.work)
        cost = self._cluster.price_alone(team)
        shares = crew.shares
        if shares is None or cost is None or shares.cost is not cost:
            starts = {core: called + at for core, at in crew.starts.items()}
            run = self._cluster.whole_kernel(action, starts, cost)
            shares = crew.shares = _Shares.of(run, crew, called, max(run.end_cycles, called), cost)
        return self._account(action, crew, called, shares)

    def _account(self, action: Compute, crew: _Crew, called: int, shares: _Shares) -> int:
        """Account a kernel on all its cores; returns when the master goes on."""
        over = called + shares.over
        if shares.own is not None:
            self._core.compute(shares.own, called, action.work)
        if crew.workers is None or shares.team is None:
            return over
        # The barrier opens for the last arrival only, and nothing depends on the earlier ones.
        timing = self._timing.event_unit
        released = over + timing.barrier_wake_cycles
        ended = released + timing.join_cycles
        crew.workers.account(action.work, called + crew.pushed, shares.team, released, ended)
        return ended

    def _crew(self, action: Compute) -> _Crew:
        """Who computes a kernel, checked, and kept for those of the same team."""
        team, members, timing = action.team, self._members(action), self._timing.event_unit
        crew, own_start = _Crew(team), 0
        if action.fork:
            others = [member for member in members if member]
            crew.pushed = timing.fork_push_cycles
            own_start = max(timing.fork_push_cycles, timing.fork_master_cycles)
            crew.workers = self._teams.get(members)
            if crew.workers is None:
                workers = [self._cluster.cores[worker] for worker in others]
                fork_cycles = own_start - crew.pushed
                crew.workers = Workers(self._core, workers, fork_cycles, computes=0 in members)
                self._teams[members] = crew.workers
            crew.starts = dict.fromkeys(others, timing.fork_push_cycles + timing.fork_worker_cycles)
        if 0 in members:
            crew.starts[0] = own_start
        self._crews[id(team), action.fork] = crew
        return crew

    def _team_transfer(self, action: TeamTransfer, thread: Thread) -> Body:
        env, core, commands = self.env, self._core, action.commands
        if len(commands) > len(self._cluster.cores):
            raise InputError(
                f"the transfer is split over {len(commands)} cores, but the cluster has "
                f"{len(self._cluster.cores)}",
                where=f"action {action.id}",
                cure="use a smaller team or a SoC with more cores",
            )
        called = env.now
        workers = [member for member, of_member in enumerate(commands) if of_member and member != 0]
        events = self._cluster.events
        if events.timing.fork_push_cycles:
            yield env.timeout(events.timing.fork_push_cycles)
        job = TeamJob(action.work, env.now, events.barrier(1 + len(workers)), commands)
        if workers:
            events.push(job, workers)
            job.pushed_cycles = int(env.now)
        own_start = max(int(env.now), called + self._timing.event_unit.fork_master_cycles)
        if own_start > env.now:
            yield env.timeout(own_start - env.now)
        core.lose("fork", own_start, action.work)
        yield from core.move(commands[0] if commands else (), action.work, thread)
        thread.waits_for = "the join barrier of a transfer by the team"
        yield job.barrier.arrive()
        released = env.now
        core.lose("barrier", released, action.work)
        ended = released + self._timing.event_unit.join_cycles
        if ended > released:
            yield env.timeout(ended - released)
        core.lose("fork", ended, action.work)

    def _members(self, action: Compute) -> tuple[int, ...]:
        team = action.team
        members = team.members
        if team.size > len(self._cluster.cores):
            raise InputError(
                f"kernel {team.kernel!r} needs {team.size} cores, but the cluster has "
                f"{len(self._cluster.cores)}",
                where=f"action {action.id}",
                cure="use a smaller team or a SoC with more cores",
            )
        if not members or (not action.fork and members != (0,)):
            raise InputError(
                f"kernel {team.kernel!r} cannot run on cores {list(members)}",
                where=f"action {action.id}",
                cure="use at least one core for a kernel with fork, and only core 0 for one without",
            )
        return members

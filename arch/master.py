"""The master thread of the cluster: core 0 carries out the actions of a Program in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arch.core import Core
from arch.dma import Order, Transfer
from arch.event_unit import TeamJob
from arch.kernel_run import KernelRun
from arch.module import Body, Call, Module, Port, Thread
from arch.program import Action, Command, Compute, DmaStart, DmaWait, Program, Release
from arch.timing import DmaTiming
from arch.transaction import Target, Transaction, TxnCommand
from configs.errors import InputError

if TYPE_CHECKING:
    from arch.cluster import Cluster


class Master(Module):
    """SC_THREAD of core 0: takes a program from the mailbox, executes it, tells the fabric controller.

    An action has ended when the master goes on to the next one, except that a `DmaStart` has ended when its
    transfer has; the `DmaWait` of that transfer does not count its own start among its dependencies.
    """

    def __init__(self, cluster: Cluster, core: Core, timing: DmaTiming) -> None:
        super().__init__(cluster, "master")
        self._cluster = cluster
        self._core = core
        self._timing = timing
        self.completion: Port[Target] = Port(self, "completion")

    def reset(self) -> None:
        """No transfer begun; wait for a task."""
        self._transfers: dict[int, Transfer] = {}
        self._ended: set[int] = set()
        thread = Thread(self._core.path)
        self.spawn(thread, self._run(thread))

    def _run(self, thread: Thread) -> Body:
        thread.waits_for = "a task from the fabric controller"
        program: Program = yield self._cluster.task
        for core in self._cluster.cores:
            core.lose("offload", int(self.env.now))
        for position, action in enumerate(program.actions):
            if action.id != position:
                raise InputError(
                    f"action {position} of program {program.name!r} has id {action.id}",
                    where=program.name,
                    cure="number the actions in program order",
                )
            yield from self._wait_for_deps(action, thread)
            match action:
                case DmaStart():
                    yield from self._start_transfer(action, thread)
                case DmaWait():
                    yield from self._wait_transfer(action, thread)
                case Compute():
                    yield from self._compute(action, thread)
                case Release():
                    self._cluster.effects.release(action.places, action.work)
                case _:
                    raise InputError(f"the master cannot execute a {type(action).__name__}")
            self._ended.add(action.id)
        done = Transaction(TxnCommand.WRITE, 0, 0, self._core.path)
        yield from self.completion.target.transport(done, thread)

    def _wait_for_deps(self, action: Action, thread: Thread) -> Body:
        for dep in action.deps:
            if isinstance(action, DmaWait) and dep == action.transfer:
                continue
            transfer = self._transfers.get(dep)
            if transfer is not None and not transfer.over:
                thread.waits_for = f"the transfer of action {dep}, on which action {action.id} depends"
                yield transfer.ended
                self._core.lose("dma_wait", int(self.env.now), action.work)
            elif dep not in self._ended:
                thread.waits_for = f"action {dep}, on which action {action.id} depends, but which comes later"
                yield self.env.event()

    def _start_transfer(self, action: DmaStart, thread: Thread) -> Body:
        env, dma, timing = self.env, self._cluster.dma, self._timing
        transfer: Transfer = yield from dma.allocate(len(action.commands), action.work, thread)
        self._transfers[action.id] = transfer
        last = len(action.commands) - 1
        for position, command in enumerate(action.commands):
            yield env.timeout(programming_cycles(command, position, timing))
            txn = Transaction(
                TxnCommand.WRITE,
                command.l1_address,
                command.size_bytes,
                self._core.path,
                extension=Order(command, transfer, position == last),
            )
            yield from dma.transport(txn, thread)
        self._core.lose("dma_program", int(env.now), action.work)

    def _wait_transfer(self, action: DmaWait, thread: Thread) -> Body:
        env, timing = self.env, self._timing
        begun = int(env.now)
        transfer = self._transfers.get(action.transfer)
        if transfer is None:
            thread.waits_for = f"the transfer of action {action.transfer}, which has not been started"
            yield env.event()
            return
        if not transfer.over:
            yield env.timeout(timing.wait_check_cycles)
        found_over = transfer.ends_at_cycles is not None and transfer.ends_at_cycles <= env.now
        if not transfer.over:
            thread.waits_for = f"the DMA event of transfer {transfer.id} (action {action.transfer})"
            yield transfer.ended
        resume = begun + timing.wait_done_cycles
        if not found_over:
            resume = max(begun + timing.wait_sleep_min_cycles, int(env.now) + timing.wait_wake_cycles)
        if resume > env.now:
            yield env.timeout(resume - env.now)
        self._cluster.dma.free(transfer)
        self._core.lose("dma_wait", int(env.now), action.work)

    def _compute(self, action: Compute, thread: Thread) -> Body:
        members = self._members(action)
        if action.fork:
            yield from self._fork_and_join(action, members, thread)
        else:
            run = yield from self._execute(action, {0: int(self.env.now)}, thread)
            self._core.compute(run.shares[0], action.work)

    def _fork_and_join(self, action: Compute, members: list[int], thread: Thread) -> Body:
        env, cluster, core = self.env, self._cluster, self._core
        events, timing = cluster.events, cluster.events.timing
        called = int(env.now)
        if timing.fork_push_cycles:
            yield env.timeout(timing.fork_push_cycles)
        workers = [member for member in members if member != 0]
        barrier = events.barrier(1 + len(workers))
        job = TeamJob(action.team.kernel, action.work, int(env.now), barrier)
        if workers:
            yield from events.push(job, workers, thread)
        pushed = job.pushed_cycles = int(env.now)
        own_start = max(pushed, called + timing.fork_master_cycles)
        starts = dict.fromkeys(workers, pushed + timing.fork_worker_cycles)
        if 0 in members:
            starts[0] = own_start
        first = min(starts.values())
        if first > env.now:
            yield env.timeout(first - env.now)
        run = job.run = yield from self._execute(action, starts, thread)
        # The barrier opens for the last arrival only, so the earlier ones need no event of their own.
        thread.waits_for = f"the join barrier of kernel {action.team.kernel}"
        yield barrier.arrive(1 + len(workers))
        released = int(env.now)
        core.lose("fork", own_start, action.work)
        if 0 in run.shares:
            core.compute(run.shares[0], action.work)
        core.lose("barrier", released, action.work)
        if timing.join_cycles:
            yield env.timeout(timing.join_cycles)
            core.lose("fork", int(env.now), action.work)

    def _execute(self, action: Compute, starts: dict[int, int], thread: Thread) -> Call[KernelRun]:
        """The kernel from its first start (now) to its last end, numbers included."""
        cluster, effect = self._cluster, action.effect
        under_way = None
        if effect is not None:
            under_way = cluster.effects.kernel_begin(action.team.kernel, effect, action.work)
        run = cluster.begin_kernel(action.team, starts)
        thread.waits_for = f"the end of kernel {action.team.kernel}"
        yield run.over
        cluster.end_kernel()
        if effect is not None and under_way is not None:
            cluster.effects.kernel_end(effect, under_way)
        return run

    def _members(self, action: Compute) -> list[int]:
        team = action.team
        members = [core for core, work in enumerate(team.cores) if work is not None]
        if len(team.cores) > len(self._cluster.cores):
            raise InputError(
                f"kernel {team.kernel!r} wants {len(team.cores)} cores, the cluster has "
                f"{len(self._cluster.cores)}",
                where=f"action {action.id}",
                cure="make the team smaller or give the SoC more cores",
            )
        if not members or (not action.fork and members != [0]):
            raise InputError(
                f"kernel {team.kernel!r} has work for cores {members}",
                where=f"action {action.id}",
                cure="a forked kernel needs a core, a kernel without fork runs on core 0 only",
            )
        return members


def programming_cycles(command: Command, position: int, timing: DmaTiming) -> int:
    """Cycles the issuing core spends on the command at `position` of its transfer."""
    if position > 0:
        return timing.program_next_cycles
    return timing.program_1d_cycles if command.lines == 1 else timing.program_2d_cycles

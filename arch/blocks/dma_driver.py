# SPDX-License-Identifier: Apache-2.0
"""The code a core runs to program the DMA and to wait for it: what it costs, and on whose account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arch.blocks.dma import Dma, Order, Transfer
from arch.spec.program import Command
from arch.spec.timing import DmaTiming
from arch.systemc.module import Body, Call, Thread
from arch.systemc.transaction import Transaction, TxnCommand
from traces.events import Work

if TYPE_CHECKING:
    from arch.blocks.core import Core


class DmaDriver:
    """Programs transfers and waits for them on behalf of a core; the same code on every core.

    Programming is an ID read and the words of each command; waiting is a status read that finds the transfer
    over, or sleep until its event. The ID is freed at the end of the wait.
    """

    def __init__(self, dma: Dma, timing: DmaTiming) -> None:
        self._dma = dma
        self._timing = timing

    def start(
        self,
        core: Core,
        commands: tuple[Command, ...],
        work: Work,
        thread: Thread,
        *,
        code_cycles: int = 0,
        alone: bool = False,
    ) -> Call[Transfer]:
        """Program `commands` under one transfer ID, after `code_cycles` of other code.

        `alone` says that no other core programs the DMA meanwhile, and that no kernel runs. What it blocks
        while queues or IDs are taken is a wait for the DMA, accounted behind the programming.
        """
        dma, env, timing = self._dma, self._dma.env, self._timing
        transfer = dma.take_id(len(commands), work)
        begun = env.now + code_cycles
        if transfer is None:
            if code_cycles:
                yield env.timeout(code_cycles)
            transfer = yield from dma.allocate(len(commands), work, thread)
            if env.now > begun:
                core.lose("dma_program", begun, work)
                core.lose("dma_wait", env.now, work)
                begun = env.now
        cycles = [programming_cycles(command, 0, timing) for command in commands[:1]]
        if len(commands) > 1:
            cycles += [programming_cycles(commands[1], 1, timing)] * (len(commands) - 1)
        first, pushed = 0, begun
        if alone:
            first, pushed = dma.push_ahead(core.path, commands, transfer, begun, cycles)
        elif commands:
            pushed += cycles[0]
        if pushed > env.now:
            yield env.timeout(pushed - env.now)
        for position in range(first, len(commands)):
            if position > first:
                yield env.timeout(cycles[position])
            command = commands[position]
            order = Order(command, transfer, position == len(commands) - 1)
            address, size_bytes = command.l1_address, command.size_bytes
            txn = Transaction(TxnCommand.WRITE, address, size_bytes, core.path, order)
            yield from dma.transport(txn, thread)
        core.lose("dma_program", begun + sum(cycles), work)
        core.lose("dma_wait", env.now, work)
        return transfer

    def wait(
        self, core: Core, transfer: Transfer, what: str, work: Work, thread: Thread, *, alone: bool = False
    ) -> Body:
        """Wait until `transfer` (called `what` in a deadlock) has ended, and free its ID.

        `alone` is that of `start`: then the end of a command that has begun is the one known now.
        """
        env, timing = self._dma.env, self._timing
        begun = env.now
        checks = begun + timing.wait_check_cycles
        # A transfer that cannot end before the status is read needs no event at that instant, and a core that
        # is alone none at all: nobody sees when it looks.
        if not alone and not transfer.over and transfer.earliest_end_cycles <= checks:
            yield env.timeout(timing.wait_check_cycles)
        found_over = _is_over_at(transfer, checks)
        if not transfer.over and (not alone or transfer.certain_end_cycles(begun) is None):
            thread.waits_for = f"the DMA event of transfer {transfer.id} ({what})"
            yield transfer.ended
        resume = begun + max(timing.wait_done_cycles, timing.wait_check_cycles)
        if not (found_over or (alone and _is_over_at(transfer, checks))):
            ended = max(env.now, transfer.ends_at_cycles or 0)
            resume = max(begun + timing.wait_sleep_min_cycles, ended + timing.wait_wake_cycles)
        if resume > env.now:
            yield env.timeout(resume - env.now)
        if transfer.ends_at_cycles == env.now:
            yield env.timeout()  # behind the end of the transfer, which is in this cycle
        self._dma.free(transfer)
        core.lose("dma_wait", env.now, work)


def _is_over_at(transfer: Transfer, cycles: int) -> bool:
    """Whether its last command has ended at `cycles`, as far as is known."""
    return transfer.ends_at_cycles is not None and transfer.ends_at_cycles <= cycles


def programming_cycles(command: Command, position: int, timing: DmaTiming) -> int:
    """Cycles the issuing core spends on the command at `position` of its transfer."""
    if position > 0:
        return timing.program_next_cycles
    return timing.program_1d_cycles if command.lines == 1 else timing.program_2d_cycles

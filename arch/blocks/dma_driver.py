# SPDX-License-Identifier: Apache-2.0
"""The code a core runs to program the DMA and to wait for it: what it costs, and on whose account."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arch.blocks.dma import Dma, Transfer, make_order
from arch.spec.program import Command
from arch.spec.timing import DmaTiming
from arch.systemc.module import Body, Call, Thread
from arch.systemc.transaction import TxnCommand, make_transaction
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

    def start(self, core: Core, commands: tuple[Command, ...], work: Work, thread: Thread) -> Call[Transfer]:
        """Program `commands` under one transfer ID.

        What it blocks while queues or IDs are taken is a wait for the DMA, accounted behind the programming.
        """
        dma, env = self._dma, self._dma.env
        begun = int(env.now)
        transfer: Transfer = yield from dma.allocate(len(commands), work, thread)
        if env.now > begun:
            core.lose("dma_program", begun, work)
            core.lose("dma_wait", int(env.now), work)
        last = len(commands) - 1
        programmed_cycles = int(env.now)
        for position, command in enumerate(commands):
            cycles = programming_cycles(command, position, self._timing)
            programmed_cycles += cycles
            yield env.timeout(cycles)
            order = make_order((command, transfer, position == last))
            address, size_bytes = command.l1_address, command.size_bytes
            txn = make_transaction((TxnCommand.WRITE, address, size_bytes, core.path, 0, None, order))
            yield from dma.transport(txn, thread)
        core.lose("dma_program", programmed_cycles, work)
        core.lose("dma_wait", int(env.now), work)
        return transfer

    def wait(self, core: Core, transfer: Transfer, what: str, work: Work, thread: Thread) -> Body:
        """Wait until `transfer` (called `what` in a deadlock) has ended, and free its ID."""
        env, timing = self._dma.env, self._timing
        begun = int(env.now)
        checks = begun + timing.wait_check_cycles
        # A transfer that cannot end before the status is read needs no event at that instant.
        if not transfer.over and transfer.earliest_end_cycles <= checks:
            yield env.timeout(timing.wait_check_cycles)
        found_over = transfer.ends_at_cycles is not None and transfer.ends_at_cycles <= checks
        if not transfer.over:
            thread.waits_for = f"the DMA event of transfer {transfer.id} ({what})"
            yield transfer.ended
        resume = begun + timing.wait_done_cycles
        if not found_over:
            resume = max(begun + timing.wait_sleep_min_cycles, int(env.now) + timing.wait_wake_cycles)
        if resume > env.now:
            yield env.timeout(resume - env.now)
        self._dma.free(transfer)
        core.lose("dma_wait", int(env.now), work)


def programming_cycles(command: Command, position: int, timing: DmaTiming) -> int:
    """Cycles the issuing core spends on the command at `position` of its transfer."""
    if position > 0:
        return timing.program_next_cycles
    return timing.program_1d_cycles if command.lines == 1 else timing.program_2d_cycles

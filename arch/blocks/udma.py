# SPDX-License-Identifier: Apache-2.0
"""The uDMA: moves bytes between L2 and HyperRAM beside the cluster, over one HyperBus."""

from __future__ import annotations

from collections import deque

from arch.blocks.dma import Transfer
from arch.blocks.l2 import ExternalMemory, hyper_bus_cycles
from arch.memories.effects import Effects
from arch.spec.program import UdmaCommand
from arch.spec.timing import L3Timing
from arch.systemc.clock import Clock
from arch.systemc.module import Body, Module, Notification, Port, Thread
from arch.systemc.transaction import Transaction
from configs.errors import InputError
from configs.values import Struct
from traces.events import TRANSFER, Slice, Tracer


class UdmaOrder(Struct, frozen=True):
    """What is written into the uDMA's registers: a command that belongs to a transfer."""

    command: UdmaCommand
    transfer: Transfer


class Udma(Module):
    """One engine for both directions, as the bus is half duplex; orders run in the order they come.

    An order takes the bus for its bursts: each pays its set-up and moves at the rate of the bus, in cycles of
    the peripheral clock; the sum is rounded up to cluster cycles. `queued_transfers` orders of each direction
    may wait; a further one blocks its issuer.
    """

    def __init__(
        self,
        parent: Module,
        name: str,
        timing: L3Timing,
        peripheral: Clock,
        cluster: Clock,
        effects: Effects,
        tracer: Tracer | None,
    ) -> None:
        super().__init__(parent, name)
        self.memory: Port[ExternalMemory] = Port(self, "memory")
        self._timing = timing
        self._clocks = (peripheral, cluster)
        self._effects = effects
        self._tracer = tracer

    def reset(self) -> None:
        """No order."""
        self._queue: deque[UdmaOrder] = deque()
        self._busy = False
        self._arrived: Notification | None = None
        self._moved_up: Notification | None = None
        thread = Thread(self.path)
        self.spawn(thread, self._run(thread))

    @property
    def idle(self) -> bool:
        """Whether no order is queued or under way."""
        return not self._queue and not self._busy

    def transport(self, txn: Transaction, thread: Thread) -> Body:
        """Register port: `txn.extension` is a `UdmaOrder`; blocks while its channel's queue is full.

        Raises `InputError` for an order that is empty or leaves one of its memories.
        """
        order = txn.extension
        if not isinstance(order, UdmaOrder):
            raise InputError(f"send a UdmaOrder, not a {type(order).__name__}", where=self.path)
        command = order.command
        if command.size_bytes <= 0:
            raise InputError(f"a uDMA transfer has {command.size_bytes} B: use 1 B or more", where=self.path)
        for level, address in (("l2", command.l2_address), ("l3", command.l3_address)):
            self._effects.storage(level).check(address, command.size_bytes, "a uDMA transfer")
        while self._waiting(command.to_l2) >= self._timing.queued_transfers:
            thread.waits_for = "room in the queue of the uDMA"
            self._moved_up = self._moved_up or Notification(self.env)
            yield self._moved_up
        self._queue.append(order)
        if self._arrived is not None:
            self._arrived.notify()
            self._arrived = None

    def _waiting(self, to_l2: bool) -> int:
        return sum(order.command.to_l2 == to_l2 for order in self._queue)

    def _run(self, thread: Thread) -> Body:
        env = self.env
        while True:
            while not self._queue:
                thread.waits_for = "a uDMA transfer"
                self._arrived = Notification(env)
                yield self._arrived
            order = self._queue.popleft()
            self._busy = True
            if self._moved_up is not None:
                self._moved_up.notify()
                self._moved_up = None
            yield from self._serve(order)
            self._busy = False

    def _serve(self, order: UdmaOrder) -> Body:
        command, transfer, memory = order.command, order.transfer, self.memory.target
        start = max(int(self.env.now), memory.link_free(to_l1=True), memory.link_free(to_l1=False))
        end = start + hyper_bus_cycles(command.size_bytes, self._timing, *self._clocks)
        memory.occupy(end, to_l1=True)
        if start > self.env.now:
            yield self.env.timeout(start - self.env.now)
        under_way = self._effects.dma_begin(command, transfer.work)
        yield self.env.timeout(end - start)
        self._effects.dma_end(command, under_way)
        if self._tracer is not None:
            size_bytes = command.size_bytes
            self._tracer.slice(Slice(self.path, start, end, TRANSFER, transfer.work, bytes=size_bytes))
        transfer.remaining -= 1
        if transfer.over:
            transfer.ends_at_cycles = end
            transfer.ended.notify_listeners()

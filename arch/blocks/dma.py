# SPDX-License-Identifier: Apache-2.0
"""The cluster DMA (mchan): per-core command queue, global queues, one engine per direction, transfer IDs."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from arch.blocks.bursts import BurstRules
from arch.blocks.dma_channel import DmaChannel
from arch.blocks.order import Order, Transfer
from arch.memories.effects import Effects
from arch.memories.memory import Storage, check_command
from arch.pricing.line_caches import Reads
from arch.spec.program import Command
from arch.spec.timing import DmaTiming, L2Timing
from arch.systemc.module import Body, Call, Module, Notification, Thread
from arch.systemc.transaction import Transaction
from configs.errors import InputError
from traces.events import Tracer, Work

__all__ = ["Dma", "DmaChannel", "Order", "Transfer"]


class Dma(Module):
    """Command queues of the cores, global queues and engines, transfer IDs."""

    def __init__(
        self,
        parent: Module,
        name: str,
        timing: DmaTiming,
        l1: Storage,
        word_bytes: int,
        effects: Effects,
        tracer: Tracer | None,
    ) -> None:
        super().__init__(parent, name)
        self._timing = timing
        self._l1 = l1
        self._effects = effects
        rules = BurstRules.of(timing, word_bytes)
        self.inward, self.outward = (
            DmaChannel(self, label, to_l1=to_l1, rules=rules, timing=timing, effects=effects, tracer=tracer)
            for label, to_l1 in (("in", True), ("out", False))
        )
        self._external: Mapping[str, Storage] = {
            level: effects.storages[level] for level in self.inward.memories
        }

    def reset(self) -> None:
        """No command, no transfer ID taken."""
        self._queues: dict[str, deque[Order]] = {}
        self._waiting = 0
        self._freed: list[int] = []
        self._unused = 0  # all below have been taken once; there may be more than fit a list
        self._taken: set[int] = set()
        self._id_freed: Notification | None = None
        self._slot_freed: Notification | None = None
        self._pilot = ""

    @property
    def at_rest(self) -> bool:
        """Whether nothing is queued, under way or in flight."""
        if self._effects.catch_up is not None:
            self.catch_up()
        return self._effects.catch_up is None and self.idle

    @property
    def settled(self) -> bool:
        """Whether it is at rest and what was moved holds nothing up any more."""
        return self.at_rest and self.inward.settled and self.outward.settled

    @property
    def taken(self) -> int:
        """Transfer IDs that are taken."""
        return len(self._taken)

    @property
    def idle(self) -> bool:
        """Whether no command is queued or under way."""
        return not self._waiting and self.inward.idle and self.outward.idle

    def take_id(self, commands: int, work: Work) -> Transfer | None:
        """The transfer of `commands` commands under the lowest free ID; None while all are taken."""
        if self._freed:
            identifier = heappop(self._freed)
        elif self._unused < self._timing.transfer_ids:
            identifier = self._unused
            self._unused += 1
        else:
            return None
        self._taken.add(identifier)
        transfer = Transfer(identifier, commands, work, Notification(self.env))
        if commands == 0:
            transfer.ends_at_cycles = int(self.env.now)
            transfer.ended.notify_listeners()
        return transfer

    def allocate(self, commands: int, work: Work, thread: Thread) -> Call[Transfer]:
        """`take_id`, waiting for one."""
        while (transfer := self.take_id(commands, work)) is None:
            thread.waits_for = f"a free DMA transfer ID (all {self._timing.transfer_ids} are taken)"
            self._id_freed = self._id_freed or Notification(self.env)
            yield self._id_freed
        return transfer

    def free(self, transfer: Transfer) -> None:
        """Give the ID of an ended transfer back."""
        if transfer.id in self._taken:
            self._taken.discard(transfer.id)
            heappush(self._freed, transfer.id)
        if self._id_freed is not None:
            self._id_freed.notify()
            self._id_freed = None

    def push_ahead(
        self,
        master: str,
        commands: Sequence[Command],
        transfer: Transfer,
        begin_cycles: int,
        cycles: Sequence[int],
    ) -> tuple[int, int]:
        """Take the first commands of a transfer at once, as far as it is certain when each will be taken.

        For a core that is alone at the DMA, while no kernel runs: it programs the commands from
        `begin_cycles` on, each for its entry of `cycles`. Returns how many are taken and when the core has
        pushed the last of all, or may push the first that is not taken.
        """
        if commands:
            self._queues.setdefault(master, deque())  # cores take turns in the order in which they came first
            pushed = self._fly(master, commands, transfer, begin_cycles, cycles)
            if pushed is not None:
                return len(commands), pushed
        pushed_cycles, taken_cycles = begin_cycles, 0
        last, one_slot = len(commands) - 1, self._timing.core_queue_commands == 1
        certain = not self._waiting and self.inward.is_certain and self.outward.is_certain
        for position, command in enumerate(commands):
            pushed_cycles += cycles[position]
            if one_slot and taken_cycles > pushed_cycles:
                pushed_cycles = taken_cycles
            if not certain:
                return position, pushed_cycles
            channel = self.inward if command.to_l1 else self.outward
            taken = channel.room_at(pushed_cycles)
            # One that has to wait is sure to be taken by now only if the next one has to wait for it.
            if taken is None or (taken > pushed_cycles and (position == last or not one_slot)):
                return position, pushed_cycles
            taken_cycles = taken
            channel.accept(Order(command, transfer, position == last), taken_cycles)
            certain = command.external_level == "l2" or not self._timing.queued_until_cut
        return len(commands), pushed_cycles

    def _fly(
        self,
        master: str,
        commands: Sequence[Command],
        transfer: Transfer,
        begin_cycles: int,
        cycles: Sequence[int],
    ) -> int | None:
        """When all commands are pushed, if they are and it is certain how they will go; else None."""
        to_l1 = commands[0].to_l1
        channel = self.inward if to_l1 else self.outward
        self.check(commands)
        for command in commands:
            if command.to_l1 != to_l1 or command.external_level != "l2":
                break
        else:
            if not self._waiting:
                slot_cycles = max(self.inward.accepted_cycles, self.outward.accepted_cycles)
                pushed = channel.fly(commands, transfer, begin_cycles, cycles, slot_cycles)
                if pushed is not None:
                    self._pilot = master
                    self._effects.catch_up = self.catch_up
                    return pushed
        self.land()
        return None

    def catch_up(self) -> None:
        """Begin and end, in order, the commands in flight that have by now."""
        self._advance(self.env.now, self.env.set_cycles)

    def _advance(self, until: int, since: int) -> None:
        inward, outward, limit = self.inward, self.outward, (until, since)
        while inward.flights and outward.flights:
            first, second = inward.next_instant, outward.next_instant
            if min(first, second) > limit:
                return
            if first <= second:
                inward.advance(*min(second, limit))
            else:
                outward.advance(*min(first, limit))
        for channel in (inward, outward):
            if channel.flights:
                channel.advance(until, since)
                if channel.flights:
                    return
        self._effects.catch_up = None

    def land(self) -> None:
        """From now on the engines work event by event, until they are idle."""
        if self.inward.flights or self.outward.flights:
            self.catch_up()
            self.inward.land()
            self.outward.land()
            self._effects.catch_up = None

    def run_out(self) -> int:
        """Begin and end all that is in flight; returns when that will have been."""
        channels = [channel for channel in (self.inward, self.outward) if channel.flights]
        ends = max([channel.flights_end_cycles for channel in channels], default=0)
        self._advance(ends, ends)
        return ends

    def reads_ahead(self, l2: L2Timing) -> Reads:
        """What a line of code asked from L2 waits for reads, see `DmaChannel.reads_ahead`."""
        waiting = [order for queue in self._queues.values() for order in queue] if self._waiting else []
        reads = [order for order in waiting if order.command.to_l1 and order.command.external_level == "l2"]
        return self.inward.reads_ahead(reads, l2)

    def hold(self, order: Order) -> None:
        """An order of the core that is alone waits in its queue."""
        self._queues[self._pilot].append(order)
        self._waiting += 1

    def transport(self, txn: Transaction, thread: Thread) -> Body:
        """Control port: `txn.extension` is an `Order`; blocks the core while its command queue is full.

        Raises `InputError` for a command that is too long, empty, or outside one of its memories.
        """
        order = txn.extension
        if not isinstance(order, Order):
            raise InputError(f"send an Order, not a {type(order).__name__}", where=self.path)
        self.check((order.command,))
        self.land()
        queue = self._queues.setdefault(txn.master, deque())
        while len(queue) >= self._timing.core_queue_commands:
            thread.waits_for = "room in its DMA command queue"
            self._slot_freed = self._slot_freed or Notification(self.env)
            yield self._slot_freed
        queue.append(order)
        self._waiting += 1
        self.refill()

    def refill(self) -> None:
        """Move commands on, and wake the cores that wait for a slot in their queues."""
        if self._waiting and self._move_on() and self._slot_freed is not None:
            self._slot_freed.notify()
            self._slot_freed = None

    def _move_on(self) -> bool:
        """Whether commands moved on: while the heads of the cores' queues find room in their global queues.

        The cores take turns; a full global queue holds up the core whose next command wants into it.
        """
        moved = False
        rest = deque([queue for queue in self._queues.values() if queue])
        while rest:
            queue = rest.popleft()
            channel = self.inward if queue[0].command.to_l1 else self.outward
            if channel.has_room:
                channel.accept(queue.popleft(), self.env.now)
                self._waiting -= 1
                moved = True
                if queue:
                    rest.append(queue)
            else:
                channel.tell_room()
        return moved

    def check(self, commands: Sequence[Command]) -> None:
        """Raise `InputError` for a command that cannot be carried out."""
        timing, l1_bytes = self._timing, self._l1.size_bytes
        for command in commands:
            lines, line_bytes, near = command.lines, command.line_bytes, command.l1_address
            size_bytes, far, stride_bytes = lines * line_bytes, command.external_address, command.stride_bytes
            limit_bytes = timing.max_command_1d_bytes if lines == 1 else timing.max_command_2d_bytes
            external = self._external.get(command.external_level)
            if (
                external is None
                or not 0 < size_bytes <= limit_bytes
                or not 0 <= near <= l1_bytes - size_bytes
                or not 0 <= far <= external.size_bytes - line_bytes - (lines - 1) * stride_bytes
                or stride_bytes < 0
                or lines < 0
            ):
                self._refuse(command)

    def _refuse(self, command: Command) -> None:
        if command.external_level not in self.inward.memories:
            raise InputError(
                f"the cluster DMA does not reach memory level {command.external_level!r}",
                where=self.path,
                cure=f"use one of {', '.join(self.inward.memories)}",
            )
        flat = command.lines == 1
        limit_bytes = self._timing.max_command_1d_bytes if flat else self._timing.max_command_2d_bytes
        if command.size_bytes > limit_bytes:
            raise InputError(
                f"a {'1D' if flat else '2D'} DMA command moves {command.size_bytes} B, but its length "
                f"field holds at most {limit_bytes} B",
                where=self.path,
                cure=f"split the transfer into several commands of at most {limit_bytes} B each",
            )
        check_command(command, self._l1, self._external[command.external_level])

"""The cluster DMA (mchan): per-core command queue, global queues, one engine per direction, transfer IDs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arch.bursts import BurstRules, EngineState, bursts_of, run_command
from arch.effects import Effects
from arch.l2 import ExternalMemory
from arch.memory import Storage, check_command
from arch.module import Body, Call, Module, Notification, Port, Thread
from arch.pricing import Traffic
from arch.program import Command
from arch.timing import DmaTiming
from arch.transaction import Transaction, TxnCommand
from configs.errors import InputError
from traces.events import TRANSFER, Slice, Tracer, Work

_MAX_MEMOISED = 4096


class Transfer:
    """All commands under one transfer ID; ends when the last of them has."""

    __slots__ = ("ended", "ends_at_cycles", "id", "remaining", "work")

    def __init__(self, identifier: int, commands: int, work: Work, ended: Notification) -> None:
        self.id = identifier
        self.remaining = commands
        self.work = work
        self.ends_at_cycles: int | None = None
        self.ended = ended

    @property
    def over(self) -> bool:
        """Whether the last byte of the last command has arrived."""
        return self.remaining == 0


@dataclass(frozen=True, slots=True)
class Order:
    """What a core writes into its command queue: a command under a transfer ID."""

    command: Command
    transfer: Transfer
    last: bool


@dataclass(slots=True)
class _Queued:
    order: Order
    ready_cycles: int
    """Earliest cycle of the first burst request."""


class DmaChannel(Module):
    """The engine of one direction: runs the commands of its global queue strictly in order."""

    def __init__(
        self,
        parent: Dma,
        name: str,
        *,
        to_l1: bool,
        rules: BurstRules,
        timing: DmaTiming,
        effects: Effects,
        tracer: Tracer,
    ) -> None:
        super().__init__(parent, name)
        self.to_l1 = to_l1
        self.queue: deque[_Queued] = deque()
        self.memories: dict[str, Port[ExternalMemory]] = {level: Port(self, level) for level in ("l2", "l3")}
        self.traffic: Port[Callable[[Traffic, bool], None]] = Port(self, "traffic")
        self._dma = parent
        self._rules = rules
        self._latency_cycles = timing.command_latency_cycles
        self._room = timing.global_queue_commands
        self._effects = effects
        self._tracer = tracer
        self._direction = Traffic.IN if to_l1 else Traffic.OUT
        self._known: dict[tuple[object, ...], tuple[int, EngineState]] = {}

    def reset(self) -> None:
        """Empty queue, idle engine."""
        self.queue.clear()
        self.busy = False
        self._state = EngineState()
        self._arrived: Notification | None = None
        thread = Thread(self.path)
        self.spawn(thread, self._run(thread))

    @property
    def has_room(self) -> bool:
        """Whether the global queue of this direction takes another command."""
        return len(self.queue) < self._room

    def accept(self, order: Order) -> None:
        """A command moves from a core's queue into the global queue."""
        now = self.env.now
        self.queue.append(_Queued(order, int(now) + self._latency_cycles))
        self._tracer.counter(self.path, "queued commands", int(now), len(self.queue))
        if self._arrived is not None:
            self._arrived.notify()
            self._arrived = None

    def _run(self, thread: Thread) -> Body:
        env = self.env
        while True:
            while not self.queue:
                thread.waits_for = "a DMA command"
                self._arrived = Notification(env)
                yield self._arrived
            if self.queue[0].ready_cycles > env.now:
                yield env.timeout(self.queue[0].ready_cycles - env.now)
            entry = self.queue.popleft()
            self.busy = True
            start = int(env.now)
            self._tracer.counter(self.path, "queued commands", start, len(self.queue))
            self._dma.refill()
            yield from self._serve(entry, start, thread)
            self.busy = False
            if not (self.queue and self.queue[0].ready_cycles <= env.now):
                self.traffic.target(self._direction, False)

    def _serve(self, entry: _Queued, start: int, thread: Thread) -> Body:
        order = entry.order
        command, transfer = order.command, order.transfer
        memory = self.memories[command.external_level].target
        end = max(start + 1, self._end_cycles(command, entry.ready_cycles, memory))
        if order.last:
            transfer.ends_at_cycles = end
        self.traffic.target(self._direction, True)
        under_way = self._effects.dma_begin(command, transfer.work)
        txn = Transaction(
            TxnCommand.READ if self.to_l1 else TxnCommand.WRITE,
            command.external_address,
            command.size_bytes,
            self.path,
            delay_cycles=end - start,
            extension=command,
        )
        yield from memory.transport(txn, thread)
        self._effects.dma_end(command, under_way)
        self._tracer.slice(Slice(self.path, start, end, TRANSFER, transfer.work, bytes=command.size_bytes))
        transfer.remaining -= 1
        if transfer.over:
            transfer.ended.notify()

    def _end_cycles(self, command: Command, ready: int, memory: ExternalMemory) -> int:
        """Work out the end of a command, and remember the state it leaves."""
        width = self._rules.words_per_cycle
        shared = max(self._state.link_free, memory.link_free(to_l1=self.to_l1))
        state = self._state._replace(link_free=shared).since(ready, width).settled()
        key = (
            command.line_bytes,
            command.lines,
            command.l1_address % self._rules.word_bytes,
            command.external_level,
            state,
        )
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _MAX_MEMOISED:
                self._known.clear()
            link = memory.link(to_l1=self.to_l1)
            known = run_command(bursts_of(command, self._rules), state, self._rules, link, to_l1=self.to_l1)
            self._known[key] = known
        end, after = known
        self._state = after.since(-ready, width)
        memory.occupy(self._state.link_free, to_l1=self.to_l1)
        return end + ready


class Dma(Module):
    """Command queue of the programming core, global queues and engines, transfer IDs."""

    def __init__(
        self,
        parent: Module,
        name: str,
        timing: DmaTiming,
        l1: Storage,
        word_bytes: int,
        effects: Effects,
        tracer: Tracer,
    ) -> None:
        super().__init__(parent, name)
        self._timing = timing
        self._l1 = l1
        self._storages: Mapping[str, Storage] = effects.storages
        rules = BurstRules.of(timing, word_bytes)
        self.inward, self.outward = (
            DmaChannel(self, label, to_l1=to_l1, rules=rules, timing=timing, effects=effects, tracer=tracer)
            for label, to_l1 in (("in", True), ("out", False))
        )
        self._core_queue: deque[Order] = deque()

    def reset(self) -> None:
        """No command, no transfer ID taken."""
        self._core_queue.clear()
        self._taken: set[int] = set()
        self._id_freed: Notification | None = None
        self._slot_freed: Notification | None = None

    @property
    def idle(self) -> bool:
        """Whether no command is queued or under way."""
        channels = (self.inward, self.outward)
        return not self._core_queue and not any(channel.queue or channel.busy for channel in channels)

    def allocate(self, commands: int, work: Work, thread: Thread) -> Call[Transfer]:
        """Take a free transfer ID for `commands` commands, waiting for one; returns the `Transfer`."""
        while len(self._taken) >= self._timing.transfer_ids:
            thread.waits_for = f"a free DMA transfer ID (all {self._timing.transfer_ids} are taken)"
            self._id_freed = Notification(self.env)
            yield self._id_freed
        identifier = next(n for n in range(self._timing.transfer_ids) if n not in self._taken)
        self._taken.add(identifier)
        transfer = Transfer(identifier, commands, work, Notification(self.env))
        if commands == 0:
            transfer.ends_at_cycles = int(self.env.now)
            transfer.ended.notify()
        return transfer

    def free(self, transfer: Transfer) -> None:
        """Give the ID of an ended transfer back."""
        self._taken.discard(transfer.id)
        if self._id_freed is not None:
            self._id_freed.notify()
            self._id_freed = None

    def transport(self, txn: Transaction, thread: Thread) -> Body:
        """Control port: `txn.extension` is an `Order`; blocks the core while its command queue is full.

        Raises `InputError` for a command that is too long, empty, or outside one of its memories.
        """
        order = txn.extension
        if not isinstance(order, Order):
            raise InputError("the DMA control port takes orders only", where=self.path)
        self._check(order.command)
        while len(self._core_queue) >= self._timing.core_queue_commands:
            thread.waits_for = "room in its DMA command queue"
            self._slot_freed = Notification(self.env)
            yield self._slot_freed
        self._core_queue.append(order)
        self.refill()

    def refill(self) -> None:
        """Move commands on while the head of the core's queue finds room in its global queue."""
        queue = self._core_queue
        moved = False
        while queue:
            channel = self.inward if queue[0].command.to_l1 else self.outward
            if not channel.has_room:
                break
            channel.accept(queue.popleft())
            moved = True
        if moved and self._slot_freed is not None:
            self._slot_freed.notify()
            self._slot_freed = None

    def _check(self, command: Command) -> None:
        if command.external_level not in self.inward.memories:
            raise InputError(
                f"the DMA does not reach memory level {command.external_level!r}",
                where=self.path,
                cure=f"use one of {', '.join(self.inward.memories)}",
            )
        if command.size_bytes > self._timing.max_command_bytes:
            raise InputError(
                f"a DMA command of {command.size_bytes} B is longer than its length field allows "
                f"({self._timing.max_command_bytes} B)",
                where=self.path,
                cure="cut it into several commands under the same transfer",
            )
        check_command(command, self._l1, self._storages[command.external_level])

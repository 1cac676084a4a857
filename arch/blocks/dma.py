# SPDX-License-Identifier: Apache-2.0
"""The cluster DMA (mchan): per-core command queue, global queues, one engine per direction, transfer IDs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import simpy

from arch.blocks.bursts import IDLE, BurstRules, EngineState, Pace, bursts_of, run_command
from arch.blocks.l2 import ExternalMemory
from arch.blocks.progress import Progress
from arch.memories.effects import Effects
from arch.memories.memory import Storage, check_command
from arch.pricing.cost_model import Traffic
from arch.spec.program import Command
from arch.spec.timing import DmaTiming
from arch.systemc.module import Body, Call, Module, Notification, Port, Thread
from arch.systemc.transaction import Transaction, TxnCommand, make_transaction
from configs.errors import InputError
from traces.events import TRANSFER, Tracer, Work, made_by, make_slice

_MAX_MEMOISED = 4096


class Transfer:
    """All commands under one transfer ID; ends when the last of them has."""

    __slots__ = ("earliest_end_cycles", "ended", "ends_at_cycles", "id", "remaining", "work")

    def __init__(self, identifier: int, commands: int, work: Work, ended: Notification) -> None:
        self.id = identifier
        self.remaining = commands
        self.work = work
        self.ends_at_cycles: int | None = None
        """When it ends as far as is known; None before its last command has begun."""
        self.earliest_end_cycles = 0
        """It will not end before; cores that are in the way in L1 can only make it later."""
        self.ended = ended

    @property
    def over(self) -> bool:
        """Whether the last byte of the last command has arrived."""
        return self.remaining == 0


class Order(NamedTuple):
    """What a core writes into its command queue: a command under a transfer ID."""

    command: Command
    transfer: Transfer
    last: bool


make_order = made_by(Order)


_Shape = tuple[int, int, int, int, int]
"""All of a command that its bursts depend on."""


@dataclass(slots=True)
class _Queued:
    order: Order
    ready_cycles: int
    """Earliest cycle of the first burst request."""
    shape: _Shape
    foreseen: tuple[EngineState, tuple[int, EngineState]] | None = None
    """State of the engine before it and what comes of it at full pace, as known when it was queued."""


class _Served:
    """The command an engine works on, and the state of the engine when it began."""

    __slots__ = ("alarm_at", "before", "entry", "memory", "over", "progress")

    progress: Progress

    def __init__(
        self, entry: _Queued, memory: ExternalMemory, before: EngineState, over: Notification
    ) -> None:
        self.entry = entry
        self.memory = memory
        self.before = before
        self.over = over
        self.alarm_at = -1

    def ring(self, alarm: simpy.Event) -> None:
        """An alarm goes off, whose value is the cycle it was set for."""
        if alarm.value == self.alarm_at and not self.over.processed:
            self.over.fire()


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
        tracer: Tracer | None,
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
        self._until_cut = timing.queued_until_cut
        self._effects = effects
        self._tracer = tracer
        self._direction = Traffic.IN if to_l1 else Traffic.OUT
        self._known: dict[tuple[object, ...], tuple[int, EngineState]] = {}
        self._bursts: dict[tuple[object, ...], list[tuple[int, int]]] = {}

    def reset(self) -> None:
        """Empty queue, idle engine."""
        self.queue.clear()
        self.busy = False
        self._memory = {level: port.target for level, port in self.memories.items()}
        self._tell_traffic = self.traffic.target
        self._state = IDLE
        self._origin = 0
        self._pace: Pace | None = None
        self._under_way: _Served | None = None
        # Where commands are queued until they are cut: when each is, and what the accepted ones leave behind.
        self._cuts: deque[int] = deque()
        self._ahead = IDLE
        self._ahead_origin = 0
        self._room_alarm_at = -1
        self._arrived: Notification | None = None
        thread = Thread(self.path)
        self.spawn(thread, self._run(thread))

    @property
    def has_room(self) -> bool:
        """Whether the global queue of this direction takes another command."""
        if not self._until_cut:
            return len(self.queue) < self._room
        cuts, now = self._cuts, self.env.now
        while cuts and cuts[0] <= now:
            cuts.popleft()
        return len(cuts) < self._room

    def accept(self, order: Order) -> None:
        """A command moves from a core's queue into the global queue."""
        now = self.env.now
        entry = _Queued(order, int(now) + self._latency_cycles, self._shape(order.command))
        if self._until_cut:
            self._cut(entry)
        self.queue.append(entry)
        if self._tracer is not None:
            self._tracer.counter(self.path, "queued commands", int(now), len(self.queue))
        if self._arrived is not None:
            self._arrived.notify(self._latency_cycles)
            self._arrived = None

    def _cut(self, entry: _Queued) -> None:
        """Work out when the bursts of a command will have been cut, as far as is known now."""
        if not self.queue and not self.busy:
            self._ahead, self._ahead_origin = self._state, self._origin
        origin = entry.ready_cycles
        before = self._ahead.seen_from(origin - self._ahead_origin, self._rules.words_per_cycle)
        memory = self._memory[entry.order.command.external_level]
        result = self._result_of(entry, memory, before, None)
        entry.foreseen = before, result
        self._ahead = result[1]
        self._ahead_origin = origin
        self._cuts.append(self._ahead.cut + origin)

    def tell_room(self) -> None:
        """A core waits for room: look again once the oldest command is cut."""
        if self._cuts and self._cuts[0] != self._room_alarm_at:
            self._room_alarm_at = self._cuts[0]
            alarm = self.env.timeout(max(0, self._room_alarm_at - self.env.now))
            alarm.callbacks.append(lambda _: self._dma.refill())

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
            if self._tracer is not None:
                self._tracer.counter(self.path, "queued commands", start, len(self.queue))
            self._dma.refill()
            yield from self._serve(entry, start, thread)
            self.busy = False
            if not (self.queue and self.queue[0].ready_cycles <= env.now):
                self._tell_traffic(self._direction, False)

    def _serve(self, entry: _Queued, start: int, thread: Thread) -> Body:
        command, transfer = entry.order.command, entry.order.transfer
        memory = self._memory[command.external_level]
        over = Notification(self.env)
        served = self._under_way = _Served(entry, memory, self._state_before(entry, memory), over)
        end, self._state = self._run_command(served, None)
        self._origin = entry.ready_cycles
        end = max(start + 1, end + self._origin)
        memory.occupy(self._state.link_free + self._origin, to_l1=self.to_l1)
        served.progress = Progress(start, end - start)
        if entry.order.last:
            transfer.ends_at_cycles = transfer.earliest_end_cycles = end
        if self._pace is not None:
            self._set_speed(served)
        self._tell_traffic(self._direction, True)
        open_access = self._effects.dma_begin(command, transfer.work)
        kind = TxnCommand.READ if self.to_l1 else TxnCommand.WRITE
        address, size_bytes = command.external_address, command.size_bytes
        txn = make_transaction((kind, address, size_bytes, self.path, 0, served.over, command))
        self._set_alarm(served)
        yield from memory.transport(txn, thread)
        self._under_way = None
        ended = int(self.env.now)
        if ended > end:
            late_cycles = ended - end
            self._origin += late_cycles
            self._ahead_origin += late_cycles
            self._cuts = deque([cut + late_cycles for cut in self._cuts])
            memory.occupy(self._state.link_free + self._origin, to_l1=self.to_l1)
        self._effects.dma_end(command, open_access)
        if self._tracer is not None:
            moved = make_slice((self.path, start, ended, TRANSFER, transfer.work, (), size_bytes, 0))
            self._tracer.slice(moved)
        transfer.remaining -= 1
        if not transfer.remaining:
            transfer.ended.notify_listeners()

    def set_pace(self, pace: Pace | None) -> None:
        """From now on L1 moves `pace` (words, cycles) of this direction; None: what the ports can."""
        if pace == self._pace:
            return
        self._pace = pace
        if self._under_way is not None:
            self._set_speed(self._under_way)
            self._set_alarm(self._under_way)

    def _set_alarm(self, served: _Served) -> None:
        """End the command at the end known now; an alarm set before the speed changed is stale."""
        end = served.progress.end_cycles
        if end != served.alarm_at:
            served.alarm_at = end
            self.env.timeout(end - self.env.now, end).callbacks.append(served.ring)

    def _set_speed(self, served: _Served) -> None:
        """The command under way advances at the pace of now."""
        progress, order = served.progress, served.entry.order
        end = self._run_command(served, self._pace)[0] + served.entry.ready_cycles
        progress.change(int(self.env.now), max(1, end - progress.start_cycles))
        if order.last:
            order.transfer.ends_at_cycles = progress.end_cycles

    def _state_before(self, entry: _Queued, memory: ExternalMemory) -> EngineState:
        """What earlier commands left, seen from the cycle in which this one may begin."""
        state = self._state
        shared = memory.link_free(to_l1=self.to_l1) - self._origin
        if shared > state.link_free:
            state = state._replace(link_free=shared)
        return state.seen_from(entry.ready_cycles - self._origin, self._rules.words_per_cycle)

    def _run_command(self, served: _Served, pace: Pace | None) -> tuple[int, EngineState]:
        """(end of a command, state it leaves) if L1 keeps `pace`; times count from its ready cycle."""
        foreseen = served.entry.foreseen
        if pace is None and foreseen is not None and foreseen[0] == served.before:
            return foreseen[1]
        return self._result_of(served.entry, served.memory, served.before, pace)

    def _shape(self, command: Command) -> _Shape:
        rules = self._rules
        return (
            command.line_bytes,
            command.lines,
            command.l1_address % rules.word_bytes,
            command.external_address % rules.burst_bytes if rules.aligned else 0,
            command.stride_bytes if rules.aligned else 0,
        )

    def _result_of(
        self, entry: _Queued, memory: ExternalMemory, before: EngineState, pace: Pace | None
    ) -> tuple[int, EngineState]:
        command, shape, rules = entry.order.command, entry.shape, self._rules
        key = (shape, command.external_level, before, pace)
        result = self._known.get(key)
        if result is None:
            if len(self._known) >= _MAX_MEMOISED:
                self._known.clear()
            bursts = self._bursts.get(shape)
            if bursts is None:
                if len(self._bursts) >= _MAX_MEMOISED:
                    self._bursts.clear()
                bursts = self._bursts[shape] = bursts_of(command, rules)
            link = memory.link(to_l1=self.to_l1)
            result = run_command(bursts, before, rules, link, to_l1=self.to_l1, pace=pace)
            self._known[key] = result
        return result


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
        self._storages: Mapping[str, Storage] = effects.storages
        rules = BurstRules.of(timing, word_bytes)
        self.inward, self.outward = (
            DmaChannel(self, label, to_l1=to_l1, rules=rules, timing=timing, effects=effects, tracer=tracer)
            for label, to_l1 in (("in", True), ("out", False))
        )

    def reset(self) -> None:
        """No command, no transfer ID taken."""
        self._queues: dict[str, deque[Order]] = {}
        self._waiting = 0
        self._taken: set[int] = set()
        self._id_freed: Notification | None = None
        self._slot_freed: Notification | None = None

    @property
    def idle(self) -> bool:
        """Whether no command is queued or under way."""
        if self._waiting:
            return False
        return not any(channel.queue or channel.busy for channel in (self.inward, self.outward))

    def allocate(self, commands: int, work: Work, thread: Thread) -> Call[Transfer]:
        """Take a free transfer ID for `commands` commands, waiting for one; returns the `Transfer`."""
        while len(self._taken) >= self._timing.transfer_ids:
            thread.waits_for = f"a free DMA transfer ID (all {self._timing.transfer_ids} are taken)"
            self._id_freed = self._id_freed or Notification(self.env)
            yield self._id_freed
        identifier = next(n for n in range(self._timing.transfer_ids) if n not in self._taken)
        self._taken.add(identifier)
        transfer = Transfer(identifier, commands, work, Notification(self.env))
        if commands == 0:
            transfer.ends_at_cycles = int(self.env.now)
            transfer.ended.notify_listeners()
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
        queue = self._queues.setdefault(txn.master, deque())
        while len(queue) >= self._timing.core_queue_commands:
            thread.waits_for = "room in its DMA command queue"
            self._slot_freed = self._slot_freed or Notification(self.env)
            yield self._slot_freed
        queue.append(order)
        self._waiting += 1
        self.refill()

    def refill(self) -> None:
        """Move commands on while the heads of the cores' queues find room in their global queues.

        The cores take turns; a full global queue holds up the core whose next command wants into it.
        """
        if not self._waiting:
            return
        moved = False
        rest = deque([queue for queue in self._queues.values() if queue])
        while rest:
            queue = rest.popleft()
            channel = self.inward if queue[0].command.to_l1 else self.outward
            if channel.has_room:
                channel.accept(queue.popleft())
                self._waiting -= 1
                moved = True
                if queue:
                    rest.append(queue)
            else:
                channel.tell_room()
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
        flat = command.lines == 1
        limit_bytes = self._timing.max_command_1d_bytes if flat else self._timing.max_command_2d_bytes
        if command.size_bytes > limit_bytes:
            raise InputError(
                f"a {'1D' if flat else '2D'} DMA command of {command.size_bytes} B is longer than its length "
                f"field allows ({limit_bytes} B)",
                where=self.path,
                cure="cut it into several commands under the same transfer",
            )
        check_command(command, self._l1, self._storages[command.external_level])

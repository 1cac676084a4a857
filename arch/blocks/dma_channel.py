# SPDX-License-Identifier: Apache-2.0
"""The engine of one direction of the DMA: its queue, and the command it works on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import simpy

from arch.blocks.bursts import IDLE, BurstRules, EngineState, Pace, bursts_of, run_command
from arch.blocks.l2 import ExternalMemory
from arch.blocks.progress import Progress
from arch.memories.effects import Effects, OpenAccess
from arch.pricing.cost_model import Traffic
from arch.spec.program import Command
from arch.spec.timing import DmaTiming
from arch.systemc.module import Module, Notification, Port, Thread
from traces.events import TRANSFER, Tracer, Work, make_slice

if TYPE_CHECKING:
    from arch.blocks.dma import Dma

_MAX_MEMOISED = 4096
_SHARED = "l2"
"""The memory whose links nobody but the engine of this direction takes."""


class Transfer:
    """All commands under one transfer ID; ends when the last of them has."""

    __slots__ = ("earliest_end_cycles", "ended", "ends_at_cycles", "id", "remaining", "work")

    def __init__(self, identifier: int, commands: int, work: Work, ended: Notification) -> None:
        self.id = identifier
        self.remaining = commands
        self.work = work
        self.ends_at_cycles: int | None = None
        """When its last command ends as far as is known; None before that has begun."""
        self.earliest_end_cycles = 0
        """It will not end before; cores that are in the way in L1 can only make it later."""
        self.ended = ended

    @property
    def over(self) -> bool:
        """Whether the last byte of the last command has arrived."""
        return self.remaining == 0

    def certain_end_cycles(self, now: int) -> int | None:
        """When it ends, or has ended, if no kernel begins; None unless only its last command is under way."""
        ends = self.ends_at_cycles
        if self.remaining == 0 or (self.remaining == 1 and ends is not None and ends > now):
            return ends
        return None


class Order:
    """A command a core has written, under a transfer ID, on its way through the queues and the engine.

    `ends_at_cycles` is its end as far as is known now, `due_cycles` the one without cores in the way in L1.
    """

    __slots__ = (
        "access",
        "alarm_at",
        "before",
        "channel",
        "command",
        "due_cycles",
        "ends_at_cycles",
        "foreseen",
        "last",
        "memory",
        "progress",
        "ready_cycles",
        "shape",
        "start_cycles",
        "transfer",
    )

    access: OpenAccess
    before: EngineState
    channel: DmaChannel
    due_cycles: int
    ends_at_cycles: int
    memory: ExternalMemory
    ready_cycles: int
    shape: tuple[int, int, int, int, int]
    start_cycles: int

    def __init__(self, command: Command, transfer: Transfer, last: bool) -> None:
        self.command = command
        self.transfer = transfer
        self.last = last
        self.alarm_at = -1
        self.progress: Progress | None = None
        self.foreseen: tuple[EngineState, tuple[int, EngineState]] | None = None
        """State of the engine before it and what comes of it at full pace, as known when it was queued."""

    def ring(self, alarm: simpy.Event) -> None:
        """An alarm goes off, whose value is the cycle it was set for; those of a former end are stale."""
        if alarm.value == self.alarm_at and self.channel.under_way is self:
            self.channel.finish(self)


class DmaChannel(Module):
    """The engine of one direction: runs the commands of its global queue strictly in order.

    It is no thread, but a state machine that is called when a command may begin, when one ends, and when
    the cores leave it another part of L1.
    """

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
        self.queue: deque[Order] = deque()
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
        self._memory = {level: port.target for level, port in self.memories.items()}
        self._tell_traffic = self.traffic.target
        self._state = IDLE
        self._origin = 0
        self._pace: Pace | None = None
        self.under_way: Order | None = None
        self._sleeps = True
        self._moves = False
        # Where commands are queued until they are cut: when each is, and what the accepted ones leave behind.
        self._cuts: deque[int] = deque()
        self._ahead = IDLE
        self._ahead_origin = 0
        self._astray = False
        self._room_alarm_at = -1
        # What the tracer has not been told yet of the queue: when commands came into it, and how many are.
        self._accepted: deque[int] = deque()
        self._shown = 0
        waits = Thread(self.path)
        waits.waits_for = "a DMA command"
        self.threads.append(waits)

    @property
    def idle(self) -> bool:
        """Whether no command is queued or under way."""
        return not self.queue and self.under_way is None

    @property
    def has_room(self) -> bool:
        """Whether the global queue of this direction takes another command."""
        if not self._until_cut:
            return len(self.queue) < self._room
        return self._uncut(self.env.now) < self._room

    def _uncut(self, now: int) -> int:
        """Commands that have been accepted and not been cut into bursts."""
        cuts = self._cuts
        while cuts and cuts[0] <= now:
            cuts.popleft()
        return len(cuts)

    @property
    def is_certain(self) -> bool:
        """Whether what is known of the accepted commands will hold if no kernel begins."""
        if not self._until_cut or self.idle:
            return True
        order = self.under_way
        return not self._astray and (order is None or order.ends_at_cycles == order.due_cycles)

    def room_at(self, cycles: int) -> int | None:
        """From `cycles` (now or later) on, when the global queue takes another command if no kernel begins.

        None if that is not certain. Asked in order of time.
        """
        if not self._until_cut:
            return cycles if len(self.queue) < self._room else None
        surplus = self._uncut(cycles) - self._room
        return cycles if surplus < 0 else self._cuts[surplus]

    def accept(self, order: Order, cycles: int) -> None:
        """A command moves from a core's queue into the global queue at `cycles`, now or later."""
        command, rules = order.command, self._rules
        order.channel = self
        order.memory = self._memory[command.external_level]
        order.ready_cycles = cycles + self._latency_cycles
        order.shape = (
            command.line_bytes,
            command.lines,
            command.l1_address % rules.word_bytes,
            command.external_address % rules.burst_bytes if rules.aligned else 0,
            command.stride_bytes if rules.aligned else 0,
        )
        if self._until_cut:
            self._cut(order)
        self.queue.append(order)
        self._accepted.append(cycles)
        if self._sleeps:
            self._sleep_until(order.ready_cycles)

    def _cut(self, order: Order) -> None:
        """Work out when the bursts of a command will have been cut, as far as is known now."""
        if not self.queue and self.under_way is None:
            self._ahead, self._ahead_origin, self._astray = self._state, self._origin, False
        if order.command.external_level != _SHARED:
            self._astray = True
        origin = order.ready_cycles
        before = self._ahead.seen_from(origin - self._ahead_origin, self._rules.words_per_cycle)
        result = self._result_of(order, before, None)
        order.foreseen = before, result
        self._ahead = result[1]
        self._ahead_origin = origin
        self._cuts.append(self._ahead.cut + origin)

    def tell_room(self) -> None:
        """A core waits for room: look again once the oldest command is cut."""
        if self._cuts and self._cuts[0] != self._room_alarm_at:
            self._room_alarm_at = self._cuts[0]
            alarm = self.env.timeout(max(0, self._room_alarm_at - self.env.now))
            alarm.callbacks.append(lambda _: self._dma.refill())

    def _sleep_until(self, cycles: int) -> None:
        self._sleeps = False
        self.env.timeout(cycles - self.env.now).callbacks.append(self._begin)

    def _begin(self, _: simpy.Event | None = None) -> None:
        """The first command of the queue begins."""
        now = self.env.now
        order = self.under_way = self.queue.popleft()
        if self._tracer is not None:
            self._show_queue(self._tracer, now)
        self._dma.refill()
        due, state = self._result(order)
        origin = self._origin = order.ready_cycles
        self._state = state
        due += origin
        if due <= now:
            due = now + 1
        order.start_cycles = now
        order.due_cycles = order.ends_at_cycles = due
        order.memory.occupy(state.link_free + origin, to_l1=self.to_l1)
        transfer = order.transfer
        if order.last:
            transfer.ends_at_cycles = transfer.earliest_end_cycles = due
        if self._pace is not None:
            self._set_speed(order, now)
        if not self._moves:
            self._moves = True
            self._tell_traffic(self._direction, True)
        order.access = self._effects.dma_begin(order.command, transfer.work)
        self._set_alarm(order)

    def finish(self, order: Order) -> None:
        """The command under way ends now; the next one begins if it may."""
        now = self.env.now
        self.under_way = None
        if now > order.due_cycles:
            self._shift(order, now - order.due_cycles)
        transfer, command = order.transfer, order.command
        self._effects.dma_end(command, order.access)
        if self._tracer is not None:
            self._tracer.slice(
                make_slice(
                    (self.path, order.start_cycles, now, TRANSFER, transfer.work, (), command.size_bytes, 0)
                )
            )
        transfer.remaining -= 1
        if not transfer.remaining:
            transfer.ended.notify_listeners()
        queue = self.queue
        if queue and queue[0].ready_cycles <= now:
            self._begin()
        else:
            self._moves = False
            self._tell_traffic(self._direction, False)
            if queue:
                self._sleep_until(queue[0].ready_cycles)
            else:
                self._sleeps = True

    def _shift(self, order: Order, late_cycles: int) -> None:
        """Cores were in the way of a command: what was worked out from it comes so much later."""
        self._origin += late_cycles
        self._ahead_origin += late_cycles
        self._cuts = deque([cut + late_cycles for cut in self._cuts])
        self._astray = True
        order.memory.occupy(self._state.link_free + self._origin, to_l1=self.to_l1)

    def _show_queue(self, tracer: Tracer, now: int) -> None:
        """Tell how long the queue has been since the last command began, and is when this one does."""
        accepted = self._accepted
        while accepted and accepted[0] <= now:
            self._shown += 1
            tracer.counter(self.path, "queued commands", accepted.popleft(), self._shown)
        self._shown -= 1
        tracer.counter(self.path, "queued commands", now, self._shown)

    def set_pace(self, pace: Pace | None) -> None:
        """From now on L1 moves `pace` (words, cycles) of this direction; None: what the ports can."""
        if pace == self._pace:
            return
        self._pace = pace
        if self.under_way is not None:
            self._set_speed(self.under_way, self.env.now)
            self._set_alarm(self.under_way)

    def _set_alarm(self, order: Order) -> None:
        """End the command at the end known now; an alarm set before the speed changed is stale."""
        end = order.ends_at_cycles
        if end != order.alarm_at:
            order.alarm_at = end
            self.env.timeout(end - self.env.now, end).callbacks.append(order.ring)

    def _set_speed(self, order: Order, now: int) -> None:
        """The command under way advances at the pace of now."""
        start = order.start_cycles
        end = self._result_of(order, order.before, self._pace)[0] + order.ready_cycles
        cycles = max(1, end - start)
        if now == start:
            order.ends_at_cycles = start + cycles
        else:
            if order.progress is None:
                order.progress = Progress(start, order.ends_at_cycles - start)
            order.progress.change(now, cycles)
            order.ends_at_cycles = order.progress.end_cycles
        if order.last:
            order.transfer.ends_at_cycles = order.ends_at_cycles

    def _result(self, order: Order) -> tuple[int, EngineState]:
        """(end at full pace of a command that begins, state it leaves); times count from its ready cycle."""
        foreseen = order.foreseen
        if foreseen is not None and not self._astray:
            order.before, result = foreseen
            return result
        before = order.before = self._state_before(order)
        if foreseen is not None and foreseen[0] == before:
            return foreseen[1]
        return self._result_of(order, before, None)

    def _state_before(self, order: Order) -> EngineState:
        """What earlier commands left, seen from the cycle in which this one may begin."""
        state = self._state
        shared = order.memory.link_free(to_l1=self.to_l1) - self._origin
        if shared > state.link_free:
            state = state._replace(link_free=shared)
        return state.seen_from(order.ready_cycles - self._origin, self._rules.words_per_cycle)

    def _result_of(self, order: Order, before: EngineState, pace: Pace | None) -> tuple[int, EngineState]:
        shape, level = order.shape, order.command.external_level
        key = (shape, level, before, pace)
        result = self._known.get(key)
        if result is None:
            if len(self._known) >= _MAX_MEMOISED:
                self._known.clear()
            bursts = self._bursts.get(shape)
            if bursts is None:
                if len(self._bursts) >= _MAX_MEMOISED:
                    self._bursts.clear()
                bursts = self._bursts[shape] = bursts_of(order.command, self._rules)
            link = order.memory.link(to_l1=self.to_l1)
            result = run_command(bursts, before, self._rules, link, to_l1=self.to_l1, pace=pace)
            self._known[key] = result
        return result

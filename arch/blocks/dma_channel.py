# SPDX-License-Identifier: Apache-2.0
"""The engine of one direction of the DMA: its queue, and the command it works on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import simpy

from arch.blocks.bursts import IDLE, BurstRules, EngineState, Pace
from arch.blocks.course import Flight, Rules, Start, course_state
from arch.blocks.l2 import ExternalMemory
from arch.blocks.order import Order, Transfer
from arch.blocks.progress import Progress
from arch.memories.effects import Effects, OpenAccess
from arch.pricing.cost_model import Traffic
from arch.pricing.line_caches import NO_READS, Reads
from arch.spec.program import Command
from arch.spec.timing import DmaTiming, L2Timing
from arch.systemc.module import Module, Port, Thread
from traces.events import TRANSFER, Tracer, make_slice

if TYPE_CHECKING:
    from arch.blocks.dma import Dma

_SHARED = "l2"
"""The memory whose links nobody but the engine of this direction takes."""


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
        self._flies = timing.queued_until_cut and timing.core_queue_commands == 1
        self._in_front = Rules(self._room, self._latency_cycles, rules.words_per_cycle)
        self._effects = effects
        self._tracer = tracer
        self._direction = Traffic.IN if to_l1 else Traffic.OUT

    def reset(self) -> None:
        """Empty queue, idle engine."""
        self.queue.clear()
        self._memory = {level: port.target for level, port in self.memories.items()}
        links = tuple([(level, memory.link(to_l1=self.to_l1)) for level, memory in self._memory.items()])
        self._kept = course_state(self._rules, self._in_front, links, self.to_l1)
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
        self.flights: deque[Flight] = deque()
        self._flown_cycles = self.flights_end_cycles = 0
        waits = Thread(self.path)
        waits.waits_for = "a DMA command"
        self.threads.append(waits)

    @property
    def idle(self) -> bool:
        """Whether no command is queued or under way."""
        return not self.queue and self.under_way is None

    @property
    def settled(self) -> bool:
        """Whether an idle engine, and its link, are as if it had never moved anything."""
        now, state = self.env.now, self._state
        return state.seen_from(now - self._origin, self._rules.words_per_cycle) is IDLE and all(
            memory.link_free(to_l1=self.to_l1) <= now for memory in self._memory.values()
        )

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
        command = order.command
        order.channel = self
        order.memory = self._memory[command.external_level]
        order.ready_cycles = cycles + self._latency_cycles
        order.bursts = self._kept.bursts((command,))[0]
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
        result = self._kept.result(order.bursts, order.command.external_level, before, None)
        order.foreseen = before, result
        self._ahead = result[1]
        self._ahead_origin = origin
        self._cuts.append(self._ahead.cut + origin)

    def reads_ahead(self, waiting: Sequence[Order], l2: L2Timing) -> Reads:
        """What a line of code asked from L2 waits for bursts that were asked for before.

        The bursts follow each other to the end of all commands, those `waiting` for room included. But no
        more are asked for than may be outstanding, one of which has just come.
        """
        state, origin = self._ahead, self._ahead_origin
        if not l2.link_bytes_per_cycle:
            return NO_READS
        for order in waiting:
            (bursts,) = self._kept.bursts((order.command,))
            state = self._kept.result(bursts, _SHARED, state, None)[1]
        if not state.in_flight:
            return NO_READS
        newest = state.in_flight[-1]
        burst = newest - state.in_flight[-2] if len(state.in_flight) > 1 else newest
        most = max(0.0, (self._rules.outstanding - 1) * burst - l2.code_behind_cycles)
        return newest + origin - l2.code_ahead_cycles, most

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
        result = self._kept.result(order.bursts, order.command.external_level, order.before, self._pace)
        end = result[0] + order.ready_cycles
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
        return self._kept.result(order.bursts, order.command.external_level, before, None)

    def _state_before(self, order: Order) -> EngineState:
        """What earlier commands left, seen from the cycle in which this one may begin."""
        state = self._state
        shared = order.memory.link_free(to_l1=self.to_l1) - self._origin
        if shared > state.link_free:
            state = state._replace(link_free=shared)
        return state.seen_from(order.ready_cycles - self._origin, self._rules.words_per_cycle)

    # What is in flight: transfers that nothing can hold up before a kernel begins.

    def fly(
        self,
        commands: Sequence[Command],
        transfer: Transfer,
        begin_cycles: int,
        cycles: Sequence[int],
        slot_cycles: int,
    ) -> int | None:
        """Take a whole transfer, programmed from `begin_cycles` on, if it is certain how it will go.

        All commands have to be of this direction, between L1 and the L2; the queue of the core is empty from
        `slot_cycles` on. Returns when the core has pushed the last of them, else None.
        """
        if not self._flies or not self.idle or self.room_at(begin_cycles) is None:
            return None
        if not self.flights:
            self._ahead, self._ahead_origin, self._astray = self._state, self._origin, False
        bursts = self._kept.bursts(commands)
        start = Start(
            self._ahead.seen_from(begin_cycles - self._ahead_origin, self._rules.words_per_cycle),
            max(0, self.flights_end_cycles - begin_cycles),
            tuple([cut - begin_cycles for cut in self._cuts]),
            max(0, slot_cycles - begin_cycles),
        )
        course = self._kept.course(bursts, cycles, start, _SHARED)
        self.flights.append(Flight(course, commands, transfer, begin_cycles, self.env.now))
        last = course.steps[-1]
        self._ahead, self._ahead_origin = last.outcome[1], begin_cycles + last.ready
        self._cuts.extend([begin_cycles + step.cut for step in course.steps])
        if self._tracer is not None:
            self._accepted.extend([begin_cycles + step.accepted for step in course.steps])
        transfer.certain = True
        transfer.ends_at_cycles = self.flights_end_cycles = begin_cycles + last.end
        return begin_cycles + course.pushed

    @property
    def accepted_cycles(self) -> int:
        """Until when the last command in flight is in the queue of its core; 0 without one."""
        if not self.flights:
            return 0
        flight = self.flights[-1]
        return flight.begin_cycles + flight.course.steps[-1].accepted

    @property
    def next_instant(self) -> tuple[int, int]:
        """When the next command in flight begins or ends, and since when that stands."""
        flight = self.flights[0]
        step, begin = flight.course.steps[flight.position], flight.begin_cycles
        if flight.access is not None:
            return begin + step.end, begin + step.start
        return begin + step.start, max(flight.called_cycles, self._flown_cycles)

    def advance(self, until: int, since: int) -> None:
        """Begin and end what is in flight up to `until`; in that cycle only what stands since `since`."""
        flights, effects, tracer = self.flights, self._effects, self._tracer
        bare = effects.bare_log
        while flights:
            flight = flights[0]
            begin, commands, steps, transfer = (
                flight.begin_cycles,
                flight.commands,
                flight.course.steps,
                flight.transfer,
            )
            work, position = transfer.work, flight.position
            last = len(steps)
            while position < last:
                step = steps[position]
                start, end, command = begin + step.start, begin + step.end, commands[position]
                if flight.access is None:
                    if (
                        start >= until
                        and start != self._flown_cycles
                        and (start > until or max(flight.called_cycles, self._flown_cycles) > since)
                    ):
                        break
                    if tracer is not None:
                        self._show_queue(tracer, start)
                    if bare is not None and end < until:
                        bare.append(command)
                        bare.append(len(bare) - 1)
                    else:
                        flight.access = effects.dma_began(command, work, start)
                    self._state, self._origin = step.outcome[1], begin + step.ready
                if flight.access is not None:
                    if end >= until and (end > until or start > since):
                        break
                    effects.dma_ended(command, flight.access)
                    flight.access = None
                    bare = effects.bare_log
                self._flown_cycles = end
                if tracer is not None:
                    tracer.slice(
                        make_slice((self.path, start, end, TRANSFER, work, (), command.size_bytes, 0))
                    )
                position += 1
            flight.position = position
            transfer.remaining = last - position
            if position < last:
                return
            flights.popleft()
            transfer.ended.notify_listeners()

    def land(self) -> None:
        """A kernel begins now, or another core comes: what is in flight goes on event by event."""
        if not self.flights:
            return
        waits = self.accepted_cycles > self.env.now
        self._sleeps = False
        for flight in self.flights:
            begin, steps, transfer = flight.begin_cycles, flight.course.steps, flight.transfer
            transfer.certain, transfer.ends_at_cycles = False, None
            for position in range(flight.position, len(steps)):
                step = steps[position]
                order = Order(flight.commands[position], transfer, position == len(steps) - 1)
                order.channel, order.memory = self, self._memory[_SHARED]
                order.ready_cycles, order.bursts = begin + step.ready, step.bursts
                order.foreseen = order.before, _ = step.before, step.outcome
                if flight.access is not None and position == flight.position:
                    self._goes_on(order, begin + step.start, begin + step.end, flight.access)
                else:
                    self.queue.append(order)
        self.flights.clear()
        if self.under_way is None:
            self._sleep_until(self.queue[0].ready_cycles)
        if waits:
            order = self.queue.pop()
            self._cuts.pop()
            if self._tracer is not None:
                self._accepted.pop()
            before = self.queue[-1] if self.queue else self.under_way
            if before is not None and before.foreseen is not None:
                self._ahead, self._ahead_origin = before.foreseen[1][1], before.ready_cycles
            self._dma.hold(order)
            self.tell_room()

    def _goes_on(self, order: Order, start_cycles: int, due_cycles: int, access: OpenAccess) -> None:
        """A command that has begun in flight is under way."""
        self.under_way = order
        order.start_cycles, order.access = start_cycles, access
        order.due_cycles = order.ends_at_cycles = due_cycles
        order.memory.occupy(self._state.link_free + self._origin, to_l1=self.to_l1)
        if order.last:
            order.transfer.ends_at_cycles = order.transfer.earliest_end_cycles = due_cycles
        self._moves = True
        self._tell_traffic(self._direction, True)
        self._set_alarm(order)

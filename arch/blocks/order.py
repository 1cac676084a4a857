# SPDX-License-Identifier: Apache-2.0
"""What cores write into the DMA: commands, under transfer IDs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import simpy

from arch.blocks.bursts import Bursts, EngineState
from arch.blocks.l2 import ExternalMemory
from arch.blocks.progress import Progress
from arch.memories.effects import OpenAccess
from arch.spec.program import Command
from arch.systemc.module import Notification
from traces.events import Work

if TYPE_CHECKING:
    from arch.blocks.dma_channel import DmaChannel


class Transfer:
    """All commands under one transfer ID; ends when the last of them has."""

    __slots__ = ("certain", "earliest_end_cycles", "ended", "ends_at_cycles", "id", "remaining", "work")

    def __init__(self, identifier: int, commands: int, work: Work, ended: Notification) -> None:
        self.id = identifier
        self.remaining = commands
        self.work = work
        self.ends_at_cycles: int | None = None
        """When its last command ends as far as is known; None before that has begun."""
        self.earliest_end_cycles = 0
        """It will not end before; cores that are in the way in L1 can only make it later."""
        self.ended = ended
        self.certain = False
        """Whether it ends then, and has if that is past, unless a kernel begins before."""

    @property
    def over(self) -> bool:
        """Whether the last byte of the last command has arrived."""
        return self.remaining == 0

    def certain_end_cycles(self, now: int) -> int | None:
        """When it ends, or has ended, if no kernel begins; None unless only its last command is under way."""
        ends = self.ends_at_cycles
        if self.remaining == 0 or self.certain or (self.remaining == 1 and ends is not None and ends > now):
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
        "bursts",
        "channel",
        "command",
        "due_cycles",
        "ends_at_cycles",
        "foreseen",
        "last",
        "memory",
        "progress",
        "ready_cycles",
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
    bursts: Bursts
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

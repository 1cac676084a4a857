# SPDX-License-Identifier: Apache-2.0
"""SimPy's environment, with the clock as a plain attribute and what every event goes through written out."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import NORMAL, EventPriority


class Environment(simpy.Environment):
    """Time in whole cycles. Events, processes and their order are those of SimPy."""

    now: int = 0
    _under_way: simpy.Event | None = None

    @property
    def set_cycles(self) -> int:
        """When the event under way was set for now; now, unless it is a timeout."""
        event = self._under_way
        return self.now - int(event._delay) if isinstance(event, simpy.Timeout) else self.now

    def timeout(self, delay: int = 0, value: object = None) -> simpy.Timeout:  # type: ignore[override]
        """An event `delay` cycles from now. Raises `ValueError` for one in the past."""
        if delay < 0:
            raise ValueError(f"negative delay {delay}")
        event = simpy.Timeout.__new__(simpy.Timeout)
        event.env = self
        event.callbacks = []
        event._value = value
        event._delay = delay
        event._ok = True
        heappush(self._queue, (self.now + delay, NORMAL, next(self._eid), event))
        return event

    def schedule(
        self,
        event: simpy.Event,
        priority: EventPriority = NORMAL,
        delay: int = 0,  # type: ignore[override]
    ) -> None:
        """Have `event` processed `delay` cycles from now."""
        heappush(self._queue, (self.now + delay, priority, next(self._eid), event))

    def step(self) -> None:
        """Process the next event. Raises `EmptySchedule` without one, and what a process has raised."""
        try:
            self.now, _, _, event = heappop(self._queue)  # type: ignore[assignment]
        except IndexError:
            raise EmptySchedule from None
        self._under_way = event
        callbacks: list[Any] = event.callbacks
        event.callbacks = None  # type: ignore[assignment]
        for callback in callbacks:
            callback(event)
        if not event._ok and not hasattr(event, "_defused"):
            raise event._value

# SPDX-License-Identifier: Apache-2.0
"""The SystemC vocabulary on SimPy: modules with hierarchical names, ports, threads and notifications."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Generic, NoReturn, TypeVar

import simpy

from arch.systemc.environment import Environment
from configs.errors import PulptrainError

T = TypeVar("T")

Body = Generator[simpy.Event, Any, None]
"""The body of an SC_THREAD or of a blocking transport: a generator of SimPy events."""

Call = Generator[simpy.Event, Any, T]
"""A blocking call (``result = yield from module.call(...)``) that returns a T."""


class Thread:
    """An SC_THREAD: a SimPy process that says what it waits for, so that a deadlock can be explained.

    `name` is the path of its module. The body sets `waits_for` before it yields an event that only another
    thread can trigger; it may leave the text of an earlier wait there, because a thread that waits for
    time only can never be part of a deadlock.
    """

    __slots__ = ("name", "process", "waits_for")

    def __init__(self, name: str) -> None:
        self.name = name
        self.waits_for = "its first event"
        self.process: simpy.Process | None = None

    @property
    def alive(self) -> bool:
        """Whether its body has more to do."""
        return self.process is None or self.process.is_alive


class Notification(simpy.Event):
    """An sc_event that is notified once, now or after a delay in cycles."""

    def notify(self, delay_cycles: int = 0, value: object = None) -> None:
        """Wake everything that waits on this event `delay_cycles` from now, with one queue entry."""
        self._ok = True
        self._value = value
        self.env.schedule(self, delay=delay_cycles)

    def fire(self) -> None:
        """Wake everything that waits on this event as part of the event under way, without an entry.

        For callbacks of other events only: a thread must not wake another in the middle of its own step.
        """
        callbacks, self.callbacks = self.callbacks, None  # type: ignore[assignment]
        self._ok = True
        self._value = None
        for callback in callbacks:
            callback(self)

    def notify_listeners(self) -> None:
        """Wake what waits on this event now; without a listener it has simply happened, without an entry."""
        if self.callbacks:
            self.notify()
        else:
            self._ok = True
            self._value = None
            self.callbacks = None  # type: ignore[assignment]  # what SimPy leaves of a processed event


class Port(Generic[T]):
    """An sc_port: a typed place in a module that its parent binds to the module or object serving it."""

    __slots__ = ("_target", "path")

    def __init__(self, owner: Module, name: str) -> None:
        self.path: str = f"{owner.path}.{name}"
        self._target: T | None = None
        owner.ports.append(self)

    def bind(self, target: T) -> None:
        """Connect the port. Raises `PulptrainError` when it is already bound."""
        if self._target is not None:
            raise PulptrainError("the port is bound twice", where=self.path, cure="bind the port once")
        self._target = target

    @property
    def bound(self) -> bool:
        """Whether somebody serves this port."""
        return self._target is not None

    @property
    def target(self) -> T:
        """What the port is bound to. Raises `PulptrainError` when it is not bound."""
        if self._target is None:
            raise PulptrainError(
                "port is not bound",
                where=self.path,
                cure="bind the port in the constructor of the parent module",
            )
        return self._target


class _NotStarted:
    """Stands where a module has its environment, until its first run."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> NoReturn:
        raise PulptrainError("the module has not been started", where=self._path, cure="call Soc.run")


class Module:
    """An sc_module: a named block that owns its children, ports and threads.

    `path` is the hierarchical name, e.g. ``soc.cluster.core3``. The tree is built and bound once
    (elaboration, checked by `elaborate`); each run starts it with a fresh SimPy environment whose time
    counts cluster clock cycles from 0: `env`, a plain attribute because it is read so often.
    """

    def __init__(self, parent: Module | None, name: str) -> None:
        self.name = name
        self.path: str = f"{parent.path}.{name}" if parent else name
        self.children: list[Module] = []
        self.ports: list[Port[Any]] = []
        self.threads: list[Thread] = []
        self.env: Environment = _NotStarted(self.path)  # type: ignore[assignment]
        if parent is not None:
            parent.children.append(self)

    def modules(self) -> Iterator[Module]:
        """This module and everything below it, parents first, in order of construction."""
        yield self
        for child in self.children:
            yield from child.modules()

    def elaborate(self) -> None:
        """Check that every port of the tree is bound. Raises `PulptrainError` naming those that are not."""
        loose = [port.path for module in self.modules() for port in module.ports if not port.bound]
        if loose:
            raise PulptrainError(
                f"elaboration failed, because these ports are not bound: {', '.join(loose)}",
                where=self.path,
                cure="bind every port in the constructor of the parent module",
            )

    def start(self, env: Environment) -> None:
        """Begin a run: take the environment, forget the state of the last run, spawn the threads."""
        for module in self.modules():
            module.env = env
            module.threads.clear()
        for module in self.modules():
            module.reset()

    def reset(self) -> None:
        """Bring the state of one run into being and spawn the threads; modules override this."""

    def spawn(self, thread: Thread, body: Body) -> None:
        """Register an SC_THREAD and let it run from the current time on."""
        self.threads.append(thread)
        thread.process = self.env.process(body)

    def waiting(self) -> tuple[tuple[str, str], ...]:
        """(name of the thread, what it waits for) of every live thread of the tree."""
        return tuple(
            (thread.name, thread.waits_for)
            for module in self.modules()
            for thread in module.threads
            if thread.alive
        )

# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, from the first line of ours on: exit code 130 and one line, wherever it comes in.

While a command is imported nothing is worth keeping: the process says so and ends at once, because an
exception in the middle of a native import may surface as another one, or be lost. While a command works,
Ctrl-C is a `KeyboardInterrupt`, of which the command makes the best of what it has; only in the middle of an
import that it does on the way the exception waits until that is over. Native code that calls Python may drop
an exception; one that has not come out to code of ours is raised again. This module imports nothing slow.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` takes milliseconds to make enums
import os
import sys
import time
from types import FrameType

from pulptrain.process import BEGUN_SECONDS, ROOMS

EXIT_CODE = 130
MESSAGE = "pulptrain: interrupted"

_LOOK_AGAIN_SECONDS = 0.02
_LOST_AFTER_SECONDS = 0.5
_IMPORTLIB = "<frozen importlib._bootstrap"

_HOME = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
_OWN_CODE = tuple(os.path.join(_HOME, room, "") for room in (*ROOMS, "pulptrain"))
_PASSES_ON = f"{os.sep}simpy{os.sep}"
"""SimPy takes an exception of a process and raises another one like it."""

_owner = os.getpid()
"""A forked worker has our handlers too, and must not act on them: Ctrl-C is the business of this process."""

_received = False
_raised: KeyboardInterrupt | None = None
"""The last one, to see how far it came."""


def is_command() -> bool:
    """Whether this process was started as ``pulptrain`` or ``python -m pulptrain``."""
    started = os.path.basename(sys.argv[0]) if sys.argv else ""
    if started != "-m":
        return os.path.splitext(started)[0] in ("pulptrain", "pulptrain-script")
    # While Python looks for the module of -m, its name stands before the arguments.
    return sys.orig_argv[len(sys.orig_argv) - len(sys.argv)].endswith("pulptrain")


def command_begun_seconds() -> float:
    """When the command began (`time.perf_counter`), imports and all; now, if Python called it."""
    return BEGUN_SECONDS if is_command() else time.perf_counter()


def begin() -> None:
    """From now on Ctrl-C ends the process at once. Not if its parent wants Ctrl-C to be ignored."""
    _switch(signal.default_int_handler, _leave)


def command_begins() -> None:
    """From now on Ctrl-C is a `KeyboardInterrupt`, for a command that keeps what it has."""
    if _switch(_leave, _stop):
        sys.unraisablehook = _not_lost
        if hasattr(signal, "SIGALRM"):
            signal.signal(signal.SIGALRM, _look_again)


def command_ends() -> None:
    """From now on Ctrl-C ends the process at once again: there is nothing left to keep."""
    if _switch(_stop, _leave) and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)  # one that still waits is known: `was_interrupted`


def all_is_done() -> None:
    """From now on Ctrl-C is ignored: only Python itself has something to do."""
    _switch(_leave, signal.SIG_IGN)


def _switch(before: object, after: object) -> bool:
    """Exchange one handler for another; whoever has set one of their own keeps it."""
    if signal.getsignal(signal.SIGINT) is not before:
        return False
    try:
        signal.signal(signal.SIGINT, after)
    except ValueError:
        return False  # not the main thread
    return True


def was_interrupted() -> bool:
    """Whether Ctrl-C came while a command worked, whatever exception it became on its way."""
    return _received


def say_interrupted() -> int:
    """One line on standard error; returns the exit code."""
    print(MESSAGE, file=sys.stderr)
    return EXIT_CODE


def _leave(_: int, frame: FrameType | None) -> None:
    if os.getpid() != _owner:
        return
    try:
        os.write(2, f"{MESSAGE}\n".encode())
    finally:
        os._exit(EXIT_CODE)


def _stop(_: int, frame: FrameType | None) -> None:
    global _received, _raised  # noqa: PLW0603 - there is one process, and one Ctrl-C
    if os.getpid() != _owner:
        return
    _received = True
    if hasattr(signal, "setitimer"):
        waits = _imports(frame)
        signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN_SECONDS if waits else _LOST_AFTER_SECONDS)
        if waits:
            _raised = None
            return
    _raised = KeyboardInterrupt()
    raise _raised


def _look_again(number: int, frame: FrameType | None) -> None:
    """Raise what had to wait, or was lost."""
    if _raised is None or not _came_out(_raised):
        _stop(number, frame)


def _came_out(error: KeyboardInterrupt) -> bool:
    """Whether an exception has reached code of ours (but the handler), which knows what to do with it."""
    reached = error.__traceback__
    if reached is None or reached.tb_next is None:
        return False
    file = reached.tb_frame.f_code.co_filename
    return file.startswith(_OWN_CODE) or _PASSES_ON in file


def _imports(frame: FrameType | None) -> bool:
    """Whether an import is under way."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORTLIB):
            return True
        frame = frame.f_back
    return False


def _not_lost(problem: sys.UnraisableHookArgs) -> None:
    """Python drops an exception in a finalizer or a callback of C: a Ctrl-C that came then comes again."""
    if problem.exc_type is KeyboardInterrupt and hasattr(signal, "setitimer"):
        global _raised  # noqa: PLW0603
        _raised = None
        signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN_SECONDS)
    else:
        sys.__unraisablehook__(problem)

"""Ctrl-C, from the first line of ours on: exit code 130 and one line, wherever it comes in.

While a command is imported nothing is worth keeping: the process says so and ends at once, because an
exception in the middle of a native import may surface as another one, or be lost. While a command works,
Ctrl-C is a `KeyboardInterrupt`, of which the command makes the best of what it has; only in the middle of an
import that it does on the way the exception waits until that is over. This module imports nothing slow.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` takes milliseconds to make enums
import os
import sys
from types import FrameType

EXIT_CODE = 130
MESSAGE = "pulptrain: interrupted"

_LOOK_AGAIN_SECONDS = 0.02
_IMPORTLIB = "<frozen importlib._bootstrap"

_owner = os.getpid()
"""A forked worker has our handlers too, and must not act on them: Ctrl-C is the business of this process."""

_received = False


def is_command() -> bool:
    """Whether this process was started as ``pulptrain`` or ``python -m pulptrain``."""
    started = os.path.basename(sys.argv[0]) if sys.argv else ""
    if started != "-m":
        return os.path.splitext(started)[0] in ("pulptrain", "pulptrain-script")
    # While Python looks for the module of -m, its name stands before the arguments.
    return sys.orig_argv[len(sys.orig_argv) - len(sys.argv)].endswith("pulptrain")


def leave_when_interrupted() -> None:
    """From now on Ctrl-C ends the process at once. Not if its parent wants Ctrl-C to be ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        try:
            signal.signal(signal.SIGINT, _leave)
        except ValueError:
            return  # not the main thread


def stop_when_interrupted() -> None:
    """From now on Ctrl-C is a `KeyboardInterrupt`, for commands that keep what they have."""
    if signal.getsignal(signal.SIGINT) is _leave:
        if hasattr(signal, "SIGALRM"):
            signal.signal(signal.SIGALRM, _stop)
        sys.unraisablehook = _not_lost
        signal.signal(signal.SIGINT, _stop)


def last_ones(exit_code: int) -> None:
    """From now on Ctrl-C is ignored, as all is done; or ends at once what an earlier one is ending."""
    if signal.getsignal(signal.SIGINT) is not _stop:
        return
    signal.signal(signal.SIGINT, _leave if exit_code == EXIT_CODE else signal.SIG_IGN)


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
    global _received  # noqa: PLW0603 - there is one process, and one Ctrl-C
    if os.getpid() != _owner:
        return
    _received = True
    if hasattr(signal, "setitimer") and _imports(frame):
        signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN_SECONDS)
        return
    raise KeyboardInterrupt


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
        signal.setitimer(signal.ITIMER_REAL, _LOOK_AGAIN_SECONDS)
    else:
        sys.__unraisablehook__(problem)

# SPDX-License-Identifier: Apache-2.0
"""What a command is doing, on standard error: one line that changes on a terminal, else lines now and then.

On a terminal it comes at once. Where standard error is none the first line comes after a moment, so that what
is refused at once is told in one line; another follows when what is done changes after a second or more, and
every ten seconds of the same: a log says what took so long. This module imports nothing slow.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from shutil import get_terminal_size

FIRST_SECONDS = 0.2
"""What is over sooner says nothing in a log."""

LINE_SECONDS = 1.0
"""What is over sooner gets no line of its own in a log."""

AGAIN_SECONDS = 10.0
"""Between two lines of a log about the same work."""

EARLY = 0.05
"""Share of the work before which nothing is known of the time left: the first pieces are no sample."""

FRAME_SECONDS = 0.1
"""Between two changes of the line on a terminal."""


class Teller:
    """Told what is being done; says it unless it is quiet."""

    def __init__(self, show: bool) -> None:
        self._terminal = show and sys.stderr.isatty()
        self._lines = show and not self._terminal
        self._told = float("-inf")
        self._stage = ""
        self._begun = self._start = time.monotonic()
        self._timer: threading.Timer | None = None

    def stage(self, text: str) -> None:
        """Another piece of work begins: ``simulating one iteration``."""
        now = time.monotonic()
        if self._terminal:
            self._show(f"{text} ...")
        elif self._lines and not self._stage:
            self._timer = threading.Timer(min(FIRST_SECONDS, threading.TIMEOUT_MAX), self._first)
            self._timer.daemon = True
            self._timer.start()
        elif self._lines and now - self._begun >= LINE_SECONDS:
            self._print(text, now)
        self._stage, self._begun, self._start = text, now, now

    def alone(self) -> None:
        """From here on there is no thread but that of the caller: processes may be forked."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            if self._told < 0:
                self._print(self._stage, time.monotonic())
            self._timer = None

    def count(self, done: int, total: int, more: str = "") -> None:
        """So much of the piece of work is done; `more` is added to the line."""
        now = time.monotonic()
        if now - self._told < (FRAME_SECONDS if self._terminal else AGAIN_SECONDS):
            return
        if self._lines and now - self._start < AGAIN_SECONDS:
            return
        text = f"{self._stage}: {done:,} of {total:,}{more}{_left(now - self._start, done, total)}"
        if self._terminal:
            self._show(text)
            self._told = now
        elif self._lines:
            self._print(text, now)

    def iterations(self, done: int, total: int, loss: float) -> None:
        """The same of training."""
        self.count(done, total, f" iterations, loss {loss:.4f}")

    def end(self) -> None:
        """Nothing is being done any more: the line on a terminal goes away."""
        if self._timer is not None:
            self._timer.cancel()
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _show(self, text: str) -> None:
        width = get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)

    def _first(self) -> None:
        self._print(self._stage, time.monotonic())

    def _print(self, text: str, now: float) -> None:
        print(f"pulptrain: {text}", file=sys.stderr, flush=True)
        self._told = now


def _left(seconds: float, done: int, total: int) -> str:
    if done < EARLY * total or done >= total:
        return ""
    left = seconds * (total - done) / done
    return f", {left / 60:.0f} min left" if left >= 90 else f", {left:.0f} s left"


@contextmanager
def telling(first: str, *, show: bool) -> Iterator[Teller]:
    """A teller for the length of a ``with``, which begins with the stage `first`."""
    teller = Teller(show)
    teller.stage(first)
    try:
        yield teller
    finally:
        teller.end()


class StageMeter:
    """The meter of a search (`scheduler.search.progress.Meter`) that tells its counts."""

    def __init__(self, teller: Teller, what: str) -> None:
        self._teller, self._what = teller, what
        self._total = self._done = 0

    def expect(self, items: int) -> None:
        """So many more items may have to be done."""
        self._total += items

    def done(self, items: int) -> None:
        """So many items have been done, or need not be done."""
        self._done += items
        self._teller.count(self._done, self._total, f" {self._what}")


NOBODY = Teller(False)
"""Says nothing."""

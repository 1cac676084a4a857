# SPDX-License-Identifier: Apache-2.0
"""How much work a piece of code does, in calls of functions: equal on every machine, busy or not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Work:
    """Calls so far, of functions of Python and of C, in this thread."""

    calls: int = 0


@contextmanager
def counted() -> Iterator[Work]:
    """Counts what is called inside."""
    work = Work()

    def count(frame: object, event: str, argument: object) -> None:
        work.calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield work
    finally:
        sys.setprofile(before)

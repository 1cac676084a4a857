# SPDX-License-Identifier: Apache-2.0
"""How far a search is: counts, rate and time left, drawn by rich or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class Meter(Protocol):
    """Told how the work grows and shrinks; all numbers are items such as candidates."""

    def expect(self, items: int) -> None:
        """So many more items may have to be done."""

    def done(self, items: int) -> None:
        """So many items have been done, or need not be done."""


class NoMeter:
    """Shows nothing."""

    def expect(self, items: int) -> None:
        """Ignored."""

    def done(self, items: int) -> None:
        """Ignored."""


class _Rate(TextColumn):
    def __init__(self, what: str) -> None:
        super().__init__("")
        self._what = what

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(
            f"{speed:.0f} {self._what}/s" if speed else f"- {self._what}/s", style="progress.data.speed"
        )


class _Bar:
    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=0)
        self._total = 0

    def expect(self, items: int) -> None:
        self._total += items
        self._progress.update(self._task, total=self._total)

    def done(self, items: int) -> None:
        self._progress.advance(self._task, items)


@contextmanager
def meter(title: str, what: str, *, show: bool) -> Iterator[Meter]:
    """A bar on standard error for the length of a ``with``: `what` done, of how many, rate, time left."""
    if not show:
        yield NoMeter()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(what),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress, title)

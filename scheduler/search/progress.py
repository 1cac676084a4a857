# SPDX-License-Identifier: Apache-2.0
"""How far a search is, for whoever wants to show it."""

from __future__ import annotations

from typing import Protocol


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

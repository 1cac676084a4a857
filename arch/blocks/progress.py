# SPDX-License-Identifier: Apache-2.0
"""Work that advances at piecewise rates: a share of a kernel while DMA traffic comes and goes, and a transfer
while kernels come and go."""

from __future__ import annotations

from math import gcd


class Progress:
    """A piece of work that takes `cycles` as a whole at its present rate and ends at `end_cycles`.

    The part still to do is an exact fraction, kept as two integers, so that the end does not depend on how
    often the rate was set.
    """

    __slots__ = ("_left", "_since", "_whole", "cycles", "end_cycles", "start_cycles")

    def __init__(self, start_cycles: int, cycles: int) -> None:
        self.start_cycles = start_cycles
        self.cycles = cycles
        self.end_cycles = start_cycles + cycles
        self._since = start_cycles
        self._left = self._whole = 1

    @property
    def left(self) -> tuple[int, int]:
        """(numerator, denominator) of the part to do since the last change of the rate."""
        return self._left, self._whole

    def change(self, now: int, cycles: int) -> tuple[int, int]:
        """From `now` on the work advances as if it took `cycles` as a whole.

        Returns (numerator, denominator) of the part done since the last change. Has no effect on work that
        has ended; work that has not started changes before its start.
        """
        if now >= self.end_cycles:
            return 0, 1
        begin = max(now, self.start_cycles)
        elapsed, left, whole = begin - self._since, self._left, self._whole
        done = (0, 1)
        if elapsed > 0:
            # now < end, so less than what was left has been done.
            done = (elapsed, self.cycles)
            left = left * self.cycles - elapsed * whole
            whole *= self.cycles
            if left <= 0:
                done, left, whole = (self._left, self._whole), 0, 1
            common = gcd(left, whole)
            self._left, self._whole = left, whole = left // common, whole // common
        self._since = begin
        self.cycles = cycles
        self.end_cycles = begin - (-left * cycles) // whole
        return done

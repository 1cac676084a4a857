# SPDX-License-Identifier: Apache-2.0
"""Clock domains: integer cycles, and conversions that round up and never silently down."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from configs.errors import ConfigError
from configs.values import Struct


class Clock(Struct, frozen=True):
    """A clock domain of `frequency_hz` cycles per second."""

    name: str
    frequency_hz: int

    def __post_init__(self) -> None:
        if self.frequency_hz <= 0:
            raise ConfigError(
                f"clock {self.name} has a frequency of {self.frequency_hz} Hz",
                cure="use a frequency above 0 Hz",
            )

    def cycles_in(self, cycles: int | Fraction, domain: Clock) -> int:
        """Cycles of `domain` that cover `cycles` of this clock, rounded up."""
        if cycles < 0:
            raise ConfigError(
                f"clock {self.name} cannot convert {cycles} cycles, less than 0",
                cure="use 0 cycles or more",
            )
        if domain.frequency_hz == self.frequency_hz:
            return ceil(cycles)
        return ceil(Fraction(cycles) * domain.frequency_hz / self.frequency_hz)

    def seconds(self, cycles: int) -> float:
        """Duration of `cycles` in seconds."""
        return cycles / self.frequency_hz

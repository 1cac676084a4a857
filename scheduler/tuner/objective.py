# SPDX-License-Identifier: Apache-2.0
"""What a search makes small: cycles, energy, or energy times delay of the iteration."""

from __future__ import annotations

from arch.energy.accounting import EVENTS, OperatingPoint
from arch.energy.activity import Counts
from configs.energy_model import COEFFICIENTS, EnergyModel
from configs.errors import InputError
from configs.values import Struct

CYCLES, ENERGY, EDP = OBJECTIVES = ("cycles", "energy", "edp")

_UNITS_OF_JOULE = 10**15
"""Costs are whole femtojoules: a candidate that costs less by rounding alone is as good."""


class Objective(Struct, frozen=True):
    """What a candidate costs.

    Of energy it is its joules. Energy times delay is of the iteration, E·T, and no sum over ops; an op that
    changes by dE and dT changes it by T·dE + E·dT. So an op costs its joules, and its seconds times E/T, the
    average power of the iteration before it is tuned.
    """

    name: str = CYCLES
    joules: tuple[tuple[str, float], ...] = ()
    """By coefficient, of one of its events at the operating point; leakage of a cycle."""
    watts_per_hz: float = 0.0
    """Joules that a cycle costs beside that."""

    @property
    def counts(self) -> bool:
        """Whether it needs activity."""
        return self.name != CYCLES

    def cost(self, counts: Counts, cycles: int) -> int:
        """Of a program of so many cycles; 0 if only cycles count."""
        if not self.counts:
            return 0
        joules = self._joules({**counts, "cycles": cycles})
        return round(_UNITS_OF_JOULE * (joules + self.watts_per_hz * cycles))

    def of_iteration(self, counts: Counts, cycles: int) -> float:
        """What a whole iteration costs."""
        if not self.counts:
            return cycles
        return self._joules(counts) * (cycles if self.name == EDP else 1)

    def _joules(self, counts: Counts) -> float:
        return sum(EVENTS[name](counts) * each for name, each in self.joules)


def objective_of(name: str, model: EnergyModel, point: OperatingPoint, average_watts: float) -> Objective:
    """Energy, or energy times delay, by a model at an operating point.

    Raises `InputError` for a model without one of the coefficients: any of them may be needed.
    """
    missing = [each for each in COEFFICIENTS if each not in model.coefficients]
    if missing:
        raise InputError(
            f"the energy model {model.name} lacks {', '.join(missing)}",
            where="--objective",
            cure="add them to a copy of the energy model (--energy FILE.yaml), or use another model",
        )
    joules = []
    for each, meaning in COEFFICIENTS.items():
        value = model.coefficients[each].at(point.vdd, meaning.exponent)[1]
        joules.append((each, value / point.hz if meaning.unit == "W" else value))
    return Objective(name, tuple(joules), average_watts / point.hz if name == EDP else 0.0)

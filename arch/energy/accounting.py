# SPDX-License-Identifier: Apache-2.0
"""The energy of a run: its activity times the coefficients of a chip, by block and by op, with its range.

Coefficients count as independent of each other: what each may be off adds up in squares. So all of them at
their low, or high, is further out than the range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

from arch.energy.activity import Activity, Counts
from configs.dtypes import DTYPES
from configs.energy_model import COEFFICIENTS, EnergyModel
from configs.errors import InputError
from configs.values import Struct

_BITS = {form.word: form.bits for form in DTYPES}


def _sums(*names: str) -> Callable[[Counts], int]:
    return lambda counts: sum(counts.get(name, 0) for name in names)


def _fpu(bits: int) -> Callable[[Counts], int]:
    def operations(counts: Counts) -> int:
        """Numbers that FPU instructions on this format compute."""
        total = 0
        for name, count in counts.items():
            if name.startswith("fpu_"):
                word, _, lanes = name.removeprefix("fpu_").rpartition("x")
                total += count * int(lanes) if _BITS[word] == bits else 0
        return total

    return operations


EVENTS: Mapping[str, Callable[[Counts], int]] = {
    "core_instruction": _sums("instructions", "runtime_cycles"),
    "core_stall": _sums("stalled_cycles"),
    "core_asleep": _sums("asleep_cycles"),
    "fpu_32bit": _fpu(32),
    "fpu_16bit": _fpu(16),
    "l1_word": _sums("l1_words", "l1_dma_words"),
    "icache_fetch": _sums("icache_fetches"),
    "l2_byte": lambda counts: (
        _sums("l2_read_bytes", "l2_written_bytes")(counts) - counts.get("udma_bytes", 0)
    ),
    "l3_byte": _sums("l3_read_bytes", "l3_written_bytes"),
    "cluster_clock": _sums("cycles"),
    "leakage": _sums("cycles"),
}
"""What a coefficient is multiplied with; those in W by the time of these cycles."""


class OperatingPoint(Struct, frozen=True):
    """Supply of the cores and clock of the cluster."""

    vdd: float
    hz: int


class Energy(Struct, frozen=True):
    """Joules: nominal by op and coefficient; by coefficient how far down and up they may be off."""

    by_op: Mapping[str, Mapping[str, float]]
    below: Mapping[str, float]
    above: Mapping[str, float]
    seconds: float

    @property
    def by_coefficient(self) -> dict[str, float]:
        """Of all ops."""
        return {name: sum(terms[name] for terms in self.by_op.values()) for name in COEFFICIENTS}

    @property
    def by_block(self) -> dict[str, float]:
        """Of all ops, by what the coefficients are of."""
        return blocks_of(self.by_coefficient)

    @property
    def nominal(self) -> float:
        """All of it."""
        return sum(self.by_coefficient.values())

    @property
    def low(self) -> float:
        """The lower end of the range."""
        return self.nominal - sqrt(sum(joules**2 for joules in self.below.values()))

    @property
    def high(self) -> float:
        """The upper end of the range."""
        return self.nominal + sqrt(sum(joules**2 for joules in self.above.values()))


def blocks_of(by_coefficient: Mapping[str, float]) -> dict[str, float]:
    """Joules added up by what the coefficients are of."""
    blocks: dict[str, float] = {}
    for name, joules in by_coefficient.items():
        block = COEFFICIENTS[name].block
        blocks[block] = blocks.get(block, 0.0) + joules
    return blocks


def missing_coefficients(counts: Counts, model: EnergyModel) -> list[str]:
    """Coefficients that these counts need and the model has not."""
    return [name for name, of in EVENTS.items() if name not in model.coefficients and of(counts)]


def energy_of(activity: Activity, model: EnergyModel, point: OperatingPoint) -> Energy:
    """What `activity` takes on a chip at an operating point.

    Raises `InputError` that names the coefficients it needs and the model has not.
    """
    missing = missing_coefficients(activity.total, model)
    if missing:
        raise InputError(
            f"the energy model {model.name} lacks the coefficients {', '.join(missing)}",
            where=model.where,
            cure="add them to a copy of the energy model (--energy FILE.yaml), or use another model",
        )
    each = {
        name: item.at(point.vdd, COEFFICIENTS[name].exponent) for name, item in model.coefficients.items()
    }

    def joules(counts: Counts, which: int) -> dict[str, float]:
        return {
            name: (
                of(counts) * each[name][which] / (point.hz if COEFFICIENTS[name].unit == "W" else 1)
                if name in each
                else 0.0
            )
            for name, of in EVENTS.items()
        }

    total = activity.total
    low, nominal, high = (joules(total, which) for which in range(3))
    return Energy(
        {op: joules(counts, 1) for op, counts in activity.by_op.items()},
        {name: nominal[name] - low[name] for name in EVENTS},
        {name: high[name] - nominal[name] for name in EVENTS},
        total.get("cycles", 0) / point.hz,
    )


def factor_for(
    model: EnergyModel, activity: Activity, point: OperatingPoint, measured_joules: float
) -> float:
    """The factor on all coefficients of the chip itself that makes a run take what was measured.

    What is off-chip keeps its coefficient. Raises `InputError` for a measurement that off-chip traffic alone
    is above, and a run that takes nothing.
    """
    terms = energy_of(activity, model, point).by_coefficient
    off_chip = terms["l3_byte"]
    on_chip = sum(terms.values()) - off_chip
    if on_chip <= 0 or measured_joules <= off_chip:
        raise InputError(
            f"{model.name} predicts {off_chip:.4g} J off-chip and {on_chip:.4g} J on-chip, so scaling the "
            f"on-chip part cannot match the measured {measured_joules:.4g} J",
            where="--measured",
            cure="use the run that was measured, or your own off-chip coefficients (--energy FILE)",
        )
    return (measured_joules - off_chip) / on_chip

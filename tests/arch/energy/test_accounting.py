# SPDX-License-Identifier: Apache-2.0
"""Energy is conserved over ops, blocks and coefficients, and follows coefficients, voltage and clock."""

from __future__ import annotations

from math import isclose, sqrt

import pytest

from arch.energy.accounting import EVENTS, Energy, OperatingPoint, energy_of, factor_for
from arch.energy.activity import Activity
from configs.energy_model import COEFFICIENTS, EnergyModel, load_energy
from configs.errors import InputError
from configs.values import replace

MODEL = load_energy("gap9")
POINT = OperatingPoint(0.8, 370_000_000)
ACTIVITY = Activity(
    {
        "a.FW": {
            "instructions": 1000, "stalled_cycles": 30, "runtime_cycles": 7, "asleep_cycles": 400,
            "cycles": 200,
            "fpu_fp32x1": 100, "fpu_fp16x2": 11, "fpu_bf16x1": 5, "l1_words": 333, "l1_dma_words": 50,
            "icache_fetches": 1007, "l2_read_bytes": 200, "l2_written_bytes": 64, "udma_bytes": 64,
            "l3_read_bytes": 64,
        },
        "b.IG": {"instructions": 10, "cycles": 20},
        "": {"cycles": 5, "asleep_cycles": 40},
    },
    {},
)  # fmt: skip


def changed(name: str, factor: float) -> EnergyModel:
    coefficients = {**MODEL.coefficients, name: MODEL.coefficients[name].times(factor)}
    return replace(MODEL, coefficients=coefficients)


def of(model: EnergyModel = MODEL, point: OperatingPoint = POINT) -> Energy:
    return energy_of(ACTIVITY, model, point)


@pytest.mark.smoke
def test_ops_blocks_and_coefficients_add_up_to_the_same() -> None:
    energy = of()
    assert isclose(sum(sum(terms.values()) for terms in energy.by_op.values()), energy.nominal)
    assert isclose(sum(energy.by_block.values()), energy.nominal)
    assert isclose(sum(energy.by_coefficient.values()), energy.nominal)
    assert 0 < energy.low < energy.nominal < energy.high
    assert set(energy.by_coefficient) == set(COEFFICIENTS) == set(EVENTS)


def test_each_term_is_a_count_times_its_coefficient() -> None:
    terms = of().by_coefficient
    events = {
        "core_instruction": 1017, "core_stall": 30, "core_asleep": 440, "fpu_32bit": 100, "fpu_16bit": 27,
        "l1_word": 383, "icache_fetch": 1007, "l2_byte": 200, "l3_byte": 64, "cluster_clock": 225,
    }  # fmt: skip
    for name, count in events.items():
        assert isclose(terms[name], count * MODEL.coefficients[name].nominal), name
    assert isclose(terms["leakage"], MODEL.coefficients["leakage"].nominal * 225 / POINT.hz)


def test_no_coefficients_no_energy() -> None:
    nothing = replace(MODEL, coefficients={name: item.times(0) for name, item in MODEL.coefficients.items()})
    energy = of(nothing)
    assert (energy.low, energy.nominal, energy.high) == (0, 0, 0)


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_twice_the_coefficient_is_twice_its_share_and_nothing_else(name: str) -> None:
    before, after = of().by_coefficient, of(changed(name, 2)).by_coefficient
    assert isclose(after[name], 2 * before[name])
    assert {key: value for key, value in after.items() if key != name} == {
        key: value for key, value in before.items() if key != name
    }


def test_the_range_adds_up_in_squares() -> None:
    energy = of()
    assert isclose(energy.nominal - energy.low, sqrt(sum(part**2 for part in energy.below.values())))
    assert isclose(energy.high - energy.nominal, sqrt(sum(part**2 for part in energy.above.values())))


def test_dynamic_energy_goes_with_the_square_of_the_voltage_leakage_with_voltage_and_time() -> None:
    low = of(point=OperatingPoint(0.65, 240_000_000)).by_coefficient
    for name, joules in of().by_coefficient.items():
        exponent = {"l3_byte": 0, "leakage": 1}.get(name, 2)
        slower = 370 / 240 if name == "leakage" else 1
        assert isclose(low[name], joules * (0.65 / 0.8) ** exponent * slower), name


def test_a_coefficient_that_is_needed_and_missing_is_named() -> None:
    coefficients = {
        name: item for name, item in MODEL.coefficients.items() if name not in ("fpu_16bit", "l3_byte")
    }
    with pytest.raises(InputError, match="the energy model gap9 lacks the coefficients fpu_16bit, l3_byte"):
        of(replace(MODEL, coefficients=coefficients))
    without = replace(ACTIVITY, by_op={"b.IG": ACTIVITY.by_op["b.IG"]})
    assert energy_of(without, replace(MODEL, coefficients=coefficients), POINT).nominal > 0


def test_a_measured_total_sets_the_chip_and_leaves_what_is_off_chip() -> None:
    factor = factor_for(MODEL, ACTIVITY, POINT, 1e-6)
    fitted = MODEL.scaled(factor, "fitted")
    assert isclose(of(fitted).nominal, 1e-6)
    assert fitted.coefficients["l3_byte"] == MODEL.coefficients["l3_byte"]
    assert all(item.fitted for name, item in fitted.coefficients.items() if name != "l3_byte")
    with pytest.raises(InputError, match="off-chip"):
        factor_for(MODEL, ACTIVITY, POINT, 1e-9)

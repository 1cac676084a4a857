# SPDX-License-Identifier: Apache-2.0
"""Energy models: what ships can be read and says where it is from; what is wrong is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.energy_model import COEFFICIENTS, energy_text, load_energy, model_for
from configs.errors import ConfigError, InputError
from configs.library import list_names
from configs.units import parse_si

GOOD = energy_text(load_energy("generic-22fdx"), ())


@pytest.mark.parametrize("name", list_names("energy"))
def test_every_coefficient_of_a_model_that_ships_has_condition_source_and_range(name: str) -> None:
    model = load_energy(name)
    assert model.name == name
    assert model.coefficients.keys() == COEFFICIENTS.keys()
    for item in model.coefficients.values():
        assert item.condition
        assert item.source
        assert 0 <= item.low <= item.nominal <= item.high
    assert any(item.fitted for item in model.coefficients.values()) == (name != "generic-22fdx")
    for soc in model.socs:
        assert model_for(soc) == name


def test_chips_with_a_model() -> None:
    assert [model_for(soc) for soc in ("vega", "gap9", "mr-wolf", "siracusa", "pulp-open")] == [
        *("vega", "gap9", "mr-wolf", "siracusa"),
        None,
    ]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD)
    again, model = load_energy(file), load_energy("generic-22fdx")
    assert again.coefficients == model.coefficients
    assert again.points == model.points


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nominal: 4.1 pJ", "nominal: 4.1", "has no unit"),
        ("nominal: 4.1 pJ", "nominal: -4.1 pJ", "is negative"),
        ("nominal: 4.1 pJ", "nominal: 4.1 pW", "the unit of .* is not J"),
        ("nominal: 4.1 pJ", "nominal: 9.1 pJ", "does not satisfy low <= nominal <= high"),
        ("nominal: 4.1 pJ", "nominal: lots", "is not an amount in J"),
        ("    vdd: 0.8 V", "    vdd: 0 V", "the supply voltage is 0 V"),
        ("core_stall:", "core_stal:", "unknown coefficient 'core_stal'"),
        ("grade: derived", "grade: guessed", "unknown grade 'guessed'"),
        ("frequency: 370 MHz", "frequency: 200 MHz", "must both rise"),
        ("- vdd: 0.65 V", "- vdd: 0.65", "has no unit"),
        ("process:", "proces:", "unknown key 'proces'"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in GOOD
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message) as caught:
        load_energy(file)
    assert f"{file}:" in str(caught.value)


def test_a_voltage_follows_the_clock_and_stays_within_the_points() -> None:
    model = load_energy("gap9")
    assert model.voltage(None, 370_000_000) == pytest.approx(0.8)
    assert model.voltage(None, 305_000_000) == pytest.approx(0.725)
    assert model.voltage(None, 50_000_000) == 0.65
    assert model.voltage(0.8, 50_000_000) == 0.8
    for vdd, hz, message in (
        (0.9, 100_000_000, "outside the operating points"),
        (0.6, 100_000_000, "outside the operating points"),
        (0.65, 300_000_000, "reaches 240 MHz at 0.65 V, not 300 MHz"),
        (None, 400_000_000, "reaches 370 MHz at 0.8 V, not 400 MHz"),
    ):
        with pytest.raises(InputError, match=message):
            model.voltage(vdd, hz)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [("57.6mW", "W", 0.0576), ("880 pJ", "J", 8.8e-10), ("0.65V", "V", 0.65), ("3 µJ", "J", 3e-6)],
)
def test_amounts_have_a_prefix_and_a_unit(text: str, unit: str, value: float) -> None:
    assert parse_si(text, unit) == pytest.approx(value)

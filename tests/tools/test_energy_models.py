# SPDX-License-Identifier: Apache-2.0
"""The models of chips are the generic one, scaled to what was published; what sets nothing is not far off."""

from __future__ import annotations

from math import isclose

import pytest

from configs.energy_model import load_energy
from tools.energy_models import FITS, FOLDER, Fit
from tools.pages.energy import checks


@pytest.mark.parametrize(
    "fit",
    [pytest.param(fit, id=fit.chip, marks=() if fit.chip == "vega" else pytest.mark.slow) for fit in FITS],
)
def test_a_fitted_model_is_as_written_and_gives_what_was_published(fit: Fit) -> None:
    """If this fails after a change of cycles or counts: python -m tools.energy_models."""
    assert (FOLDER / f"{fit.chip}.yaml").read_text(encoding="utf-8") == fit.text()
    work = fit.workload()
    energy = work.energy(load_energy(fit.chip), fit.vdd, fit.hz)
    leakage = energy.by_coefficient["leakage"] if fit.leakage is not None else 0
    assert isclose(energy.nominal - leakage, fit.joules(work), rel_tol=2e-3)  # files have four digits


@pytest.mark.slow
def test_what_was_published_and_set_nothing_is_inside_the_range() -> None:
    for check in checks():
        low, nominal, high = check.simulated
        assert low < nominal < high
        if not check.bound:
            assert low <= check.published <= high, check.what
        elif check.unit == "mJ":
            assert high < check.published, check.what

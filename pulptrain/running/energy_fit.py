# SPDX-License-Identifier: Apache-2.0
"""A new energy model: the generic one, or that of a run scaled to what was measured of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arch.energy.accounting import OperatingPoint, factor_for
from configs.energy_model import EnergyModel, energy_text, load_energy
from configs.errors import ConfigError, InputError
from configs.units import parse_si
from configs.values import replace
from pulptrain.running.energy import activity_from, stored_energy
from pulptrain.running.stored_run import read_summary
from traces.csv_file import AGAIN

GENERIC = "generic-22fdx"


def model_text(name: str, schema: str, folder: str | None, measured: str | None) -> str:
    """The file of a model called `name`. Raises `InputError` for a run without energy, `ConfigError`."""
    about = [f"yaml-language-server: $schema={schema}"]
    if folder is None or measured is None:
        model = replace(load_energy(GENERIC), socs=())
        about.append(
            f"A copy of {GENERIC}: fill in the data of your chip, and add the name of its SoC file to socs."
        )
    else:
        model = fitted_model(read_summary(Path(folder)), folder, measured)
    return energy_text(replace(model, name=name, description=f"{name}, {model.description}"), about)


def fitted_model(summary: Mapping[str, Any], folder: str, measured: str) -> EnergyModel:
    """The model of a stored run, times what makes the run take what was `measured` (W or J an iteration)."""
    energy = stored_energy(summary, folder)
    try:
        joules = parse_si(measured, "W", where="--measured") * summary["cycles"] / summary["cluster_hz"]
    except ConfigError:
        joules = _joules(measured)
    try:
        model = load_energy(str(energy["energy_model"]))
        point = OperatingPoint(float(energy["vdd_volts"]), summary["cluster_hz"])
    except (KeyError, TypeError, ValueError):
        raise InputError(
            "the energy in the summary of the run is incomplete",
            where=folder,
            cure=AGAIN,
        ) from None
    factor = factor_for(model, activity_from(summary, folder), point, joules)
    run = f"{summary['model']} on {summary['soc']} at {point.hz / 1e6:g} MHz, {point.vdd:g} V"
    how = f"{model.name} times {factor:.3g}, fitted to {measured} measured of {run}"
    return replace(model.scaled(factor, how), description=how, socs=(summary["soc"],))


def _joules(measured: str) -> float:
    try:
        return parse_si(measured, "J", where="--measured")
    except ConfigError as error:
        raise InputError(
            f"'{measured}' must be a power or an energy",
            where="--measured",
            cure="write a power (57.6mW), or the energy of an iteration (0.8mJ)",
        ) from error

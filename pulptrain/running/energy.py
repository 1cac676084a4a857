# SPDX-License-Identifier: Apache-2.0
"""Activity and energy of a run: the objects `activity` and `energy` of a summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arch.energy.accounting import Energy, OperatingPoint, blocks_of, energy_of
from arch.energy.activity import Activity, Counts
from arch.spec.timing import SocTiming
from configs.energy_model import EnergyModel, load_energy, model_for
from configs.errors import InputError
from configs.library import list_names
from configs.units import parse_si
from pulptrain.inputs.settings import Settings
from traces.csv_file import AGAIN, write_rows

ACTIVITY_NAME = "activity.csv"

OFFLOAD = "offload"
"""What the hand-over of the task is called where ops have names."""

Chip = tuple[EnergyModel, OperatingPoint]
"""Coefficients, and where they are used."""


def chip_of(settings: Settings, timing: SocTiming) -> Chip:
    """The energy model and the operating point that the settings ask for.

    Raises `ConfigError` for a model that is wrong, `InputError` for a SoC without one and for an operating
    point the chip has not.
    """
    name = settings.energy or model_for(timing.name)
    if name is None:
        raise InputError(
            f"energy is computed here, but SoC {timing.name} has no energy coefficients",
            where="--energy",
            cure=f"use --energy with one of {', '.join(list_names('energy'))}, or a file (docs/energy.md)",
        )
    model = load_energy(name)
    vdd = parse_si(settings.vdd, "V", where="--vdd") if settings.vdd is not None else None
    hz = timing.clock.cluster_hz
    return model, OperatingPoint(model.voltage(vdd, hz), hz)


def stored_energy(summary: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The object `energy` of a summary. Raises `InputError`, at `where`, for a run without coefficients."""
    energy: Mapping[str, Any] | None = summary.get("energy")
    if energy is None:
        note = str(summary.get("energy_note") or "the summary has no energy").partition(": ")[0]
        cure = "repeat the run with coefficients, e.g. `pulptrain run MODEL --energy gap9 --out DIR`"
        raise InputError(f"the energy of the run is unknown: {note}", where=where, cure=cure)
    return energy


def check_asked(settings: Settings) -> None:
    """Raise `ConfigError` for an energy model or a voltage that is wrong at any operating point."""
    if settings.energy is not None:
        load_energy(settings.energy)
    if settings.vdd is not None:
        parse_si(settings.vdd, "V", where="--vdd")


def asked_chip(settings: Settings, timing: SocTiming) -> Chip | None:
    """The same; None where no energy was asked for and there is none. Raises only if some was asked for."""
    try:
        return chip_of(settings, timing)
    except InputError:
        if settings.energy is not None or settings.vdd is not None:
            raise
        return None


def with_energy(
    summary: Mapping[str, Any], activity: Activity, settings: Settings, timing: SocTiming
) -> dict[str, Any]:
    """The summary with `activity`, `energy`, `energy_note` and the joules of its ops.

    For a chip without coefficients there is no energy, and the note says what is missing. Raises `InputError`
    if energy was asked for (``--energy``, ``--vdd``) and cannot be told.
    """
    energy, note = None, None
    try:
        chip = chip_of(settings, timing)
        energy = energy_object(energy_of(activity, *chip), *chip, settings.energy)
    except InputError as error:
        if settings.energy is not None or settings.vdd is not None:
            raise
        note = f"{error.message}: {error.cure}"
    joules = {item["name"]: item["joules"] for item in energy["by_op"]} if energy is not None else {}
    return {
        **summary,
        "ops": [{**op, "joules": joules.get(op["name"])} for op in summary["ops"]],
        "activity": {
            "counters": activity.total,
            "by_op": _entries({op or OFFLOAD: counts for op, counts in activity.by_op.items()}),
            "by_core": _entries(activity.by_core),
        },
        "energy": energy,
        "energy_note": note,
    }


def _entries(by_name: Mapping[str, Counts]) -> list[dict[str, Any]]:
    return [{"name": name, "counters": dict(counts)} for name, counts in by_name.items()]


def write_activity(activity: Mapping[str, Any], path: Path) -> Path:
    """Write `activity` of a summary as a table: a row per op and core, a column per counter."""
    rows = [("op", item) for item in activity["by_op"]] + [("core", item) for item in activity["by_core"]]
    names = list(activity["counters"])
    cells = ([of, item["name"], *(item["counters"].get(name, 0) for name in names)] for of, item in rows)
    return write_rows(path, ["of", "name", *names], cells)


def activity_from(summary: Mapping[str, Any], where: str) -> Activity:
    """The activity of a stored summary. Raises `InputError` for one that has none."""
    try:
        by_op, by_core = (
            {str(item["name"]): dict(item["counters"]) for item in summary["activity"][key]}
            for key in ("by_op", "by_core")
        )
        return Activity(by_op, by_core)
    except (KeyError, TypeError, ValueError):
        raise InputError(
            "the summary of the run lacks 'activity', which energy is computed from", where=where, cure=AGAIN
        ) from None


def energy_object(
    energy: Energy, model: EnergyModel, point: OperatingPoint, asked: str | None = None
) -> dict[str, Any]:
    """`energy` of the contract; coefficients in the order of what they add to the range."""
    terms = energy.by_coefficient
    ordered = sorted(terms, key=lambda name: (-energy.below[name] - energy.above[name], name))
    return {
        "low_joules": energy.low,
        "nominal_joules": energy.nominal,
        "high_joules": energy.high,
        "by_block": energy.by_block,
        "by_op": [
            {"name": op or OFFLOAD, "joules": sum(each.values()), "by_block": blocks_of(each)}
            for op, each in energy.by_op.items()
        ],
        "by_coefficient": [
            {
                "name": name,
                "joules": terms[name],
                "less_joules": energy.below[name],
                "more_joules": energy.above[name],
                "fitted": model.coefficients[name].fitted,
                "grade": model.coefficients[name].grade,
            }
            for name in ordered
            if name in model.coefficients
        ],
        "average_watts": energy.nominal / energy.seconds if energy.seconds else 0.0,
        "edp_joule_seconds": energy.nominal * energy.seconds,
        "vdd_volts": point.vdd,
        "energy_model": asked or model.name,
    }

# SPDX-License-Identifier: Apache-2.0
"""Energy models of chips, ``configs/energy/*.yaml``: a few coefficients with range, condition and source.

A coefficient is J for an event or W that flow all the time, at the voltage of its condition. At another one
what is dynamic goes with the square of the voltage (charge and voltage of what is switched), what leaks with
the voltage (a current that stays), and what is off-chip, with a supply of its own, not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from configs.errors import InputError
from configs.library import list_names, open_config
from configs.problems import Problems
from configs.schema import Schema, check_keys, required_and_optional, validate
from configs.suggest import suggestion
from configs.units import parse_hz, parse_si
from configs.values import Struct, replace
from configs.yaml_file import Node

_SOCS = re.compile(r"^socs: *\[(.*)\] *$", re.MULTILINE)


class Meaning(NamedTuple):
    """Of a coefficient: unit, block, the power of the voltage it goes with, what it is for."""

    unit: str
    block: str
    exponent: int
    of: str


COEFFICIENTS: Mapping[str, Meaning] = {
    "core_instruction": Meaning("J", "cores", 2, "one issued instruction, without fetch, FPU and L1"),
    "core_stall": Meaning("J", "cores", 2, "a cycle in which a clocked core issues no instruction"),
    "core_asleep": Meaning("J", "cores", 2, "a cycle of a clock-gated core"),
    "fpu_32bit": Meaning("J", "fpu", 2, "a 32-bit FPU operation; a multiply-add counts as one"),
    "fpu_16bit": Meaning("J", "fpu", 2, "a 16-bit FPU operation; a SIMD instruction counts as two"),
    "l1_word": Meaning("J", "l1", 2, "a word of L1 that a core or the DMA reads or writes"),
    "icache_fetch": Meaning("J", "icache", 2, "a fetched instruction"),
    "l2_byte": Meaning("J", "l2", 2, "a byte between L2 and L1 (including the DMA) or a core"),
    "l3_byte": Meaning("J", "off_chip", 0, "a byte between L2 and off-chip memory (including it)"),
    "cluster_clock": Meaning("J", "clock_tree", 2, "a cluster cycle, independent of the cores"),
    "leakage": Meaning("W", "leakage", 1, "the whole chip, at all times"),
}
"""All coefficients a model may have."""

GRADES = ("measured", "abstract", "derived", "recalled", "second-hand", "placeholder", "assumed")
"""What a coefficient rests on, the best first."""


Amount = str | int | float
"""With a unit: a number without one is refused where it stands."""


class CoefficientSchema(Schema):
    """A coefficient with its range, condition and source."""

    low: Amount
    """Lower bound, with its unit."""
    nominal: Amount
    """Nominal value."""
    high: Amount
    """Upper bound."""
    vdd: Amount
    """Voltage of these values."""
    condition: str = ""
    """Other conditions: process, frequency, workload."""
    source: str
    """Source of the values."""
    grade: str
    """Quality of the source."""
    fitted: bool = False
    """Whether it was scaled to a measured total, instead of being measured itself."""


class PointSchema(Schema):
    """An operating point."""

    vdd: Amount
    """Supply voltage of the cores."""
    frequency: Amount
    """Highest clock at this voltage."""
    source: str
    """Where that comes from."""


class EnergySchema(Schema):
    """The energy model of a chip."""

    name: str
    """Name in results."""
    description: str
    """A sentence."""
    process: str
    """Process of the chip, or of the chips behind the figures."""
    socs: object = None
    """SoC files that use it without --energy."""
    points: object
    """Operating points, lowest voltage first; the highest clock is interpolated between them."""
    coefficients: object
    """Coefficients by name; an omitted one is unknown, and runs that need it print no energy."""


class Coefficient(Struct, frozen=True):
    """J or W at `vdd` volts."""

    low: float
    nominal: float
    high: float
    vdd: float
    condition: str
    source: str
    grade: str
    fitted: bool = False

    def at(self, vdd: float, exponent: int) -> tuple[float, float, float]:
        """Low, nominal and high at another voltage."""
        factor = (vdd / self.vdd) ** exponent
        return self.low * factor, self.nominal * factor, self.high * factor

    def times(self, factor: float) -> Coefficient:
        """`factor` times as much, its range too."""
        return replace(self, low=self.low * factor, nominal=self.nominal * factor, high=self.high * factor)


class EnergyModel(Struct, frozen=True):
    """Coefficients of a chip, and (voltage, highest clock in Hz, source) of its operating points in order."""

    name: str
    description: str
    process: str
    socs: tuple[str, ...]
    points: tuple[tuple[float, int, str], ...]
    coefficients: Mapping[str, Coefficient]
    where: str = ""

    def scaled(self, factor: float, how: str) -> EnergyModel:
        """The model of a chip that takes `factor` times as much, but off-chip; `how` says why."""
        return replace(
            self,
            coefficients={
                name: item
                if not COEFFICIENTS[name].exponent
                else replace(item.times(factor), condition=how, fitted=True)
                for name, item in self.coefficients.items()
            },
        )

    def highest_hz(self, vdd: float) -> float:
        """The highest clock at a voltage within the points."""
        for (low, low_hz, _), (high, high_hz, _) in pairwise(self.points):
            if low <= vdd <= high:
                return low_hz + (high_hz - low_hz) * (vdd - low) / (high - low)
        return self.points[0][1]

    def voltage(self, vdd: float | None, hz: int, where: str = "--vdd") -> float:
        """The voltage asked for, or the lowest at which the chip reaches `hz`.

        Raises `InputError` for a voltage outside of the points, and a clock it is too low for.
        """
        lowest, highest = self.points[0][0], self.points[-1][0]
        top_mhz = self.points[-1][1] / 1e6
        if hz > self.points[-1][1]:
            message = f"{self.name} reaches {top_mhz:g} MHz at {highest:g} V, not {hz / 1e6:g} MHz"
            raise InputError(message, where="--freq", cure=f"use --freq {top_mhz:g}MHz or less")
        if vdd is None:
            for (low, low_hz, _), (high, high_hz, _) in pairwise(self.points):
                if hz <= high_hz:
                    return max(low, low + (high - low) * (hz - low_hz) / (high_hz - low_hz))
            return lowest
        if not lowest <= vdd <= highest:
            message = f"{vdd:g} V is outside the operating points of {self.name}"
            raise InputError(message, where=where, cure=f"use {lowest:g}V to {highest:g}V")
        if hz > self.highest_hz(vdd) * (1 + 1e-9):
            limit_mhz = self.highest_hz(vdd) / 1e6
            message = f"{self.name} reaches {limit_mhz:.4g} MHz at {vdd:g} V, not {hz / 1e6:g} MHz"
            raise InputError(message, where=where, cure=f"use --freq {int(limit_mhz)}MHz, or a higher --vdd")
        return vdd


def load_energy(name_or_path: str | Path) -> EnergyModel:
    """An installed energy model, or one of the user's. Raises `ConfigError` with ``file:line``."""
    node = open_config("energy", name_or_path)
    what = "the energy model"
    check_keys(node, what, *required_and_optional(EnergySchema))
    top = node.mapping(what)
    problems = Problems()
    points = problems.of(_points, top["points"])
    given = top["coefficients"].mapping("'coefficients'")
    coefficients = {name: problems.of(_coefficient, name, child) for name, child in given.items()}
    socs = top["socs"].sequence("'socs'") if "socs" in top else ()
    problems.refuse()
    return EnergyModel(
        str(top["name"].value),
        str(top["description"].value),
        str(top["process"].value),
        tuple(str(item.value) for item in socs),
        points or (),
        {name: item for name, item in coefficients.items() if item is not None},
        node.file,
    )


def model_for(soc: str) -> str | None:
    """Name of the installed energy model that belongs to a SoC; None if there is none."""
    return next((name for name in list_names("energy") if soc in _socs_of(name)), None)


@cache
def _socs_of(name: str) -> tuple[str, ...]:
    text = files("configs").joinpath("energy", f"{name}.yaml").read_text(encoding="utf-8")
    match = _SOCS.search(text)
    return tuple(part.strip() for part in match[1].split(",")) if match else ()


def _points(node: Node) -> tuple[tuple[float, int, str], ...]:
    points: list[tuple[float, int, str]] = []
    for item in node.sequence("'points'"):
        given = validate(PointSchema, item, "an operating point")
        vdd = parse_si(given.vdd, "V", where=item.where)
        points.append((vdd, parse_hz(given.frequency, where=item.where), given.source))
    if not points or points[0][0] <= 0 or points[0][1] <= 0:
        raise node.error("the first of 'points' must be above 0 V and 0 Hz", "list the lowest voltage first")
    if any(low[0] >= high[0] or low[1] >= high[1] for low, high in pairwise(points)):
        message = "voltage and clock must both rise from point to point"
        raise node.error(message, "list the lowest voltage first")
    return tuple(points)


def _coefficient(name: str, node: Node) -> Coefficient:
    if name not in COEFFICIENTS:
        raise node.error(f"unknown coefficient '{name}'", suggestion(name, COEFFICIENTS))
    given = validate(CoefficientSchema, node, f"'{name}'")
    children = node.mapping("")
    unit = COEFFICIENTS[name].unit
    low, nominal, high = (
        parse_si(getattr(given, key), unit, where=children[key].where) for key in ("low", "nominal", "high")
    )
    vdd = parse_si(given.vdd, "V", where=children["vdd"].where)
    if not low <= nominal <= high:
        message = f"'{name}' does not satisfy low <= nominal <= high"
        raise node.error(message, f"sort the three values {given.low}, {given.nominal} and {given.high}")
    if vdd <= 0:
        raise children["vdd"].error(
            "the supply voltage is 0 V, but must be above 0", "write the voltage of the cores, e.g. 0.8 V"
        )
    if given.grade not in GRADES:
        raise children["grade"].error(f"unknown grade '{given.grade}'", suggestion(given.grade, GRADES))
    return Coefficient(low, nominal, high, vdd, given.condition, given.source, given.grade, given.fitted)


def energy_text(model: EnergyModel, about: Sequence[str]) -> str:
    """The file of a model; `about` are the lines of the comment above it."""
    lines = [*(f"# {line}" for line in about), f"name: {model.name}"]
    lines += [
        f"description: {_quoted(model.description)}",
        f"process: {_quoted(model.process)}",
        "socs: [" + ", ".join(model.socs) + "]",
        "points:",
    ]
    for vdd, hz, source in model.points:
        lines += [f"- vdd: {vdd:g} V", f"  frequency: {hz / 1e6:g} MHz", f"  source: {_quoted(source)}"]
    lines.append("coefficients:")
    for name, item in model.coefficients.items():
        unit, scale = ("pJ", 1e12) if COEFFICIENTS[name].unit == "J" else ("mW", 1e3)
        lines.append(f"  {name}:")
        lines += [f"    {key}: {scale * getattr(item, key):.4g} {unit}" for key in ("low", "nominal", "high")]
        lines += [f"    vdd: {item.vdd:g} V", f"    condition: {_quoted(item.condition)}"]
        lines += [f"    source: {_quoted(item.source)}", f"    grade: {item.grade}"]
        lines += ["    fitted: true"] if item.fitted else []
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

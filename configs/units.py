# SPDX-License-Identifier: Apache-2.0
"""Quantities as users write them, turned into exact integers: "64 KiB" into bytes, "450 MHz" into hertz."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from configs.errors import ConfigError, shortened
from configs.suggest import suggestion

LARGEST_INTEGER = 2**63 - 1
"""Of every integer that is read: arrays hold 64 bits, and nothing about a microcontroller needs more."""

LARGEST_FLOAT = 3.4e38
"""Of every other number: what fp32 holds. Infinity and NaN are none."""

BYTE_UNITS: Mapping[str, int] = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
}
"""Bytes per unit: decimal multiples after SI, binary multiples after IEC 80000-13."""

HERTZ_UNITS: Mapping[str, int] = {"Hz": 1, "kHz": 1000, "MHz": 1000**2, "GHz": 1000**3}
"""Hertz per unit."""

AMBIGUOUS_BYTE_UNITS: Mapping[str, tuple[str, str]] = {
    "k": ("KiB", "kB"),
    "K": ("KiB", "kB"),
    "KB": ("KiB", "kB"),
    "kb": ("KiB", "kB"),
    "m": ("MiB", "MB"),
    "M": ("MiB", "MB"),
    "mb": ("MiB", "MB"),
    "g": ("GiB", "GB"),
    "G": ("GiB", "GB"),
    "gb": ("GiB", "GB"),
}
"""Spellings that people use for both 1000 and 1024; refused, because a silent guess changes the machine."""

# Digits are limited, those of the exponent to two, so that no input can make the exact arithmetic explode.
_QUANTITY = re.compile(r"([+-]?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2})?)\s*([A-Za-z]*)", re.ASCII)


def parse_bytes(text: str | int | float, *, where: str | None = None) -> int:
    """Return the number of bytes that `text` means.

    Accepts an integer (bytes) or a number with an optional unit of `BYTE_UNITS` ("64 KiB", "32KiB", "4096").
    Raises `ConfigError` for a negative or broken number, a fraction of a byte, and for the spellings k, K
    and KB, which mean 1000 to some and 1024 to others.
    """
    return _parse(text, "size", "64 KiB", BYTE_UNITS, where)


def parse_hz(text: str | int | float, *, where: str | None = None) -> int:
    """Return the frequency in hertz that `text` means.

    Accepts an integer (Hz) or a number with an optional unit of `HERTZ_UNITS` ("450 MHz"). Raises
    `ConfigError` for a negative or broken number, for a fraction of a hertz, and for a number without a unit
    that is too small for a clock.
    """
    hertz = _parse(text, "frequency", "450 MHz", HERTZ_UNITS, where)
    refuse_without_unit(text, hertz, FEWEST_HERTZ, "MHz", "frequency of a clock", where)
    return hertz


def parse_size(text: str | int | float, *, where: str | None = None) -> int:
    """The bytes of a memory, as `parse_bytes`, of which a few without a unit are refused, too."""
    size_bytes = parse_bytes(text, where=where)
    refuse_without_unit(text, size_bytes, FEWEST_BYTES, "KiB", "size of a memory", where)
    return size_bytes


FEWEST_BYTES, FEWEST_HERTZ = 1024, 1_000_000
"""Of a memory and of a clock that somebody writes without a unit."""


def refuse_without_unit(
    text: str | int | float, amount: int, fewest: int, unit: str, what: str, where: str | None
) -> None:
    """Raise `ConfigError` for so small a number without a unit that another unit must be meant."""
    if 0 < amount < fewest and not str(text).strip()[-1].isalpha():
        written = ""
        if where is not None and where.startswith("--"):
            written = f": {where.removesuffix(f'={text}')}{'=' if '=' in where else ' '}{text}{unit}"
        raise ConfigError(
            f"{text} is too small for the {what}; a unit seems to be missing",
            where=where,
            cure=f"add the unit, e.g. {text} {unit}{written}",
        )


PREFIXES: Mapping[str, float] = {"f": 1e-15, "p": 1e-12, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1}
"""Of the units of `parse_si`."""


def parse_si(text: object, unit: str, *, where: str | None = None) -> float:
    """Return the amount in `unit` (J, W, V) that `text` means: "4.1 pJ", "57.6mW", "0.8 V".

    Raises `ConfigError` for a number without a unit, a negative one, and any other unit.
    """
    match = _QUANTITY.fullmatch(str(text).strip().replace("µ", "u"))
    example = f"'{text} p{unit}'" if unit == "J" else f"'{text} {unit}'"
    if isinstance(text, bool) or match is None:
        message = f"'{shortened(str(text))}' is not an amount in {unit}"
        raise ConfigError(message, where=where, cure=f"write e.g. '4.1 {unit}'")
    if not match[2]:
        raise ConfigError(f"'{text}' has no unit", where=where, cure=f"add the unit, e.g. {example}")
    prefix = match[2].removesuffix(unit)
    if not match[2].endswith(unit) or prefix not in PREFIXES:
        units = ", ".join(f"{each}{unit}" for each in PREFIXES if each != "µ")
        raise ConfigError(f"the unit of '{text}' is not {unit}", where=where, cure=f"use one of {units}")
    amount = float(match[1]) * PREFIXES[prefix]
    if amount < 0:
        raise ConfigError(f"'{text}' is negative, but must be 0 or more", where=where, cure="write 0 or more")
    return amount


def _parse(
    text: str | int | float, kind: str, example: str, units: Mapping[str, int], where: str | None
) -> int:
    match = None if isinstance(text, bool) else _QUANTITY.fullmatch(str(text).strip())
    if match is None:
        shown = shortened(str(text))
        wrong = f"'{shown}' is not a {kind}" if shown.strip() else f"the {kind} is empty"
        if re.search(r"\d{41}|\d[eE][+-]?\d{3}", shown):
            wrong += ": it has too many digits"
        raise ConfigError(wrong, where=where, cure=f"write e.g. '{example}'")
    number, unit = Fraction(match[1]), match[2]
    base = next(iter(units))
    amount = number * _unit_factor(unit or base, number, units, where)
    if amount < 0:
        cure = f"use a {kind} without '-', like '{example}'"
        raise ConfigError(f"a {kind} cannot be negative: '{text}'", where=where, cure=cure)
    if amount.denominator != 1:
        raise ConfigError(
            f"'{text}' is {float(amount)} {base}, not a whole number of {base}",
            where=where,
            cure=f"use '{int(amount)} {base}' or '{int(amount) + 1} {base}'"
            if amount > 1
            else f"write e.g. '{example}'",
        )
    if amount > LARGEST_INTEGER:
        raise ConfigError(
            f"'{text}' exceeds the limit of {LARGEST_INTEGER} {base}",
            where=where,
            cure=f"use at most {LARGEST_INTEGER} {base}",
        )
    return int(amount)


def _unit_factor(unit: str, number: Fraction, units: Mapping[str, int], where: str | None) -> int:
    if unit in units:
        return units[unit]
    if units is BYTE_UNITS and unit in AMBIGUOUS_BYTE_UNITS:
        binary, decimal = AMBIGUOUS_BYTE_UNITS[unit]
        shown = f"{float(number):g}"
        raise ConfigError(
            f"the unit '{unit}' is ambiguous: {binary} is {units[binary]} B, {decimal} is {units[decimal]} B",
            where=where,
            cure=f"use '{shown} {binary}' or '{shown} {decimal}'",
        )
    # No unit in the tables differs from another by case alone, so "kib" and "mhz" are safe to accept.
    for word, factor in units.items():
        if word.casefold() == unit.casefold():
            return factor
    raise ConfigError(f"unknown unit '{unit}'", where=where, cure=suggestion(unit, units))

# SPDX-License-Identifier: Apache-2.0
"""Sizes and frequencies as users write them become exact integers, or an error with a cure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from configs.units import BYTE_UNITS, parse_bytes, parse_hz


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64 KiB", 65536),
        ("32KiB", 32768),
        ("1.5 MiB", 1572864),
        ("1 GiB", 1 << 30),
        ("1600 kB", 1600000),
        ("4096", 4096),
        (4096, 4096),
        (4096.0, 4096),
        (" 0 B ", 0),
        ("64 kib", 65536),
    ],
)
def test_sizes(text, size_bytes):
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "hertz"),
    [("450 MHz", 450_000_000), ("32.768kHz", 32768), ("50 Hz", 50), ("1e6", 1_000_000), ("1 ghz", 10**9)],
)
def test_frequencies(text, hertz):
    assert parse_hz(text) == hertz


@pytest.mark.parametrize(
    ("text", "message", "cure"),
    [
        ("128k", "ambiguous: KiB is 1024 B, kB is 1000 B", "'128 KiB' or '128 kB'"),
        ("1M", "ambiguous", "'1 MiB' or '1 MB'"),
        ("0.3 KiB", "is 307.2 B, not a whole number of B", "'307 B' or '308 B'"),
        (1.5, "not a whole number", "'1 B' or '2 B'"),
        ("-64 KiB", "cannot be negative", "64 KiB"),
        (-1, "cannot be negative", "64 KiB"),
        ("64 KiN", "unknown unit 'KiN'", "'KiB'"),
        ("64 MHz", "unknown unit 'MHz'", "MiB"),
        ("much", "'much' is not a size", "64 KiB"),
        ("", "the size is empty", "64 KiB"),
        ("nan", "not a size", "64 KiB"),
        (float("inf"), "not a size", "64 KiB"),
        (True, "not a size", "64 KiB"),
        ("1e999999999 B", "not a size", "64 KiB"),
    ],
)
def test_refused_sizes(text, message, cure):
    with pytest.raises(ConfigError) as caught:
        parse_bytes(text, where="--l1")
    assert message in caught.value.message
    assert caught.value.cure is not None
    assert cure in caught.value.cure
    assert caught.value.where == "--l1"
    assert caught.value.exit_code == 2


def test_half_a_hertz_is_refused():
    with pytest.raises(ConfigError, match=r"is 0\.5 Hz, not a whole number of Hz"):
        parse_hz("0.5 Hz")


@given(st.integers(0, 10**9), st.sampled_from(sorted(BYTE_UNITS)))
def test_number_times_unit(number, unit):
    assert parse_bytes(f"{number} {unit}") == number * BYTE_UNITS[unit]


def parsed(text: str | int | float) -> int | ConfigError:
    try:
        return parse_bytes(text)
    except ConfigError as error:
        return error


@given(st.one_of(st.text(max_size=12), st.integers(), st.floats()))
def test_anything_else_is_a_config_error(text):
    outcome = parsed(text)
    assert outcome.cure if isinstance(outcome, ConfigError) else outcome >= 0
